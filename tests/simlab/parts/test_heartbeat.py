"""The heartbeat in virtual time: every held job in one call, losers stopped at once, a cut-off worker in time."""

import itertools
from collections.abc import Iterator
from datetime import timedelta

import pytest

from scheduler.app import App
from scheduler.clock import CancelledError
from scheduler.errors import LeaseLost
from scheduler.heartbeat import Heartbeat
from scheduler.held import Held, Phase
from scheduler.jobs import JobState
from scheduler.policy import WorkerSettings
from scheduler.store import CancelResult
from simlab.experiment import simulate
from simlab.faults import At, Partition, Pause, Reached, ReplyLost, RequestLost
from simlab.network import Latency
from simlab.store import ModelStore
from tests.simlab.bench import MS, SECOND, Bench, Story, at_once, held_job, opened_story, working_app

BEATS: list[tuple[int, set[int]]] = []


class Spy(ModelStore):
    """Notes which jobs each heartbeat covers."""

    async def heartbeat(self, refs, /, *, lease_us):
        BEATS.append((self._now_us(), {ref.job_id.int for ref in refs}))
        return await super().heartbeat(refs, lease_us=lease_us)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    BEATS.clear()
    yield
    BEATS.clear()


def taken_by_a_thief(story: Story, job) -> None:
    """End a lease in the table and give the job to somebody else."""
    story.store._rows[job].lease_expires_at_us = 0
    at_once(story.store.sweep(limit=10))
    assert [lease.ref.job_id for lease in story.steal(lease_us=3600 * SECOND)] == [job]


def test_one_call_renews_what_runs_and_what_still_waits():
    with opened_story(app=working_app(seconds=100), store_class=Spy) as story:
        running = [story.enqueue(), story.enqueue()]
        waiting = [story.enqueue(), story.enqueue(delay_s=29)]
        story.to(20)
        assert [jobs for _, jobs in BEATS] == [{job.int for job in [*running, *waiting]}]
        assert len(story.events("renewed")) == 4


def test_more_jobs_than_a_batch_are_renewed_in_several_calls():
    settings = WorkerSettings(concurrency=3, prefetch=4, batch=3)
    with opened_story(app=working_app(seconds=100), settings=settings, store_class=Spy) as story:
        for _ in range(7):
            story.enqueue()
        story.to(20)
        assert [len(jobs) for _, jobs in BEATS] == [3, 3, 1]


def test_a_long_job_keeps_its_lease_for_ever():
    with opened_story(app=working_app(seconds=1000)) as story:
        job = story.enqueue()
        story.to(1010)
        assert story.row(job).state is JobState.SUCCEEDED
        assert story.row(job).attempt == 1
        renewed_s = story.times_s("renewed", job)
        gaps = [later - earlier for earlier, later in itertools.pairwise(renewed_s)]
        assert max(gaps) <= 15.01
        assert min(gaps) >= 13.4


def test_a_worker_that_holds_nothing_does_not_call():
    with opened_story(store_class=Spy) as story:
        story.to(200)
        assert BEATS == []


def test_a_lost_running_job_is_aborted_at_the_reply_and_nothing_of_it_is_written():
    seen: list = []
    with opened_story(app=working_app(seconds=100, seen=seen)) as story:
        job = story.enqueue()
        story.to(5)
        taken_by_a_thief(story, job)
        story.to(40)
        (rejected,) = story.events("rejected", job=job)
        (aborted,) = story.events("aborted", job=job)
        assert rejected.detail == "heartbeat"
        assert aborted.detail == "lost"
        assert aborted.time_us == rejected.time_us + 1 * MS
        assert [what for what, *_ in seen] == ["began", "cancelled"]
        assert story.row(job).lease_owner == "thief/0"
        assert story.row(job).lease_token == 2
        assert "finished" not in story.kinds(job)
        assert len(story.workers["w1"][0].held) == 0


def test_a_lost_waiting_job_is_let_go_and_never_fired():
    with opened_story() as story:
        job = story.enqueue(delay_s=28)
        story.to(5)
        story.store._rows[job].lease_token += 1
        story.to(60)
        assert [event.detail for event in story.events("aborted", job=job)] == ["lost"]
        assert story.times_s("fired", job) == []


def test_a_handler_may_learn_at_a_checkpoint_that_its_lease_is_lost():
    told: list[type] = []
    app = App()

    @app.task("work")
    async def work(job):
        try:
            await job.sleep(timedelta(seconds=100))
        except CancelledError:
            try:
                job.checkpoint()
            except LeaseLost as error:
                told.append(type(error))
            raise

    with opened_story(app=app) as story:
        job = story.enqueue()
        story.to(5)
        taken_by_a_thief(story, job)
        story.to(40)
    assert told == [LeaseLost]


@pytest.mark.parametrize("lose", ["both", "requests", "replies"])
def test_a_worker_that_is_cut_off_stops_its_job_before_the_database_ends_the_lease(lose):
    seen: list = []
    faults = [Partition(host="w1", when=At(20 * SECOND), for_us=500 * SECOND, lose=lose)]
    latency = Latency(300 * MS, 400 * MS)
    with opened_story(app=working_app(seconds=300, seen=seen), faults=faults, latency=latency) as story:
        job = story.enqueue()
        story.to(200)
        last = [event for event in story.events("renewed", job=job) if event.time_us < 20 * SECOND][-1]
        (aborted,) = story.events("aborted", job=job)
        assert aborted.detail == "expired"
        # By its own count: the lease from the moment the last renewal that was answered was sent.
        sent_us = aborted.time_us - story.settings.lease_us
        assert last.time_us - 400 * MS <= sent_us <= last.time_us - 300 * MS
        assert aborted.db_us < last.until_us
        assert ("cancelled", job, 1) in seen
        assert [event.detail for event in story.events("unavailable") if "heartbeat" in event.detail] != []


def test_a_job_of_a_cut_off_worker_is_run_by_another_only_after_it_was_stopped():
    faults = [Partition(host="w1", when=At(20 * SECOND), for_us=500 * SECOND)]
    with opened_story(app=working_app(seconds=300), faults=faults, workers=["w1"]) as story:
        job = story.enqueue()
        story.to(10)
        story.world.boot(story.worker("w2"))
        story.to(150)
        (stopped,) = story.events("aborted", job=job)
        again = [event for event in story.events("executing", job=job) if event.host == "w2"]
        assert len(again) == 1
        assert again[0].time_us > stopped.time_us


def test_a_waiting_job_of_a_cut_off_worker_is_let_go_too():
    settings = WorkerSettings(concurrency=1, prefetch=3)
    faults = [Partition(host="w1", when=At(20 * SECOND), for_us=500 * SECOND)]
    with opened_story(app=working_app(seconds=300), settings=settings, faults=faults) as story:
        jobs = [story.enqueue() for _ in range(3)]
        story.to(150)
        assert [event.detail for event in story.events("aborted")] == ["expired"] * 3
        assert {event.job for event in story.events("aborted")} == set(jobs)
        assert len(story.workers["w1"][0].held) == 0


@pytest.mark.parametrize("loss", [RequestLost, ReplyLost])
def test_two_heartbeats_lost_in_a_row_cost_nothing(loss):
    faults = [loss(host="w1", verb="heartbeat", nth=nth) for nth in (1, 2)]
    with opened_story(app=working_app(seconds=100), faults=faults) as story:
        job = story.enqueue()
        story.to(130)
        assert story.row(job).state is JobState.SUCCEEDED
        assert story.events("aborted") == []
        assert len(story.events("unavailable")) == 2


def test_an_unanswered_heartbeat_is_tried_again_after_the_retry_pause_and_not_after_the_interval():
    with opened_story(
        app=working_app(seconds=100), faults=[RequestLost(host="w1", verb="heartbeat")], store_class=Spy
    ) as story:
        story.enqueue()
        story.to(20)
        (unavailable,) = story.events("unavailable")
        assert (BEATS[0][0] - unavailable.db_us) == 1 * SECOND + 1 * MS


def test_a_row_locked_by_somebody_else_is_still_held_and_asked_for_again_soon():
    with opened_story(app=working_app(seconds=100), store_class=Spy) as story:
        job, other = story.enqueue(), story.enqueue()
        story.to(14)
        story.world.backend.lock([job])
        story.to(18)
        story.world.backend.unlock()
        story.to(20)
        assert story.events("aborted") == []
        assert len(BEATS) >= 3
        assert len(story.events("renewed", job=other)) == len(BEATS)
        assert 0 < len(story.events("renewed", job=job)) < len(BEATS)


# Cancellation.


def test_a_cancellation_reaches_a_running_handler_within_a_heartbeat_and_the_job_ends_cancelled():
    with opened_story(app=working_app(seconds=1000)) as story:
        job = story.enqueue()
        story.to(20)
        assert story.cancel(job) is CancelResult.REQUESTED
        assert story.row(job).state is JobState.RUNNING
        story.to(60)
        row = story.row(job)
        assert row.state is JobState.CANCELLED
        assert (row.finished_at_us - story.world.database_clock.now_us()) / SECOND + 60 < 20 + 15.1
        assert "its cancellation was asked for" in row.last_error


def test_a_handler_that_ignores_its_cancellation_ends_succeeded():
    app = App()

    @app.task("work")
    async def work(job):
        waits = job._clock.event()
        for _ in range(100):
            await waits.wait(1 * SECOND)
        assert job.cancel_requested

    with opened_story(app=app) as story:
        job = story.enqueue()
        story.to(20)
        story.cancel(job)
        story.to(120)
        assert story.row(job).state is JobState.SUCCEEDED


def test_a_handler_that_fails_after_a_cancellation_was_asked_for_is_not_run_again():
    app = App()

    @app.task("work", max_attempts=9)
    async def work(job):
        await job._clock.sleep_us(50 * SECOND)
        raise ValueError("broken anyway")

    with opened_story(app=app) as story:
        job = story.enqueue(max_attempts=9)
        story.to(20)
        story.cancel(job)
        story.to(120)
        assert story.row(job).state is JobState.CANCELLED
        assert story.row(job).attempt == 1


def test_a_handler_can_finish_its_step_and_stop_at_its_next_checkpoint():
    steps: list[int] = []
    app = App()

    @app.task("work")
    async def work(job):
        for step in range(10):
            await job._clock.sleep_us(10 * SECOND)
            steps.append(step)
            job.checkpoint()

    with opened_story(app=app) as story:
        job = story.enqueue()
        story.to(15)
        story.cancel(job)
        story.to(120)
        assert story.row(job).state is JobState.CANCELLED
        assert steps in ([0, 1], [0, 1, 2])


def test_a_sleep_in_a_handler_that_was_told_already_ends_at_once():
    woken: list[float] = []
    app = App()

    @app.task("work")
    async def work(job):
        await job._clock.sleep_us(40 * SECOND)
        woken.append(job._clock.now_us() / SECOND)
        await job.sleep(timedelta(hours=1))

    with opened_story(app=app) as story:
        job = story.enqueue()
        story.to(5)
        story.cancel(job)
        story.to(60)
        assert story.row(job).state is JobState.CANCELLED
        assert story.now_s == 60
        assert len(woken) == 1


def test_a_job_cancelled_while_it_waits_never_runs():
    with opened_story() as story:
        soon, later = story.enqueue(delay_s=8), story.enqueue(delay_s=25)
        story.to(5)
        assert story.cancel(soon) is story.cancel(later) is CancelResult.CANCELLED
        story.to(60)
        for job in (soon, later):
            assert story.row(job).state is JobState.CANCELLED
            assert story.times_s("executing", job) == []
        # One was due before the next heartbeat: the start was refused. The other was learnt of by the heartbeat.
        assert story.kinds(soon)[-2:] == ["rejected", "dropped"]
        assert story.kinds(later)[-2:] == ["rejected", "aborted"]


def test_a_lease_that_is_over_by_our_own_count_is_not_renewed() -> None:
    """After a pause of almost a lease, the beat comes before the watch: what is given up must not be kept from others."""
    plan = (Pause(host="w2", when=Reached("before_execute"), for_us=54_000_000),)
    result = simulate("crash-after-execution", seed=7, faults=plan)
    events = result.events
    aborted_s = events[events["kind"] == "aborted"]["time_s"]
    swept_s = events[events["kind"] == "swept"]["time_s"]
    assert len(aborted_s) == len(swept_s) > 0
    assert swept_s.max() < aborted_s.max() + 10


# The watch, by itself: nothing answers, nothing is renewed.


@pytest.fixture
def watched() -> Iterator[tuple[Bench, Held, list[tuple[int, int]]]]:
    """A watch over held jobs, and when it took which away."""
    bench, held, seen = Bench(), Held(9), []
    heartbeat = Heartbeat(
        clock=bench.clock,
        store=ModelStore(lambda: 0),
        held=held,
        settings=WorkerSettings(),
        failpoint=None,
        observe=lambda kind, job, detail: seen.append((bench.now_us, job.ref.job_id.int)),
    )
    bench.spawn(heartbeat.watch())
    bench.until(1)
    yield bench, held, seen
    bench.bury()


def test_a_job_that_comes_while_nothing_but_unwritten_outcomes_is_held_is_watched_too(watched):
    bench, held, seen = watched
    unwritten = held_job(1, lease_until_us=100)
    unwritten.phase = Phase.FINISHING
    held.add(unwritten)
    bench.until(200)
    held.add(held_job(2, lease_until_us=300))
    bench.until(1_000)
    assert seen == [(300, 2)]


def test_a_claim_with_a_slow_reply_that_ends_before_what_was_renewed_meanwhile_is_stopped_in_time(watched):
    bench, held, seen = watched
    held.add(held_job(1, lease_until_us=500))
    bench.until(100)
    held.add(held_job(2, lease_until_us=400))
    bench.until(1_000)
    assert seen == [(400, 2), (500, 1)]
