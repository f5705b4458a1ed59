"""The whole worker in virtual time: outcomes, retries, lost replies, the drain, and parts that break."""

import contextvars
import gc
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from scheduler.app import App
from scheduler.clock import CancelledError
from scheduler.errors import JobCancelled, StoreUnavailable
from scheduler.failpoints import FAILPOINTS
from scheduler.heartbeat import Heartbeat
from scheduler.jobs import JobState, NewJob
from scheduler.policy import Retry, WorkerSettings
from scheduler.poller import Poller
from scheduler.worker import Worker
from simlab.faults import At, Partition, ReplyLost, RequestLost
from simlab.hosts import EPOCH_US
from simlab.network import Latency
from simlab.store import ModelStore
from tests.simlab.bench import MS, SECOND, Bench, Story, at_once, job_id, opened_story, working_app

SIZES: dict[str, list[int]] = {}


class Spy(ModelStore):
    """Notes how many jobs each write carried."""

    async def start(self, refs, /):
        SIZES.setdefault("start", []).append(len(refs))
        return await super().start(refs)

    async def finish(self, outcomes, /):
        SIZES.setdefault("finish", []).append(len(outcomes))
        return await super().finish(outcomes)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    SIZES.clear()
    yield
    SIZES.clear()


# A worker on a bare bench: no network, a store that answers at once.


class Solo:
    """One worker, directly on a ModelStore, whose `run` the test looks at."""

    def __init__(
        self, app: App, *, worker_class: type[Worker] = Worker, failpoint: Any = None, **settings: Any
    ) -> None:
        self.bench = Bench()
        self.store = ModelStore(lambda: EPOCH_US + self.bench.now_us)
        self.worker = worker_class(
            app,
            store=self.store,
            clock=self.bench.clock,
            settings=WorkerSettings(**{"concurrency": 2, "prefetch": 2, **settings}),
            failpoint=failpoint,
            observe=lambda kind, job, detail: self.observed.append((kind, detail)),
        )
        self.observed: list[tuple[str, str]] = []
        self.task = self.bench.spawn(self.worker.run(), "worker")

    def enqueue(self, number: int = 1, *, delay_us: int = 0, max_attempts: int = 3, **payload: Any) -> None:
        new = NewJob(
            job_id=job_id(number), task="work", payload=payload, delay_us=delay_us, max_attempts=max_attempts
        )
        at_once(self.store.enqueue([new]))

    def state(self, number: int = 1) -> JobState:
        row = at_once(self.store.get(job_id(number)))
        assert row is not None
        return row.state


def handler_of(function: Any, **options: Any) -> App:
    app = App()
    app.task("work", **options)(function)
    return app


# Outcomes.


def test_a_handler_gets_its_payload_and_what_it_needs_to_be_idempotent_and_fenced():
    seen: list[Any] = []

    async def work(job, *, user_id, name):
        seen.append(
            (job.job_id, job.task, job.attempt, job.max_attempts, job.token, user_id, name, job.payload)
        )
        assert job.run_at.tzinfo is not None

    solo = Solo(handler_of(work))
    solo.enqueue(user_id=7, name="ü")
    solo.bench.until(1)
    assert seen == [(job_id(1), "work", 1, 3, 1, 7, "ü", {"user_id": 7, "name": "ü"})]
    assert solo.state() is JobState.SUCCEEDED
    solo.bench.bury()


def test_a_plain_function_is_a_handler_too_and_so_is_its_failure():
    seen: list[Any] = []

    def work(job, *, fail):
        seen.append((job.job_id.int, job.attempt))
        job.checkpoint()
        if fail:
            raise ValueError("plainly wrong")

    solo = Solo(handler_of(work))
    solo.enqueue(1, fail=False)
    solo.enqueue(2, fail=True, max_attempts=1)
    solo.bench.until(1)
    assert sorted(seen) == [(1, 1), (2, 1)]
    assert solo.state(1) is JobState.SUCCEEDED
    assert solo.state(2) is JobState.FAILED
    assert at_once(solo.store.get(job_id(2))).last_error == "ValueError: plainly wrong"
    solo.bench.bury()


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot even say what is wrong")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("boom"), "ValueError: boom"),
        (ValueError(), "ValueError"),
        (CancelledError(), "CancelledError"),
        (SystemExit(3), "SystemExit: 3"),
        (StopIteration("stop"), "RuntimeError: coroutine raised StopIteration"),
        (JobCancelled("nobody asked"), "JobCancelled: nobody asked"),
        (ValueError("nul \x00 and \ud800"), "ValueError: nul \ufffd and ?"),
        (ValueError("x" * 5000), "ValueError: " + "x" * 1988),
        (Mute(), "Mute: <its message could not be made: RuntimeError>"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_a_handler_raises_is_a_failed_attempt_and_its_last_error(error, says):
    """Also CancelledError of the handler's own making: the worker is not being stopped, the job failed."""

    async def work(job):
        await job.sleep(timedelta(milliseconds=1))
        raise error

    solo = Solo(handler_of(work))
    solo.enqueue(max_attempts=1)
    solo.bench.until(10 * SECOND)
    row = at_once(solo.store.get(job_id(1)))
    assert row.state is JobState.FAILED
    assert row.last_error == says
    assert not solo.task.done(), "the worker goes on"
    solo.bench.bury()


def test_a_payload_that_does_not_fit_the_handler_is_a_failed_attempt():
    async def work(job, *, needed):
        raise AssertionError("never")

    solo = Solo(handler_of(work))
    solo.enqueue(max_attempts=1, other=1)
    solo.bench.until(SECOND)
    assert "TypeError" in at_once(solo.store.get(job_id(1))).last_error
    solo.bench.bury()


def test_retries_follow_the_backoff_and_end_in_failed_with_the_last_error():
    async def work(job):
        raise ValueError(f"attempt {job.attempt}")

    retry = Retry(base_us=10 * SECOND, cap_us=60 * SECOND)
    pauses = []
    for seed in range(5):
        app = handler_of(work, max_attempts=6, retry=retry)
        with opened_story(app=app, seed=seed) as story:
            job = story.enqueue(max_attempts=6)
            story.to(600)
            row = story.row(job)
            assert row.state is JobState.FAILED
            assert row.attempt == 6
            assert row.last_error == "ValueError: attempt 6"
            ends = story.events("finished", job=job)
            assert [event.detail for event in ends] == ["retry to PENDING"] * 5 + ["failed to FAILED"]
            pauses.append([(event.due_us - event.db_us) / SECOND for event in ends[:-1]])
            runs = story.events("executing", job=job)
            assert len(runs) == 6
            assert all(run.db_us >= end.due_us for end, run in zip(ends, runs[1:], strict=False))
    for pause, longest in zip(zip(*pauses, strict=True), (10, 20, 40, 60, 60), strict=True):
        assert all(longest / 2 <= each <= longest for each in pause)
        assert len(set(pause)) > 1, "no jitter"


def test_a_cancelled_error_of_the_handlers_own_is_retried_and_does_not_stop_the_slot():
    async def work(job):
        if job.attempt == 1:
            raise CancelledError

    app = handler_of(work, retry=Retry(base_us=SECOND))
    with opened_story(app=app) as story:
        job = story.enqueue()
        story.to(30)
        assert story.row(job).state is JobState.SUCCEEDED
        assert story.row(job).attempt == 2


# Slots.


def test_two_jobs_for_one_slot_run_one_after_the_other_in_the_order_they_were_due():
    settings = WorkerSettings(concurrency=1, prefetch=5)
    with opened_story(app=working_app(seconds=10), settings=settings) as story:
        second, first = story.enqueue(delay_s=2), story.enqueue(delay_s=1)
        story.to(40)
        assert story.times_s("executing", first) == [pytest.approx(1.003)]
        # One finished, its outcome written, then the other started: four messages of a millisecond.
        assert story.times_s("executing", second) == [pytest.approx(11.003 + 0.004)]
        assert story.times_s("fired", second) == [pytest.approx(2.001)], "the timer is not what was late"


def test_as_many_handlers_run_at_once_as_there_are_slots():
    settings = WorkerSettings(concurrency=5, prefetch=20)
    running = most = 0

    async def work(job):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await job.sleep(timedelta(seconds=1))
        running -= 1

    with opened_story(app=handler_of(work), settings=settings) as story:
        jobs = [story.enqueue() for _ in range(25)]
        story.to(60)
        assert most == 5
        assert {story.row(job).state for job in jobs} == {JobState.SUCCEEDED}


def test_what_a_handler_leaves_in_a_context_variable_the_next_in_its_slot_does_not_see():
    variable = contextvars.ContextVar("variable", default="unset")
    seen: list[str] = []

    async def work(job):
        seen.append(variable.get())
        variable.set(str(job.job_id))
        await job.sleep(timedelta(seconds=1))

    def plain(job):
        seen.append(variable.get())
        variable.set("plain")

    app = handler_of(work)
    app.task("plain")(plain)
    settings = WorkerSettings(concurrency=1, prefetch=5)
    with opened_story(app=app, settings=settings) as story:
        for task in ("work", "plain", "work", "plain"):
            story.enqueue(task=task)
        story.to(30)
    assert seen == ["unset"] * 4


def test_starts_and_outcomes_that_come_together_are_written_together():
    """The first goes out at once, alone; what gathered meanwhile goes in one write."""
    settings = WorkerSettings(concurrency=20, prefetch=20)

    async def work(job):
        await job.sleep(timedelta(microseconds=1_000_000 + 100 * (job.job_id.int % 20)))

    app = handler_of(work)
    with opened_story(app=app, settings=settings, store_class=Spy) as story:
        jobs = [story.enqueue() for _ in range(20)]
        story.to(30)
        assert {story.row(job).state for job in jobs} == {JobState.SUCCEEDED}
    assert sum(SIZES["start"]) == sum(SIZES["finish"]) == 20
    assert SIZES["start"] == [20]
    # Spread over 2 ms, with 2 ms a write: one at once, the rest in the next.
    assert SIZES["finish"] == [1, 19]


def test_a_write_carries_no_more_than_a_batch():
    settings = WorkerSettings(concurrency=20, prefetch=20, batch=8)
    with opened_story(app=working_app(seconds=1), settings=settings, store_class=Spy) as story:
        for _ in range(20):
            story.enqueue()
        story.to(30)
    assert max(SIZES["start"]) <= 8
    assert max(SIZES["finish"]) <= 8
    assert sum(SIZES["finish"]) == 20


def test_failpoints_are_passed_in_the_order_a_job_meets_them():
    passed: list[tuple[str, bool]] = []

    async def failpoint(name, job, /):
        passed.append((name, job is not None))

    async def work(job):
        await job.sleep(timedelta(seconds=20))

    solo = Solo(handler_of(work), failpoint=failpoint)
    solo.enqueue()
    solo.bench.until(25 * SECOND)
    names = [name for name, _ in passed]
    beats = ["before_heartbeat", "after_heartbeat"]
    assert [name for name in names if name not in beats] == [name for name in FAILPOINTS if name not in beats]
    assert [name for name in names if name in beats] == beats
    assert all(about_job == (name not in beats) for name, about_job in passed)
    solo.bench.bury()


# Lost messages.


@pytest.mark.parametrize("loss", [RequestLost, ReplyLost])
def test_a_start_is_asked_again_after_a_lost_message_and_the_job_runs_once(loss):
    with opened_story(faults=[loss(host="w1", verb="start")]) as story:
        job = story.enqueue()
        story.to(30)
        assert story.row(job).state is JobState.SUCCEEDED
        assert len(story.events("executing", job=job)) == 1
        assert story.row(job).attempt == 1
        assert len(story.events("started", job=job)) == (2 if loss is ReplyLost else 1)


def test_an_outcome_is_written_again_after_a_lost_reply_and_recognised_as_its_own():
    with opened_story(faults=[ReplyLost(host="w1", verb="finish")]) as story:
        job = story.enqueue()
        story.to(30)
        assert story.kinds(job)[-2:] == ["finished", "recovered"]
        assert story.row(job).state is JobState.SUCCEEDED
        assert len(story.events("executing", job=job)) == 1


def test_a_retry_whose_reply_was_lost_and_that_was_claimed_again_meanwhile_is_refused_and_harmless():
    async def work(job):
        if job.attempt == 1:
            raise ValueError("first")

    app = handler_of(work, retry=Retry(base_us=0, cap_us=0))
    settings = WorkerSettings(concurrency=2, prefetch=2, poll_interval_us=1 * SECOND)
    with opened_story(app=app, settings=settings, faults=[ReplyLost(host="w1", verb="finish")]) as story:
        job = story.enqueue()
        story.to(60)
        assert story.row(job).state is JobState.SUCCEEDED
        assert story.row(job).attempt == 2
        assert len(story.events("executing", job=job)) == 2


def test_an_outcome_is_not_given_up_while_the_store_is_away_however_long():
    faults = [Partition(host="w1", when=At(5 * SECOND), for_us=40 * SECOND)]
    with opened_story(app=working_app(seconds=6), faults=faults) as story:
        job = story.enqueue()
        story.to(100)
        assert story.kinds(job)[-1] == "finished"
        assert 45 < story.times_s("finished", job)[0] < 50
        assert len(story.events("executing", job=job)) == 1


def test_a_worker_on_a_fast_clock_is_told_that_it_is_early_and_runs_no_job_before_it_is_due():
    with opened_story(workers={"w1": 100_000}) as story:
        job = story.enqueue(delay_s=25)
        story.to(60)
        assert story.times_s("fired", job)[0] < 25
        assert story.events("early", job=job) != []
        (ran,) = story.events("executing", job=job)
        assert ran.db_us >= ran.due_us
        assert ran.db_us - ran.due_us < 20 * MS
        assert story.row(job).attempt == 1


# The drain.


def test_a_stopping_worker_gives_back_what_has_not_started_and_waits_for_what_runs():
    with opened_story(app=working_app(seconds=20)) as story:
        running, waiting, backlog = story.enqueue(), story.enqueue(delay_s=25), story.enqueue(delay_s=1)
        backlogged = story.enqueue(delay_s=2)
        story.to(5)
        story.stop()
        story.to(6)
        for job in (waiting, backlogged):
            row = story.row(job)
            assert (row.state, row.attempt, row.lease_token, row.lease_owner) == (
                JobState.PENDING,
                0,
                1,
                None,
            )
            assert story.kinds(job)[-1] == "released"
        assert story.row(waiting).run_at_us == EPOCH_US + 25 * SECOND
        story.to(30)
        assert {story.row(job).state for job in (running, backlog)} == {JobState.SUCCEEDED}
        assert story.row(waiting).state is JobState.PENDING
        assert len(story.workers["w1"][0].held) == 0
        assert not story.world.hosts["w1"].life.tasks, "everything has ended"


def test_what_was_given_back_runs_elsewhere_at_its_time_with_all_its_attempts():
    with opened_story(workers=["w1"]) as story:
        job = story.enqueue(delay_s=25)
        story.to(5)
        story.stop()
        story.to(6)
        story.world.boot(story.worker("w2"))
        story.to(60)
        (ran,) = story.events("executing", job=job)
        assert (ran.host, ran.attempt, ran.token) == ("w2", 1, 2)
        assert ran.db_us - ran.due_us < 10 * MS


def test_the_heartbeat_beats_on_during_a_drain_longer_than_the_lease():
    settings = WorkerSettings(concurrency=2, prefetch=2, drain_timeout_us=300 * SECOND)
    with opened_story(app=working_app(seconds=200), settings=settings, workers=["w1", "w2"]) as story:
        jobs = [story.enqueue(), story.enqueue()]
        story.to(5)
        story.stop("w1")
        story.stop("w2")
        story.to(290)
        assert {story.row(job).state for job in jobs} == {JobState.SUCCEEDED}
        assert {story.row(job).attempt for job in jobs} == {1}
        assert story.events("aborted", "swept") == []
        assert max(story.times_s("renewed")) > 180


def test_a_drain_that_runs_out_of_time_stops_the_handlers_and_writes_a_retry_due_now():
    seen: list[Any] = []
    settings = WorkerSettings(concurrency=2, prefetch=2, drain_timeout_us=10 * SECOND)
    with opened_story(app=working_app(seconds=1000, seen=seen), settings=settings) as story:
        job = story.enqueue()
        story.to(5)
        story.stop()
        story.to(30)
        row = story.row(job)
        assert row.state is JobState.PENDING
        assert row.attempt == 1
        assert row.last_error == "LeaseLost: interrupted: the worker was shut down"
        assert seen == [("began", job, 1), ("cancelled", job, 1)]
        (ended,) = story.events("finished", job=job)
        assert ended.time_us - 15 * SECOND < 10 * MS
        assert row.run_at_us == ended.db_us
        assert not story.world.hosts["w1"].life.tasks


def test_a_handler_that_returns_at_the_very_instant_the_drain_gives_up_has_succeeded():
    """Finished work is recorded as finished: running it again would be the drain's own doing."""

    async def work(job):
        await job.sleep(timedelta(seconds=15))

    solo = Solo(handler_of(work), drain_timeout_us=10 * SECOND)
    solo.enqueue()
    solo.bench.until(5 * SECOND)
    solo.worker.stop()
    solo.bench.until(60 * SECOND)
    assert ("executed", "succeeded") in solo.observed
    assert solo.state() is JobState.SUCCEEDED
    assert solo.task.done()


def test_what_a_handler_still_returns_after_the_drain_gave_up_on_it_does_not_count():
    """It may have been stopped half way, and says nothing about it: the job is run again."""

    async def work(job):
        try:
            await job.sleep(timedelta(seconds=1000))
        except CancelledError:
            return

    solo = Solo(handler_of(work), drain_timeout_us=10 * SECOND)
    solo.enqueue()
    solo.bench.until(5 * SECOND)
    solo.worker.stop()
    solo.bench.until(60 * SECOND)
    assert solo.state() is JobState.PENDING


def test_a_handler_that_will_not_stop_does_not_keep_a_stopping_worker_for_ever():
    async def work(job):
        while True:
            try:
                await job._clock.sleep_us(1000 * SECOND)
            except CancelledError:
                continue

    solo = Solo(handler_of(work), drain_timeout_us=10 * SECOND)
    solo.enqueue()
    solo.bench.until(5 * SECOND)
    solo.worker.stop()
    solo.bench.until(15 * SECOND + 2 * solo.worker.settings.request_timeout_us + 1)
    assert solo.task.done()
    assert any(kind == "dropped" for kind, _ in solo.observed)


@pytest.mark.parametrize("away_s", [0, 4])
def test_a_store_that_is_away_does_not_keep_a_stopping_worker_for_ever(away_s):
    settings = WorkerSettings(concurrency=2, prefetch=2, drain_timeout_us=10 * SECOND)
    faults = [Partition(host="w1", when=At(away_s * SECOND), for_us=10_000 * SECOND)]
    with opened_story(app=working_app(seconds=8), settings=settings, faults=faults) as story:
        story.enqueue()
        story.enqueue(delay_s=20)
        story.to(5)
        story.stop()
        story.to(40)
        assert not story.world.hosts["w1"].life.tasks


def test_jobs_granted_by_a_poll_under_way_when_the_worker_was_stopped_are_given_back():
    latency = Latency(500 * MS, 500 * MS)
    with opened_story(latency=latency) as story:
        job = story.enqueue(delay_s=15)
        story.to(1.6)
        story.stop()
        story.to(20)
        assert story.kinds(job) == ["claimed", "finished", "released"]
        assert story.row(job).state is JobState.PENDING
        assert story.row(job).attempt == 0


def test_an_idle_worker_stops_at_once_and_stopping_twice_is_harmless():
    with opened_story() as story:
        story.to(3)
        story.stop()
        story.stop()
        story.to(3.1)
        assert not story.world.hosts["w1"].life.tasks


# Parts that break.


class BreaksLater(Poller):
    """A poller with a mistake in it."""

    async def run(self) -> None:
        await super()._claim()
        await self._clock.sleep_us(5 * SECOND)
        raise ZeroDivisionError("a mistake in the worker itself")


class BrokenWorker(Worker):
    poller_class = BreaksLater


class BreaksBeating(Heartbeat):
    async def beat(self) -> None:
        raise KeyError("no beat")


class BeatlessWorker(Worker):
    heartbeat_class = BreaksBeating


def test_a_broken_part_ends_the_worker_with_its_error_and_stops_all_the_others():
    seen: list[str] = []

    async def work(job):
        try:
            await job.sleep(timedelta(seconds=1000))
        except CancelledError:
            seen.append("cancelled")
            raise

    solo = Solo(handler_of(work), worker_class=BrokenWorker)
    solo.enqueue()
    solo.bench.until(10 * SECOND)
    assert isinstance(solo.task.error(), ZeroDivisionError)
    # The handler too: without a heartbeat its lease would end, and somebody else would run the job beside it.
    assert seen == ["cancelled"]
    assert not solo.bench.host.life.tasks


def test_a_worker_that_is_cancelled_takes_its_handlers_with_it():
    seen: list[str] = []

    async def work(job):
        try:
            await job.sleep(timedelta(seconds=1000))
        finally:
            seen.append("stopped")

    solo = Solo(handler_of(work))
    solo.enqueue()
    solo.bench.until(10 * SECOND)
    solo.task.cancel()
    solo.bench.until(11 * SECOND)
    assert type(solo.task.error()) is CancelledError
    assert seen == ["stopped"]
    assert not solo.bench.host.life.tasks


@pytest.mark.parametrize(
    ("worker_class", "error"), [(BrokenWorker, ZeroDivisionError), (BeatlessWorker, KeyError)]
)
def test_a_broken_worker_ends_the_laboratorys_run_with_its_error(worker_class, error):
    with opened_story(worker_class=worker_class) as story, pytest.raises(error):
        story.to(60)
    gc.collect()


def test_a_part_that_breaks_during_the_drain_ends_the_drain():
    class BreaksOnStop(Poller):
        async def run(self) -> None:
            await super().run()
            raise ZeroDivisionError("at the end")

    class Breaking(Worker):
        poller_class = BreaksOnStop

    async def work(job):
        await job.sleep(timedelta(seconds=1000))

    solo = Solo(handler_of(work), worker_class=Breaking)
    solo.enqueue()
    solo.bench.until(5 * SECOND)
    solo.worker.stop()
    solo.bench.until(6 * SECOND)
    assert isinstance(solo.task.error(), ZeroDivisionError)


def test_a_store_that_is_unavailable_breaks_nothing():
    class Away(ModelStore):
        async def claim(self, request, /):
            raise StoreUnavailable("away")

        async def sweep(self, *, limit):
            raise StoreUnavailable("away")

    with opened_story(store_class=Away) as story:
        story.to(60)
        assert story.workers["w1"][0].held.room == 4
        assert {event.detail for event in story.events("unavailable")} == {"poll: away"}


# Identity.


def test_a_restarted_worker_has_another_owner_than_before_it():
    def restarted(story: Story) -> list[str]:
        story.to(1)
        story.world.hosts["w1"].crash()
        story.world.hosts["w1"].restart()
        story.world.boot(story.world.hosts["w1"])
        return [worker.owner for worker in story.workers["w1"]]

    with opened_story() as story:
        first, second = restarted(story)
    with opened_story() as again:
        assert restarted(again) == [first, second]
    assert first != second
    assert first.startswith("w1/")
