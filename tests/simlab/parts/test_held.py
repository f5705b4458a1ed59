"""The held jobs: capacity, replacement by a newer claim, and who is told."""

from scheduler.held import Abort, Held, Phase
from tests.simlab.bench import Bench, held_job


def test_room_is_what_is_left_of_the_capacity():
    held = Held(3)
    jobs = [held_job(number) for number in (1, 2)]
    assert (len(held), held.room) == (0, 3)
    for job in jobs:
        held.add(job)
    assert (len(held), held.room) == (2, 1)
    assert list(held) == jobs
    held.drop(jobs[0])
    assert (len(held), held.room) == (1, 2)
    assert jobs[0].phase is Phase.GONE


def test_who_asked_is_told_of_each_job_and_of_each_drop():
    held, told = Held(9), []
    held.when_added(lambda job: told.append(job.ref.job_id.int))
    held.when_dropped(lambda: told.append("dropped"))
    one, two = held_job(1), held_job(2)
    held.add(one)
    held.add(two)
    held.drop(one)
    held.drop(one)
    held.drop(two)
    held.add(one)
    assert told == [1, 2, "dropped", "dropped", 1]


def test_a_newer_claim_of_the_same_job_replaces_the_older_and_stops_its_handler():
    bench = Bench()
    held = Held(9)
    older, newer = held_job(1, token=1), held_job(1, token=2)

    async def handler() -> None:
        await bench.clock.sleep_us(1000)

    held.add(older)
    older.task = bench.spawn(handler())
    bench.until(5)
    held.add(newer)
    assert older.phase is Phase.GONE
    assert older.abort is Abort.LOST
    assert list(held) == [newer]
    assert held.holds(newer)
    assert not held.holds(older)
    bench.until(6)
    assert older.task.done()
    held.drop(older)
    assert list(held) == [newer], "dropping the older claim must not drop the newer"


def test_the_set_may_change_while_it_is_walked():
    held = Held(9)
    for number in range(1, 6):
        held.add(held_job(number))
    for job in held:
        held.drop(job)
    assert len(held) == 0


def test_a_request_to_cancel_is_told_once_and_also_to_who_asks_later():
    job, told = held_job(), []
    job.request_cancel()
    job.when_cancel_requested(lambda: told.append("late"))
    job.request_cancel()
    assert told == ["late"]
    other = held_job(2)
    other.when_cancel_requested(lambda: told.append("told"))
    other.request_cancel()
    other.request_cancel()
    assert told == ["late", "told"]


def test_a_job_is_taken_away_for_the_first_reason_only():
    job = held_job()
    job.take_away(Abort.EXPIRED)
    job.take_away(Abort.LOST)
    assert job.abort is Abort.EXPIRED
