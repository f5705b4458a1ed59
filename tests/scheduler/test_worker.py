"""The worker in real time, on a real database: short stories, each waiting for what it looks for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from scheduler import (
    App,
    AsyncioClock,
    CancelResult,
    Client,
    JobState,
    LeaseLost,
    PostgresStore,
    Retry,
    RunningJob,
    Worker,
    WorkerSettings,
    open_postgres,
)
from scheduler.held import HeldJob
from scheduler.jobs import Job
from tests.waiting import until

pytestmark = pytest.mark.postgres

QUICK = Retry(base_us=1_000, cap_us=1_000)
SETTINGS = {
    "poll_interval_us": 20_000,
    "lookahead_us": 2_000_000,
    "lease_us": 6_000_000,
    "heartbeat_interval_us": 30_000,
    "request_timeout_us": 900_000,
    "sweep_interval_us": 20_000,
    "drain_timeout_us": 10_000_000,
}


class Recording:
    """A store that notes which verbs it is asked, in order."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.verbs: list[str] = []

    def __getattr__(self, verb: str) -> Any:
        self.verbs.append(verb)
        return getattr(self._store, verb)


class Stage:
    """A worker that runs, the client that feeds it, and a look at the table."""

    def __init__(self, app: App, store: PostgresStore, clock: AsyncioClock, settings: dict[str, int]) -> None:
        self.table = store
        self.recording = Recording(store)
        self.steps: list[tuple[str, UUID | None]] = []
        self.client = Client(app, store, rng=clock.rng)
        self.worker = Worker(
            app,
            store=self.recording,
            clock=clock,
            settings=WorkerSettings(**SETTINGS | settings),
            observe=self._observe,
        )
        self.running = asyncio.create_task(self.worker.run())

    def _observe(self, kind: str, job: HeldJob | None, detail: str) -> None:
        self.steps.append((kind, None if job is None else job.ref.job_id))

    async def row(self, job_id: UUID) -> Job:
        job = await self.table.get(job_id)
        assert job is not None
        return job

    async def reaches(self, job_id: UUID, state: JobState) -> Job:
        """Wait until a job has come to a state; returns its row."""

        async def there() -> bool:
            return (await self.row(job_id)).state is state

        await until(there)
        return await self.row(job_id)

    async def stop(self) -> None:
        self.worker.stop()
        await asyncio.wait_for(self.running, 20)


@asynccontextmanager
async def stage(dsn: str, app: App, **settings: int) -> AsyncIterator[Stage]:
    clock = AsyncioClock()
    async with open_postgres(dsn, connections=5) as store:
        staged = Stage(app, store, clock, settings)
        try:
            yield staged
        finally:
            await staged.stop()
            clock.close()


def play(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(40):
            await story()

    asyncio.run(limited())


def test_async_and_plain_handlers_run_each_in_its_place(migrated_dsn: str) -> None:
    """An async handler runs on the loop, a plain one in a thread; both get the job and the payload."""
    app, seen = App(), dict[str, Any]()

    @app.task()
    async def on_loop(job: RunningJob, *, n: int) -> None:
        seen["loop"] = (n, job.attempt, job.task, threading.current_thread() is threading.main_thread())

    @app.task()
    def in_thread(job: RunningJob, *, n: int) -> None:
        seen["thread"] = (n, job.attempt, job.task, threading.current_thread() is threading.main_thread())

    async def story() -> None:
        async with stage(migrated_dsn, app) as on:
            ids = [await on.client.enqueue(task, {"n": 7}) for task in app.tasks]
            rows = [await on.reaches(job_id, JobState.SUCCEEDED) for job_id in ids]
            assert seen == {"loop": (7, 1, "on_loop", True), "thread": (7, 1, "in_thread", False)}
            assert all(row.lease_owner is None and row.last_error is None for row in rows)

    play(story)


def test_a_job_starts_not_before_its_time_and_a_sooner_one_first(migrated_dsn: str) -> None:
    """The later job is claimed first, waits in the heap, and does not hold up a sooner one."""
    app, order = App(), list[str]()

    @app.task()
    async def note(job: RunningJob, *, word: str) -> None:
        order.append(word)

    async def story() -> None:
        async with stage(migrated_dsn, app) as on:
            later = await on.client.enqueue("note", {"word": "later"}, delay=timedelta(milliseconds=300))
            await on.reaches(later, JobState.CLAIMED)
            await on.client.enqueue("note", {"word": "sooner"}, delay=timedelta(milliseconds=50))
            row = await on.reaches(later, JobState.SUCCEEDED)
            assert order == ["sooner", "later"]
            assert row.finished_at_us is not None
            assert row.finished_at_us >= row.run_at_us

    play(story)


def test_a_failure_is_retried_and_its_error_kept(migrated_dsn: str) -> None:
    """A handler that raises is run again, at the next attempt, under the same identity."""
    app, runs = App(), list[tuple[UUID, int, int]]()

    @app.task(retry=QUICK)
    async def flaky(job: RunningJob) -> None:
        runs.append((job.job_id, job.attempt, job.token))
        if job.attempt == 1:
            raise ValueError("not\x00 yet")

    async def story() -> None:
        async with stage(migrated_dsn, app) as on:
            job_id = await on.client.enqueue("flaky")
            row = await on.reaches(job_id, JobState.SUCCEEDED)
            assert runs == [(job_id, 1, 1), (job_id, 2, 2)]
            assert row.last_error == "ValueError: not\N{REPLACEMENT CHARACTER} yet"

    play(story)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("oh"), "ValueError: oh"),
        (StopIteration(), "RuntimeError: coroutine raised StopIteration"),
        (SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
)
@pytest.mark.parametrize("kind", ["async", "plain"])
def test_whatever_a_handler_raises_is_its_outcome(
    migrated_dsn: str, error: BaseException, told: str, kind: str
) -> None:
    """No exception of a handler's takes the slot or the worker with it; out of attempts, it is a dead letter."""
    app = App()

    @app.task("async", max_attempts=1)
    async def bad_coroutine(job: RunningJob) -> None:
        raise error

    @app.task("plain", max_attempts=1)
    def bad_function(job: RunningJob) -> None:
        raise error

    @app.task()
    async def fine(job: RunningJob) -> None: ...

    async def story() -> None:
        async with stage(migrated_dsn, app, concurrency=1) as on:
            row = await on.reaches(await on.client.enqueue(kind), JobState.FAILED)
            assert row.last_error == told
            await on.reaches(await on.client.enqueue("fine"), JobState.SUCCEEDED)

    play(story)


def test_a_payload_that_does_not_fit_the_handler_is_a_failure(migrated_dsn: str) -> None:
    """A wrong argument is the job's error, told in its row."""
    app = App()

    @app.task(max_attempts=1)
    async def strict(job: RunningJob, *, n: int) -> None: ...

    async def story() -> None:
        async with stage(migrated_dsn, app) as on:
            row = await on.reaches(await on.client.enqueue("strict", {"m": 1}), JobState.FAILED)
            assert "unexpected keyword argument 'm'" in (row.last_error or "")

    play(story)


def test_a_job_cancelled_while_it_waits_never_runs(migrated_dsn: str) -> None:
    """A claimed job in the heap is let go at the next heartbeat; its time passes and nothing happens."""
    app, runs = App(), list[UUID]()

    @app.task()
    async def note(job: RunningJob) -> None:
        runs.append(job.job_id)

    async def story() -> None:
        async with stage(migrated_dsn, app) as on:
            doomed = await on.client.enqueue("note", delay=timedelta(milliseconds=400))
            other = await on.client.enqueue("note", delay=timedelta(milliseconds=450))
            await on.reaches(doomed, JobState.CLAIMED)
            assert (await on.table.cancel([doomed])).results[0].result is CancelResult.CANCELLED
            await on.reaches(other, JobState.SUCCEEDED)
            assert runs == [other]
            assert (await on.row(doomed)).state is JobState.CANCELLED

    play(story)


@pytest.mark.parametrize("task", ["sleeper", "looper"])
def test_a_running_job_stops_at_its_checkpoint_when_asked(migrated_dsn: str, task: str) -> None:
    """A cancellation reaches an async handler in its sleep, and a plain one at its checkpoint."""
    app = App()

    @app.task()
    async def sleeper(job: RunningJob) -> None:
        await job.sleep(timedelta(seconds=30))

    @app.task()
    def looper(job: RunningJob) -> None:
        for _ in range(3000):
            job.checkpoint()
            threading.Event().wait(0.01)

    async def story() -> None:
        async with stage(migrated_dsn, app) as on:
            job_id = await on.client.enqueue(task)
            await on.reaches(job_id, JobState.RUNNING)
            assert (await on.table.cancel([job_id])).results[0].result is CancelResult.REQUESTED
            row = await on.reaches(job_id, JobState.CANCELLED)
            assert "its cancellation was asked for" in (row.last_error or "")

    play(story)


@pytest.mark.parametrize("task", ["sleeper", "looper"])
def test_a_job_whose_lease_is_lost_is_stopped_and_not_written(migrated_dsn: str, task: str) -> None:
    """When somebody else holds the job, its handler is stopped within a heartbeat and the row is left alone."""
    app, stopped = App(), list[str]()

    @app.task()
    async def sleeper(job: RunningJob) -> None:
        try:
            await job.sleep(timedelta(seconds=30))
        except asyncio.CancelledError:
            stopped.append("cancelled")
            raise

    @app.task()
    def looper(job: RunningJob) -> None:
        for _ in range(3000):
            try:
                job.checkpoint()
            except LeaseLost:
                stopped.append("lost")
                return
            threading.Event().wait(0.01)

    async def story() -> None:
        async with stage(migrated_dsn, app) as on:
            job_id = await on.client.enqueue(task)
            await on.reaches(job_id, JobState.RUNNING)
            async with await psycopg.AsyncConnection.connect(migrated_dsn) as connection:
                await connection.execute(
                    "UPDATE scheduler_jobs SET lease_owner = 'thief', lease_token = lease_token + 1"
                )
            await until(lambda: ("aborted", job_id) in on.steps and bool(stopped))
            row = await on.row(job_id)
            assert (row.state, row.lease_owner, row.lease_token) == (JobState.RUNNING, "thief", 2)

    play(story)


def test_a_worker_that_is_itself_cancelled_takes_its_handlers_with_it(migrated_dsn: str) -> None:
    """Cancelling `run` leaves no handler running on behind it, unheld."""
    app, ended = App(), list[str]()

    @app.task()
    async def sleeper(job: RunningJob) -> None:
        try:
            await job.sleep(timedelta(seconds=30))
        finally:
            ended.append(job.task)

    async def story() -> None:
        async with stage(migrated_dsn, app) as on:
            job_id = await on.client.enqueue("sleeper")
            await on.reaches(job_id, JobState.RUNNING)
            on.running.cancel()
            await asyncio.wait({on.running})
            await until(lambda: ended == ["sleeper"])
            on.running = asyncio.create_task(asyncio.sleep(0))

    play(story)


def test_a_drain_gives_back_what_has_not_started(migrated_dsn: str) -> None:
    """What waits in the heap or for a slot is PENDING again at once, and its attempt is not spent."""
    app, gate = App(), list[asyncio.Event]()

    @app.task()
    async def hold(job: RunningJob) -> None:
        await gate[0].wait()

    async def story() -> None:
        gate.append(asyncio.Event())
        async with stage(migrated_dsn, app, concurrency=1) as on:
            first = await on.client.enqueue("hold")
            await on.reaches(first, JobState.RUNNING)
            backlog = await on.client.enqueue("hold")
            in_heap = await on.client.enqueue("hold", delay=timedelta(milliseconds=1500))
            for job_id in (backlog, in_heap):
                await on.reaches(job_id, JobState.CLAIMED)
            on.worker.stop()
            for job_id in (backlog, in_heap):
                row = await on.reaches(job_id, JobState.PENDING)
                assert (row.attempt, row.lease_token, row.lease_owner) == (0, 1, None)
            assert (await on.row(first)).state is JobState.RUNNING
            gate[0].set()
            await on.stop()
            assert (await on.row(first)).state is JobState.SUCCEEDED

    play(story)


def test_the_heartbeat_stops_last(migrated_dsn: str) -> None:
    """After the stop nothing new is claimed, and as long as a handler runs its lease is renewed."""
    app, gate = App(), list[asyncio.Event]()

    @app.task()
    async def hold(job: RunningJob) -> None:
        await gate[0].wait()

    async def story() -> None:
        gate.append(asyncio.Event())
        async with stage(migrated_dsn, app) as on:
            job_id = await on.client.enqueue("hold")
            await on.reaches(job_id, JobState.RUNNING)
            on.worker.stop()
            # Polls are more frequent than heartbeats: three of these in a row, and the poller has stopped.
            await until(lambda: on.recording.verbs[-3:] == ["heartbeat"] * 3)
            late = await on.client.enqueue("hold")
            asked = len(on.recording.verbs)
            await until(lambda: len(on.recording.verbs) >= asked + 3)
            gate[0].set()
            await on.stop()
            assert set(on.recording.verbs[asked:]) == {"heartbeat", "finish"}
            assert on.recording.verbs[asked : asked + 3] == ["heartbeat"] * 3
            assert (await on.row(job_id)).state is JobState.SUCCEEDED
            assert (await on.row(late)).state is JobState.PENDING

    play(story)


def test_a_handler_that_outlasts_the_drain_is_interrupted_and_retried(migrated_dsn: str) -> None:
    """When the drain's time is over, what still runs is cancelled and due again at once."""
    app = App()

    @app.task(max_attempts=2)
    async def endless(job: RunningJob) -> None:
        await asyncio.Event().wait()

    async def story() -> None:
        async with stage(migrated_dsn, app, drain_timeout_us=50_000) as on:
            job_id = await on.client.enqueue("endless")
            await on.reaches(job_id, JobState.RUNNING)
            await on.stop()
            row = await on.row(job_id)
            assert (row.state, row.attempt) == (JobState.PENDING, 1)
            assert row.last_error == "LeaseLost: interrupted: the worker was shut down"

    play(story)


def test_a_worker_without_work_stops_at_once_and_twice_is_once(migrated_dsn: str) -> None:
    """Stopping is idempotent and waits for nothing."""
    app = App()

    @app.task()
    async def never(job: RunningJob) -> None: ...

    async def story() -> None:
        async with stage(migrated_dsn, app) as on:
            on.worker.stop()
            await on.stop()
            assert on.running.done()

    play(story)


def test_a_mistake_in_the_worker_itself_ends_it_loudly(migrated_dsn: str) -> None:
    """A part that breaks takes the worker down with its own error, not into silence."""
    app = App()

    @app.task()
    async def never(job: RunningJob) -> None: ...

    class Broken(Recording):
        async def claim(self, request: object, /) -> Any:
            raise ZeroDivisionError("a bug")

    async def story() -> None:
        clock = AsyncioClock()
        async with open_postgres(migrated_dsn) as store:
            worker = Worker(app, store=Broken(store), clock=clock, settings=WorkerSettings(**SETTINGS))
            with pytest.raises(ZeroDivisionError, match="a bug"):
                await worker.run()
        clock.close()

    play(story)


def test_an_owner_is_never_the_same_twice() -> None:
    """A restarted worker of the same name is another owner."""
    store: Any = None
    owners = {Worker(App(), store=store, clock=AsyncioClock(), name="w").owner for _ in range(5)}
    assert len(owners) == 5
    assert all(owner.startswith("w/") for owner in owners)
