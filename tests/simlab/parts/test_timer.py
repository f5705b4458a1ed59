"""The timer in virtual time: fires at exactly the due microsecond, and a sooner job interrupts the wait."""

from scheduler.held import Abort, Phase
from scheduler.timer import Timer
from tests.simlab.bench import SECOND, Bench, held_job


class Timing:
    def __init__(self) -> None:
        self.bench = Bench()
        self.fired: list[tuple[int, int]] = []
        self.timer = Timer(clock=self.bench.clock, fire=self._fire)
        self.task = self.bench.spawn(self.timer.run(), "timer")

    def _fire(self, job) -> None:
        self.fired.append((job.ref.job_id.int, self.bench.now_us))

    def push(self, number: int, fire_at_us: int):
        job = held_job(number, fire_at_us=fire_at_us)
        self.timer.push(job)
        return job


def test_each_job_is_fired_at_exactly_its_microsecond():
    timing = Timing()
    for number, at in ((1, 500_001), (2, 3), (3, 500_000), (4, 86_400 * SECOND + 1)):
        timing.push(number, at)
    timing.bench.until(86_400 * SECOND + 2)
    assert timing.fired == [(2, 3), (3, 500_000), (1, 500_001), (4, 86_400 * SECOND + 1)]


def test_a_sooner_job_pushed_during_the_wait_is_fired_at_its_own_time():
    """What a timer that sleeps until the next job gets wrong."""
    timing = Timing()
    timing.push(1, 3600 * SECOND)
    timing.bench.until(10 * SECOND)
    timing.push(2, 20 * SECOND)
    timing.bench.until(15 * SECOND)
    timing.push(3, 15 * SECOND + 1)
    timing.bench.until(3600 * SECOND + 1)
    assert timing.fired == [(3, 15 * SECOND + 1), (2, 20 * SECOND), (1, 3600 * SECOND)]


def test_a_later_job_pushed_during_the_wait_changes_nothing():
    timing = Timing()
    timing.push(1, 100)
    timing.bench.until(50)
    timing.push(2, 200)
    timing.bench.until(300)
    assert timing.fired == [(1, 100), (2, 200)]


def test_an_overdue_job_is_fired_at_once_even_on_a_timer_that_was_empty():
    timing = Timing()
    timing.bench.until(SECOND)
    timing.push(1, 5)
    timing.bench.until(SECOND + 1)
    assert timing.fired == [(1, SECOND)]


def test_jobs_due_at_one_instant_are_fired_in_the_order_they_came():
    timing = Timing()
    for number in range(1, 101):
        timing.push(number, 50)
    timing.bench.until(51)
    assert timing.fired == [(number, 50) for number in range(1, 101)]


def test_jobs_pushed_at_the_very_instant_of_firing_are_not_missed():
    timing = Timing()
    timing.push(1, 100)
    timing.bench.kernel.after(100, lambda: timing.push(2, 100))
    timing.bench.kernel.after(100, lambda: timing.push(3, 101))
    timing.bench.until(200)
    assert timing.fired == [(1, 100), (2, 100), (3, 101)]


def test_a_job_that_was_let_go_meanwhile_is_not_fired():
    timing = Timing()
    lost = timing.push(1, 100)
    timing.push(2, 100)
    timing.bench.until(50)
    lost.take_away(Abort.LOST)
    lost.phase = Phase.GONE
    timing.bench.until(200)
    assert timing.fired == [(2, 100)]


def test_an_idle_timer_waits_for_a_push_and_not_for_a_moment_to_look_again():
    timing = Timing()
    timing.bench.until(1)
    steps = []
    step = timing.bench.kernel.step
    timing.bench.kernel.step = lambda: steps.append(step())  # type: ignore[method-assign]
    timing.bench.until(3600 * SECOND)
    assert len(steps) <= 1
