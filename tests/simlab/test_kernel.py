"""The kernel: integer time, cheap cancelling, the spin guard, and asyncio told apart by name."""

import asyncio
import math
import warnings

import pytest
import simpy

from simlab.clock import wait_for
from simlab.errors import ForeignAwait, InvalidExperiment, SimulationError, SimulationStalled
from simlab.kernel import DecidedKernel, Kernel, checked_delay
from tests.simlab.bench import SECOND, Bench, run_dry

# Time.


@pytest.mark.parametrize("delay", [1.0, 0.5, math.nan, math.inf, True, False, "1", None])
def test_a_delay_that_is_not_an_int_is_refused_and_leaves_the_clock_alone(delay):
    kernel = Kernel()
    with pytest.raises(SimulationError, match="must be an int of microseconds"):
        kernel.after(delay, lambda: None)
    with pytest.raises(SimulationError, match="must be an int of microseconds"):
        kernel.schedule(simpy.Event(kernel), delay=delay)
    kernel.run_until(10)
    assert kernel.now_us == 10


def test_a_negative_delay_is_refused():
    with pytest.raises(SimulationError, match="cannot be negative: -1 us"):
        checked_delay(-1)
    assert checked_delay(0) == 0


def test_time_stays_an_exact_integer_over_a_million_small_steps():
    kernel = Kernel()
    hits = [0]

    def again() -> None:
        hits[0] += 1
        if hits[0] < 100_000:
            kernel.after(1_001, again)

    kernel.after(1_001, again)
    kernel.run_until(200 * SECOND)
    assert hits == [100_000]
    assert type(kernel.now) is int
    assert kernel.now_us == 200 * SECOND


def test_run_until_does_what_is_before_the_instant_and_not_what_is_at_it():
    kernel = Kernel()
    done: list[int] = []
    for at in (9, 10, 11):
        kernel.after(at, lambda at=at: done.append(at))
    kernel.run_until(10)
    assert done == [9]
    kernel.run_until(10)
    assert done == [9]
    kernel.run_until(11)
    assert done == [9, 10]


def test_time_does_not_run_back():
    kernel = Kernel()
    kernel.run_until(10)
    with pytest.raises(SimulationError, match="cannot run back to 9 us: it is 10 us already"):
        kernel.run_until(9)


def test_what_falls_due_at_one_instant_happens_in_the_order_it_was_scheduled():
    kernel = Kernel()
    done: list[int] = []
    for number in range(50):
        kernel.after(7, lambda number=number: done.append(number))
    kernel.run_until(8)
    assert done == list(range(50))


# Cancelling.


def test_a_cancelled_event_does_not_happen_and_does_not_move_the_clock():
    kernel = Kernel()
    done: list[str] = []
    kernel.cancel(kernel.after(3600 * SECOND, lambda: done.append("never")))
    kernel.after(5, lambda: done.append("five"))
    run_dry(kernel)
    assert done == ["five"]
    assert kernel.now_us == 5


def test_cancelling_twice_or_after_it_happened_is_harmless():
    kernel = Kernel()
    done: list[str] = []
    event = kernel.after(5, lambda: done.append("five"))
    kernel.run_until(6)
    kernel.cancel(event)
    called_off = kernel.after(5, lambda: done.append("never"))
    kernel.cancel(called_off)
    kernel.cancel(called_off)
    kernel.run_until(20)
    assert done == ["five"]


def test_a_hundred_thousand_cancelled_events_keep_the_queue_small():
    kernel = Kernel()
    largest = 0
    for _ in range(100_000):
        kernel.cancel(kernel.after(3600 * SECOND, lambda: None))
        largest = max(largest, len(kernel._queue))
    assert largest < 5_000


def test_rebuilding_the_queue_keeps_what_is_still_to_happen_in_its_order():
    kernel = Kernel()
    done: list[int] = []
    for number in range(3_000):
        kernel.after(10 + number % 3, lambda number=number: done.append(number))
        kernel.cancel(kernel.after(5, lambda: done.append(-1)))
        kernel.cancel(kernel.after(5, lambda: done.append(-1)))
    kernel.run_until(100)
    assert done == sorted(range(3_000), key=lambda number: (number % 3, number))


def test_an_event_that_happened_before_anybody_waited_survives_the_rebuilding_of_the_queue():
    """Rebuilding must mark what it throws out as past, or whoever waits for it later waits for ever."""
    bench = Bench()
    happened = simpy.Event(bench.kernel)
    happened.succeed("value")
    for _ in range(5_000):
        bench.kernel.cancel(bench.kernel.after(SECOND, lambda: None))

    async def late():
        return await wait_for(happened)

    assert bench.run(late()) == "value"


# The spin guard.


def test_the_spin_guard_names_who_spins():
    bench = Bench(max_steps_at_one_instant=2_000)

    async def spin() -> None:
        while True:
            await bench.clock.sleep_us(0)

    async def honest() -> None:
        while True:
            await bench.clock.sleep_us(10)

    bench.spawn(honest(), "honest poller")
    bench.spawn(spin(), "w1 spinner")
    with pytest.raises(
        SimulationStalled, match=r"2,000 steps at 0 us without time advancing.*w1 spinner"
    ) as told:
        bench.until(SECOND)
    assert told.value.now_us == 0
    assert set(told.value.spinners) == {"w1 spinner"}
    bench.bury()


def test_many_steps_with_time_advancing_do_not_trip_the_spin_guard():
    bench = Bench(max_steps_at_one_instant=100)

    async def busy() -> None:
        for _ in range(50):
            for _ in range(40):
                await bench.clock.sleep_us(0)
            await bench.clock.sleep_us(1)

    bench.run(busy())
    assert bench.now_us == 50


# Errors.


def test_fail_ends_the_run_with_the_very_same_error():
    class Particular(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__("text")
            self.one, self.two = one, two

    kernel = Kernel()
    error = Particular(1, 2)
    kernel.after(5, lambda: kernel.fail(error))
    kernel.after(5, lambda: kernel.fail(ValueError("the second is not what broke it")))
    with pytest.raises(Particular) as told:
        kernel.run_until(10)
    assert told.value is error
    assert kernel.now_us == 5


def test_running_until_something_that_never_happens_is_an_error_and_not_a_hang():
    bench = Bench()

    async def waits_for_ever() -> None:
        await bench.clock.event().wait()

    with pytest.raises(RuntimeError, match="No scheduled events left"):
        bench.run(waits_for_ever())
    bench.bury()


# asyncio's loop.


def test_the_running_loop_is_back_after_a_run_and_after_a_broken_run():
    async def notebook() -> None:
        loop = asyncio.get_running_loop()
        kernel = Kernel()
        kernel.run_until(10)
        assert asyncio.get_running_loop() is loop
        kernel.after(1, lambda: kernel.fail(ValueError("broken")))
        with pytest.raises(ValueError, match="broken"):
            kernel.run_until(20)
        assert asyncio.get_running_loop() is loop
        await asyncio.sleep(0)

    asyncio.run(notebook())
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


def test_asking_for_the_loop_during_a_run_names_the_function():
    bench = Bench()

    async def handler() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            asyncio.get_running_loop().call_soon(print)

    with pytest.raises(ForeignAwait, match="handler, line") as told:
        bench.run(handler())
    assert "call_soon" in told.value.what


# Decisions: what is due at one instant, in another order.


def order(decisions: list[int], *, ties: int = 4) -> str:
    kernel = DecidedKernel(decisions)
    done: list[str] = []
    for letter in "abcdefgh"[:ties]:
        kernel.after(5, lambda letter=letter: done.append(letter))
    kernel.after(9, lambda: done.append("z"))
    kernel.run_until(20)
    return "".join(done)


@pytest.mark.parametrize(
    ("decisions", "expected"),
    [
        ([], "abcdz"),
        ([0, 0, 0], "abcdz"),
        ([1], "bacdz"),
        ([3, 2, 1], "dcbaz"),
        ([4, 5], "adbcz"),
        ([0, 0, 1], "abdcz"),
        ([7, 7, 7, 7, 7], "dbcaz"),
    ],
)
def test_each_decision_says_which_of_the_tied_events_is_next_and_then_the_order_is_that_of_scheduling(
    decisions, expected
):
    assert order(decisions) == expected


def test_an_event_alone_at_its_instant_takes_no_decision():
    kernel = DecidedKernel([1, 1])
    done: list[str] = []
    for at, letter in ((1, "a"), (2, "b"), (3, "c"), (3, "d")):
        kernel.after(at, lambda letter=letter: done.append(letter))
    kernel.run_until(10)
    assert done == ["a", "b", "d", "c"]
    assert kernel.decided == 1


def test_a_cancelled_event_takes_no_part_in_a_decision():
    kernel = DecidedKernel([1])
    done: list[str] = []
    kernel.cancel(kernel.after(5, lambda: done.append("never")))
    for letter in "ab":
        kernel.after(5, lambda letter=letter: done.append(letter))
    kernel.run_until(10)
    assert done == ["b", "a"]


def test_an_interruption_is_never_reordered():
    """A cancellation comes before what is due at its instant, whatever the decisions say."""
    for decisions in ([], [1, 1, 1, 1], [2, 2, 2, 2]):
        bench = Bench()
        bench.kernel = DecidedKernel(decisions)
        bench.host = bench.add("w1")
        seen: list[str] = []

        async def sleeps(bench=bench, seen=seen) -> None:
            await bench.clock.sleep_us(5)
            seen.append("slept")

        task = bench.spawn(sleeps())
        bench.kernel.after(5, lambda seen=seen: seen.append("other"))
        bench.until(4)
        task.cancel()
        bench.until(10)
        assert seen == ["other"]


@pytest.mark.parametrize("decision", [-1, 1.0, True, "1", None])
def test_a_decision_that_is_no_whole_number_is_refused(decision):
    with pytest.raises(InvalidExperiment, match=r"decision .*: must be a whole number of at least 0"):
        DecidedKernel([0, decision])
