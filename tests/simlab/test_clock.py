"""SimClock: ordinary async code in virtual time, and each trap of running it on SimPy."""

import asyncio
import contextvars
import gc
import math
import time
from datetime import timedelta

import pytest

from scheduler.app import App
from scheduler.clock import CancelledError
from scheduler.errors import StoreUnavailable
from scheduler.jobs import JobState
from simlab.clock import SimTask, wait_for
from simlab.errors import ForeignAwait, SimulationError
from tests.simlab.bench import MS, SECOND, Bench, Story, at_once, opened_story, run_dry

# Awaiting what is not the clock's.


async def sleeps_zero():
    await asyncio.sleep(0)


async def sleeps():
    await asyncio.sleep(1)


async def waits_for_an_asyncio_event():
    await asyncio.Event().wait()


async def makes_a_future():
    await asyncio.Future()


async def waits_on_a_future_made_elsewhere():
    loop = asyncio.new_event_loop()
    try:
        await loop.create_future()
    finally:
        loop.close()


async def runs_in_a_thread():
    await asyncio.to_thread(time.monotonic)


async def uses_a_timeout():
    async with asyncio.timeout(1):
        await asyncio.sleep(0)


async def takes_from_a_queue():
    await asyncio.Queue().get()


async def nests_deeply():
    async def inner():
        await sleeps_zero()

    await inner()


FOREIGN = [
    (sleeps_zero, "sleep"),
    (sleeps, "sleep"),
    (waits_for_an_asyncio_event, "waits_for_an_asyncio_event"),
    (makes_a_future, "makes_a_future"),
    (waits_on_a_future_made_elsewhere, "waits_on_a_future_made_elsewhere"),
    (runs_in_a_thread, "runs_in_a_thread"),
    (uses_a_timeout, "uses_a_timeout"),
    (takes_from_a_queue, "takes_from_a_queue"),
    (nests_deeply, "sleep"),
]


@pytest.mark.parametrize("in_a_notebook", [False, True], ids=["plain", "under a running loop"])
@pytest.mark.parametrize(("foreign", "named"), FOREIGN, ids=[foreign.__name__ for foreign, _ in FOREIGN])
def test_awaiting_something_of_asyncio_ends_the_run_and_names_the_await(foreign, named, in_a_notebook):
    """Even when the code around it swallows every Exception."""

    def run() -> None:
        bench = Bench()

        async def handler() -> None:
            try:
                await foreign()
            except Exception:  # noqa: BLE001 - the trap: a handler that swallows all
                await bench.clock.sleep_us(5)

        try:
            with pytest.raises(
                ForeignAwait, match=r"which cannot run in simulated time; await the clock"
            ) as told:
                bench.run(handler())
            assert named in told.value.where
            assert ", line " in told.value.where
            assert "\n" not in str(told.value)
        finally:
            bench.bury()

    if not in_a_notebook:
        return run()

    async def notebook() -> None:
        run()
        await asyncio.sleep(0)

    return asyncio.run(notebook())


def test_a_foreign_await_in_a_handler_of_the_scheduler_ends_the_run():
    app = App()

    @app.task("work")
    async def work(job):
        await asyncio.sleep(1)

    with opened_story(app=app) as story:
        story.enqueue()
        with pytest.raises(ForeignAwait, match="sleep"):
            story.to(10)


def test_an_event_of_another_simulation_is_refused():
    bench, other = Bench(), Bench()

    async def handler():
        await wait_for(other.kernel.after(5, lambda: None))

    with pytest.raises(ForeignAwait, match=r"handler, line .* awaits an event of another simulation"):
        bench.run(handler())


def test_what_does_not_wait_may_be_anybodys():
    bench = Bench()

    async def handler():
        async with asyncio.Lock():
            return "held"

    assert bench.run(handler()) == "held"


# Sleeping.


@pytest.mark.parametrize("duration", [1.0, math.nan, True, "1", None])
def test_a_duration_that_is_not_an_int_is_refused_and_time_goes_on(duration):
    bench = Bench()

    async def handler():
        with pytest.raises(SimulationError, match="must be an int"):
            await bench.clock.sleep_us(duration)
        if duration is not None:
            with pytest.raises(SimulationError, match="must be an int"):
                await bench.clock.event().wait(duration)
        await bench.clock.sleep_us(3)

    bench.run(handler())
    assert bench.now_us == 3


def test_a_negative_duration_is_refused():
    bench = Bench()

    async def handler():
        with pytest.raises(SimulationError, match="negative"):
            await bench.clock.sleep_us(-1)
        with pytest.raises(SimulationError, match="negative"):
            await bench.clock.event().wait(-1)

    bench.run(handler())


def test_sleeping_takes_exactly_its_time():
    bench = Bench()

    async def handler():
        await bench.clock.sleep_us(7)
        assert bench.clock.now_us() == 7
        await bench.clock.sleep_us(0)
        assert bench.clock.now_us() == 7

    bench.run(handler())


# Cancelling.


def test_cancellation_is_cancelled_error_which_except_exception_does_not_swallow():
    bench = Bench()
    seen = []

    async def handler():
        try:
            await bench.clock.sleep_us(SECOND)
        except Exception:  # noqa: BLE001 - the trap: SimPy's own Interrupt is an Exception
            seen.append("swallowed")
        seen.append("went on")

    task = bench.spawn(handler())
    bench.until(5)
    task.cancel()
    bench.until(6)
    assert task.done()
    assert type(task.error()) is CancelledError
    assert seen == []


def test_a_cancelled_task_may_clean_up_and_even_go_on():
    bench = Bench()
    seen = []

    async def handler():
        try:
            await bench.clock.sleep_us(SECOND)
        except CancelledError:
            await bench.clock.sleep_us(10)
            seen.append(bench.clock.now_us())
        await bench.clock.sleep_us(10)
        seen.append(bench.clock.now_us())

    task = bench.spawn(handler())
    bench.until(5)
    task.cancel()
    bench.until(SECOND)
    assert seen == [15, 25]
    assert task.error() is None


def test_cancelling_twice_at_once_delivers_one_cancellation():
    bench = Bench()
    seen = []

    async def handler():
        try:
            await bench.clock.sleep_us(SECOND)
        finally:
            await bench.clock.sleep_us(10)
            seen.append("cleaned up")

    task = bench.spawn(handler())
    bench.until(5)
    task.cancel()
    task.cancel()
    bench.until(SECOND)
    assert seen == ["cleaned up"]
    assert type(task.error()) is CancelledError


def test_a_task_cancelled_before_it_began_never_runs_as_with_asyncio():
    bench = Bench()
    seen = []

    async def handler():
        seen.append("ran")

    async def main():
        task = bench.spawn(handler())
        task.cancel()
        await task.join()
        return task

    task = bench.run(main())
    assert seen == []
    assert type(task.error()) is CancelledError


def test_a_task_that_cancels_itself_is_cancelled_at_its_next_await():
    bench = Bench()
    seen = []

    async def handler():
        tasks[0].cancel()
        seen.append("still here")
        await bench.clock.sleep_us(SECOND)
        seen.append("not here")

    tasks = [bench.spawn(handler())]
    bench.until(5)
    assert seen == ["still here"]
    assert type(tasks[0].error()) is CancelledError


def test_a_task_that_cancels_itself_while_it_is_being_cancelled_is_cancelled_again_at_its_next_await():
    bench = Bench()
    seen = []

    async def handler():
        try:
            await bench.clock.sleep_us(SECOND)
        except CancelledError:
            tasks[0].cancel()
            try:
                await bench.clock.sleep_us(10)
            except CancelledError:
                seen.append(bench.clock.now_us())

    tasks = [bench.spawn(handler())]
    bench.until(5)
    tasks[0].cancel()
    bench.until(SECOND)
    assert seen == [5]


def test_cancelled_by_another_waiter_of_the_same_event_is_cancelled_once():
    """The victim's own wake-up is under way already when its cancellation is asked for."""
    bench = Bench()
    cleaned = []

    async def ends():
        await bench.clock.sleep_us(5)

    ending = bench.spawn(ends())

    async def canceller():
        await ending.join()
        victim.cancel()

    async def waits():
        try:
            await ending.join()
            await bench.clock.sleep_us(SECOND)
        finally:
            await bench.clock.sleep_us(10)
            cleaned.append(bench.clock.now_us())

    bench.spawn(canceller())
    victim = bench.spawn(waits())
    bench.until(2 * SECOND)
    assert type(victim.error()) is CancelledError
    assert cleaned == [15]


def test_cancelling_what_has_ended_is_harmless():
    bench = Bench()

    async def handler():
        pass

    task = bench.spawn(handler())
    bench.until(1)
    task.cancel()
    bench.until(2)
    assert task.error() is None


def test_a_cancelled_sleep_leaves_nothing_that_moves_the_clock_or_fills_the_queue():
    bench = Bench()
    largest = 0

    async def main():
        nonlocal largest
        for _ in range(20_000):
            task = bench.spawn(sleeper())
            await bench.clock.sleep_us(1)
            task.cancel()
            await task.join()
            largest = max(largest, len(bench.kernel._queue))

    async def sleeper():
        await bench.clock.sleep_us(3600 * SECOND)

    bench.run(main())
    assert bench.now_us == 20_000
    assert largest < 5_000


# Errors and results.


class Awkward(Exception):
    """Cannot be made again from its `args`."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code, self.reason = code, reason


def test_an_error_is_carried_as_the_very_same_object():
    bench = Bench()
    raised = Awkward(7, reason="because")

    async def handler():
        await bench.clock.sleep_us(5)
        raise raised

    async def main():
        task = bench.spawn(handler())
        assert task.error() is None
        await task.join()
        assert task.done()
        return task.error()

    error = bench.run(main())
    assert error is raised
    assert (error.code, error.reason) == (7, "because")
    assert error.__cause__ is None


def test_an_error_passes_through_an_await_unchanged():
    bench = Bench()
    raised = StoreUnavailable("no answer")

    async def inner():
        await bench.clock.sleep_us(5)
        raise raised

    async def main():
        try:
            await inner()
        except StoreUnavailable as error:
            return error

    assert bench.run(main()) is raised


def test_joining_raises_nothing_of_the_tasks_own_and_is_quick_for_an_ended_one():
    bench = Bench()

    async def breaks():
        raise ValueError("its own")

    async def main():
        task = bench.spawn(breaks())
        await task.join()
        await task.join()
        assert isinstance(task.error(), ValueError)

    bench.run(main())
    assert bench.now_us == 0


def test_a_plain_function_is_called_and_its_error_is_its_own():
    bench = Bench()
    raised = Awkward(7, reason="because")

    def breaks():
        raise raised

    async def main():
        assert await bench.clock.call(divmod, 7, 3) == (2, 1)
        assert await bench.clock.call(int, "11", base=2) == 3
        with pytest.raises(Awkward) as told:
            await bench.clock.call(breaks)
        return told.value

    assert bench.run(main()) is raised
    assert bench.now_us == 0


# Context.


def test_context_variables_do_not_leak_between_tasks():
    bench = Bench()
    variable = contextvars.ContextVar("variable", default="unset")
    seen = []

    async def handler(name: str):
        seen.append((name, variable.get()))
        variable.set(name)
        await bench.clock.sleep_us(10)
        seen.append((name, variable.get()))

    async def main():
        variable.set("main")
        tasks = [bench.spawn(handler(name)) for name in "ab"]
        for task in tasks:
            await task.join()
        seen.append(("main", variable.get()))

    bench.run(main())
    # As with asyncio, a task begins with a copy of what its spawner had.
    assert seen == [("a", "main"), ("b", "main"), ("a", "a"), ("b", "b"), ("main", "main")]
    assert variable.get() == "unset"


# Waiting.


def test_a_wait_ends_when_the_flag_is_set_or_when_its_time_is_up():
    bench = Bench()
    event = bench.clock.event()
    seen = []

    async def waits(timeout_us: int | None):
        up = await event.wait(timeout_us)
        seen.append((timeout_us, up, bench.clock.now_us()))

    async def sets():
        await bench.clock.sleep_us(10)
        event.set()

    for timeout_us in (5, 20, None):
        bench.spawn(waits(timeout_us))
    bench.spawn(sets())
    bench.until(100)
    assert seen == [(5, False, 5), (20, True, 10), (None, True, 10)]


def test_a_wait_on_a_raised_flag_does_not_wait():
    bench = Bench()

    async def main():
        event = bench.clock.event()
        assert not event.is_set()
        event.set()
        event.set()
        assert event.is_set()
        assert await event.wait() is True
        assert await event.wait(0) is True
        event.clear()
        assert await event.wait(0) is False
        assert await event.wait(5) is False

    bench.run(main())
    assert bench.now_us == 5


def test_everyone_who_waits_is_woken_in_the_order_they_came():
    bench = Bench()
    event = bench.clock.event()
    woken = []

    async def waits(number: int):
        await event.wait()
        woken.append(number)

    for number in range(20):
        bench.spawn(waits(number))
    bench.until(5)
    event.set()
    event.clear()
    bench.until(6)
    assert woken == list(range(20))


def test_a_set_and_a_timeout_at_the_same_instant_wake_once():
    bench = Bench()
    event = bench.clock.event()
    woken = []

    async def waits():
        woken.append(await event.wait(10))
        await bench.clock.sleep_us(50)
        woken.append(bench.clock.now_us())

    bench.spawn(waits())
    bench.until(1)
    bench.kernel.after(9, event.set)
    bench.until(200)
    assert woken == [True, 60]


def test_a_hundred_thousand_waits_with_hour_long_timeouts_keep_the_queue_small():
    bench = Bench()
    event = bench.clock.event()
    largest = 0

    async def waits():
        for _ in range(100_000):
            event.clear()
            await event.wait(3600 * SECOND)

    async def sets():
        nonlocal largest
        for _ in range(100_000):
            await bench.clock.sleep_us(1)
            event.set()
            largest = max(largest, len(bench.kernel._queue))

    bench.spawn(waits())
    bench.run(sets())
    assert bench.now_us == 100_000
    assert largest < 5_000
    # And none of those timeouts, all called off, moves the clock.
    run_dry(bench.kernel)
    assert bench.now_us == 100_000
    bench.bury()


def test_a_hundred_thousand_waits_that_time_out_leave_nothing_behind_in_the_event():
    bench = Bench()
    event = bench.clock.event()

    async def waits():
        for _ in range(10_000):
            await event.wait(1)

    bench.run(waits())
    assert not event._gates


def test_a_cancelled_wait_leaves_nothing_behind_in_the_event():
    bench = Bench()
    event = bench.clock.event()

    async def waits(timeout_us: int | None):
        await event.wait(timeout_us)

    for timeout_us in (None, 3600 * SECOND):
        task = bench.spawn(waits(timeout_us))
        bench.until(bench.now_us + 1)
        task.cancel()
        bench.until(bench.now_us + 1)
        assert task.done()
    assert not event._gates


# Jobs are rows, slots are processes.


def test_the_number_of_tasks_does_not_grow_with_the_number_of_jobs():
    app = App()

    @app.task("work")
    async def work(job):
        await job.sleep(timedelta(milliseconds=5))

    def enqueue(story: Story) -> None:
        for number in range(10_000):
            story.enqueue(delay_s=number / 500)

    most = 0
    with opened_story(app=app, begin=enqueue) as story:
        life = story.world.hosts["w1"].life
        for half in range(1, 300):
            story.to(half / 2)
            most = max(most, len(life.tasks))
        assert at_once(story.store.stats()).counts[JobState.SUCCEEDED] == 10_000
    # Worker, poller, timer, starter, finisher, two of the heartbeat, two slots, two handlers.
    assert most <= 12


def test_an_ended_task_is_forgotten():
    bench = Bench()

    async def short():
        await bench.clock.sleep_us(1)

    async def main():
        for _ in range(1_000):
            await bench.spawn(short()).join()

    bench.run(main())
    gc.collect()
    assert not bench.host.life.tasks
    assert sum(isinstance(thing, SimTask) for thing in gc.get_objects()) < 100


def test_ids_and_chance_come_from_the_hosts_stream():
    first, second = Bench(seed=5), Bench(seed=5)
    assert [first.clock.rng.getrandbits(64) for _ in range(5)] == [
        second.clock.rng.getrandbits(64) for _ in range(5)
    ]
    assert Bench(seed=6).clock.rng.getrandbits(64) != Bench(seed=5).clock.rng.getrandbits(64)


def test_the_lab_waits_in_milliseconds_as_well_as_in_years():
    bench = Bench()

    async def main():
        await bench.clock.sleep_us(100 * 365 * 86_400 * SECOND + 1)
        await bench.clock.sleep_us(1 * MS)

    bench.run(main())
    assert bench.now_us == 100 * 365 * 86_400 * SECOND + 1 + MS
