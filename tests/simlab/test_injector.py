"""The injector: each fault strikes when it says, whom it says, for as long as it says."""

from datetime import timedelta

import pytest

from scheduler.app import App
from scheduler.jobs import JobState
from simlab.errors import InvalidExperiment
from simlab.faults import (
    At,
    ClockDrift,
    ClockOffset,
    ClockStep,
    Crash,
    Delayed,
    LockHeld,
    Partition,
    Pause,
    Reached,
    ReplyLost,
    RequestLost,
    SlowStore,
    StoreClockStep,
    StoreRestart,
)
from simlab.hosts import EPOCH_US, HostState
from tests.simlab.bench import MS, SECOND, opened_story, working_app


def at(second: float) -> At:
    return At(round(second * SECOND))


def test_a_crash_at_an_instant_and_the_way_back():
    with opened_story(faults=[Crash(host="w1", when=at(5), restart_after_us=3 * SECOND)]) as story:
        host = story.world.hosts["w1"]
        story.to(4.999)
        assert host.state is HostState.UP
        story.to(5.001)
        assert host.state is HostState.CRASHED
        story.to(8.001)
        assert host.state is HostState.UP
        assert host.incarnation == 2
        assert [(event.time_us, event.detail) for event in story.events("fault")] == [
            (5 * SECOND, "crash"),
            (8 * SECOND, "restart"),
        ]
        job = story.enqueue()
        story.to(20)
        assert story.row(job).state is JobState.SUCCEEDED
        assert {event.incarnation for event in story.events("executing")} == {2}


def test_a_host_that_never_comes_back_stays_down():
    with opened_story(faults=[Crash(host="w1", when=at(5))]) as story:
        story.to(1000)
        assert story.world.hosts["w1"].state is HostState.CRASHED
        assert max(event.time_us for event in story.events()) == 5 * SECOND


def test_a_crash_at_a_failpoint_strikes_at_its_nth_time_counted_over_all_lives():
    plan = [
        Crash(host="w1", when=Reached("after_execute", 2), restart_after_us=SECOND),
        Crash(host="w1", when=Reached("after_execute", 3), restart_after_us=SECOND),
    ]
    with opened_story(faults=plan) as story:
        jobs = [story.enqueue(delay_s=delay) for delay in (1, 10, 20, 30)]
        story.to(300)
        crashes = [event.time_us for event in story.events("fault") if event.detail == "crash"]
        ends = [event.time_us for event in story.events("executed")]
        assert crashes == ends[1:3], "at the second and at the third execution of all"
        assert {story.row(job).state for job in jobs} == {JobState.SUCCEEDED}


def test_nothing_runs_between_the_failpoint_and_the_loss_of_power():
    with opened_story(faults=[Crash(host="w1", when=Reached("after_execute"))]) as story:
        job = story.enqueue()
        story.to(30)
        assert story.kinds(job) == ["claimed", "fired", "started", "executing", "executed"]


def test_a_pause_at_a_failpoint_stands_still_there_and_then_goes_on():
    with opened_story(faults=[Pause(host="w1", when=Reached("after_execute"), for_us=20 * SECOND)]) as story:
        job = story.enqueue()
        story.to(30)
        (executed_s,) = story.times_s("executed", job)
        (finished_s,) = story.times_s("finished", job)
        assert finished_s - executed_s == pytest.approx(20.001)
        assert [event.detail for event in story.events("fault")] == ["pause", "resume"]


@pytest.mark.parametrize(
    ("pauses", "still"),
    [
        ([(5, 10), (7, 2)], (5, 15)),
        ([(5, 2), (6, 20)], (5, 26)),
        ([(5, 5), (5, 5)], (5, 10)),
    ],
)
def test_overlapping_pauses_last_until_the_last_of_them_ends(pauses, still):
    plan = [Pause(host="w1", when=at(begin), for_us=length * SECOND) for begin, length in pauses]
    with opened_story(faults=plan) as story:
        story.to(60)
        notes = [(event.detail, event.time_us / SECOND) for event in story.events("fault")]
        assert notes == [("pause", still[0]), ("resume", still[1])]


def test_a_pause_that_a_crash_ended_does_not_wake_a_later_one():
    plan = [
        Pause(host="w1", when=at(5), for_us=100 * SECOND),
        Crash(host="w1", when=at(10), restart_after_us=5 * SECOND),
        Pause(host="w1", when=at(90), for_us=60 * SECOND),
    ]
    with opened_story(faults=plan) as story:
        story.to(106)
        assert story.world.hosts["w1"].state is HostState.PAUSED
        story.to(151)
        assert story.world.hosts["w1"].state is HostState.UP


def test_a_fault_of_a_crashed_host_does_nothing():
    plan = [
        Crash(host="w1", when=at(5)),
        Pause(host="w1", when=at(6), for_us=1),
        Crash(host="w1", when=at(7)),
    ]
    with opened_story(faults=plan) as story:
        story.to(20)
        assert [event.detail for event in story.events("fault")] == ["crash"]


def test_a_fault_strikes_its_own_host_only():
    plan = [Pause(host="w2", when=at(5), for_us=50 * SECOND), RequestLost(host="w2", verb="claim")]
    with opened_story(faults=plan, workers=["w1", "w2"]) as story:
        story.to(10)
        assert story.world.hosts["w1"].state is HostState.UP
        assert story.world.hosts["w2"].state is HostState.PAUSED
        assert {event.host for event in story.events("fault")} == {"w2"}


@pytest.mark.parametrize("kind", [RequestLost, ReplyLost])
def test_a_message_is_lost_at_its_nth_call_of_its_verb(kind):
    with opened_story(faults=[kind(host="w1", verb="claim", nth=3)]) as story:
        story.to(60)
        (note,) = story.events("fault")
        assert note.detail == str(kind(host="w1", verb="claim", nth=3))
        (unavailable,) = story.events("unavailable")
        assert 9 < unavailable.time_us / SECOND < 13


def test_a_call_that_is_held_up_is_late_by_that():
    plan = [Delayed(host="w1", verb="start", request_us=300 * MS, reply_us=200 * MS)]
    with opened_story(faults=plan) as story:
        job = story.enqueue()
        story.to(20)
        (fired_s,), (started_s,), (ran_s,) = (
            story.times_s(kind, job) for kind in ("fired", "started", "executing")
        )
        assert started_s - fired_s == pytest.approx(0.301)
        assert ran_s - started_s == pytest.approx(0.201)


def test_a_cut_lasts_its_time_and_ends():
    with opened_story(faults=[Partition(host="w1", when=at(2), for_us=20 * SECOND)]) as story:
        job = story.enqueue(delay_s=3)
        story.to(60)
        # Claimed before the cut; its start was asked for until the network was back.
        assert 22 < story.times_s("executing", job)[0] < 26
        assert story.row(job).state is JobState.SUCCEEDED


def test_a_slow_store_is_slow_for_its_time():
    with opened_story(faults=[SlowStore(when=at(2), for_us=10 * SECOND, extra_us=500 * MS)]) as story:
        during, after = story.enqueue(delay_s=5), story.enqueue(delay_s=20)
        story.to(40)
        assert story.times_s("executing", during)[0] == pytest.approx(5.503, abs=0.01)
        assert story.times_s("executing", after)[0] == pytest.approx(20.003, abs=0.01)


def test_a_store_that_restarts_refuses_calls_and_keeps_its_rows():
    with opened_story(faults=[StoreRestart(when=at(2), down_us=10 * SECOND)]) as story:
        job = story.enqueue(delay_s=5)
        story.to(40)
        assert 12 < story.times_s("executing", job)[0] < 15
        assert story.row(job).state is JobState.SUCCEEDED
        assert any("refused or lost" in event.detail for event in story.events("unavailable"))


@pytest.mark.parametrize("by_s", [-8, 8])
def test_the_stores_clock_is_stepped_and_nothing_runs_before_it_is_due_by_it(by_s):
    with opened_story(faults=[StoreClockStep(when=at(3), by_us=by_s * SECOND)]) as story:
        job = story.enqueue(delay_s=20)
        story.to(2.9)
        assert story.world.database_clock.now_us() == EPOCH_US + round(2.9 * SECOND)
        story.to(60)
        assert story.world.database_clock.now_us() == EPOCH_US + (60 + by_s) * SECOND
        (ran,) = story.events("executing", job=job)
        assert ran.db_us >= ran.due_us


def test_clocks_are_offset_stepped_and_made_to_drift():
    plan = [
        ClockOffset(host="w1", by_us=5 * SECOND),
        ClockStep(host="w1", when=at(10), by_us=-7 * SECOND),
        ClockDrift(host="w1", when=at(20), ppm=1000),
    ]
    with opened_story(faults=plan) as story:
        host = story.world.hosts["w1"]
        story.to(5)
        assert host.wall_us() == EPOCH_US + 10 * SECOND
        story.to(15)
        assert host.wall_us() == EPOCH_US + 13 * SECOND
        assert host.monotonic_us() == 15 * SECOND
        story.to(120)
        assert host.monotonic_us() == 120 * SECOND + 100 * MS
        assert len(story.events("fault")) >= 2


def test_a_locked_row_is_passed_over_until_the_transaction_ends():
    with opened_story(faults=[LockHeld(when=at(1), for_us=20 * SECOND, job=0)]) as story:
        story.to(0.5)
        job = story.enqueue(delay_s=2)
        story.world.recorder.enqueued_jobs.append(job)
        story.to(60)
        assert story.row(job).state is JobState.SUCCEEDED


def test_a_plan_is_checked_before_anything_runs():
    with (
        pytest.raises(InvalidExperiment, match="no host 'w9'"),
        opened_story(faults=[Crash(host="w9", when=at(1))]),
    ):
        raise AssertionError("never")


def test_a_handler_suspended_at_the_crash_does_not_go_on_after_the_restart():
    seen: list[tuple[int, str]] = []
    app = App()

    @app.task("work")
    async def work(job):
        seen.append((job.attempt, "began"))
        await job.sleep(timedelta(seconds=10))
        seen.append((job.attempt, "ended"))

    with opened_story(app=app, faults=[Crash(host="w1", when=at(5), restart_after_us=SECOND)]) as story:
        story.enqueue()
        story.to(100)
    assert seen == [(1, "began"), (2, "began"), (2, "ended")]


def test_without_faults_there_is_no_failpoint_and_no_cost():
    with opened_story(app=working_app()) as story:
        assert story.world.injector.failpoint(story.world.hosts["w1"].life) is None
