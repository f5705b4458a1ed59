"""Simulated machines: clocks that are wrong, power loss without last words, and the world standing still."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.clock import CancelledError
from scheduler.errors import StoreUnavailable
from simlab.errors import SimulationError
from simlab.hosts import EPOCH_US, HostState
from simlab.network import Fate, Latency, Network
from tests.simlab.bench import SECOND, Bench, opened_story, working_app

# Clocks.


def test_without_drift_the_monotonic_clock_is_virtual_time():
    bench = Bench()
    bench.until(123_456_789)
    assert bench.host.monotonic_us() == 123_456_789
    assert bench.host.virtual_delay_us(17) == 17


@pytest.mark.parametrize(("ppm", "shown"), [(100, 10_001_000), (-100, 9_999_000), (1_000_000, 20_000_000)])
def test_a_drifting_clock_runs_fast_or_slow_by_its_parts_per_million(ppm, shown):
    bench = Bench()
    host = bench.add("w2", drift_ppm=ppm)
    bench.until(10 * SECOND)
    assert host.monotonic_us() == shown


@given(
    ppm=st.integers(-500_000, 1_000_000),
    began_us=st.integers(0, 10**12),
    duration_us=st.integers(0, 10**10),
)
def test_sleeping_on_a_drifting_host_is_never_early_on_its_own_clock_and_late_by_less_than_two_us(
    ppm, began_us, duration_us
):
    bench = Bench()
    host = bench.add("w2", drift_ppm=ppm)
    bench.until(began_us)
    slept: list[int] = []

    async def sleeper() -> None:
        before = host.clock.now_us()
        await host.clock.sleep_us(duration_us)
        slept.append(host.clock.now_us() - before)

    host.clock.spawn(sleeper(), "sleeper")
    bench.until(began_us + 2 * duration_us + 10)
    assert len(slept) == 1
    assert duration_us <= slept[0] < duration_us + 2


@given(ppm=st.integers(-500_000, 1_000_000), timeout_us=st.integers(0, 10**10))
def test_a_timeout_on_a_drifting_host_is_by_its_own_clock(ppm, timeout_us):
    bench = Bench()
    host = bench.add("w2", drift_ppm=ppm)
    ended: list[int] = []

    async def waits() -> None:
        assert not await host.clock.event().wait(timeout_us)
        ended.append(host.clock.now_us())

    host.clock.spawn(waits(), "waits")
    bench.until(2 * timeout_us + 10)
    assert timeout_us <= ended[0] < timeout_us + 2


@given(changes=st.lists(st.tuples(st.integers(1, 10**9), st.integers(-500_000, 1_000_000)), max_size=6))
def test_the_monotonic_clock_never_goes_back_however_the_drift_changes(changes):
    bench = Bench()
    shown = [bench.host.monotonic_us()]
    for wait_us, ppm in changes:
        bench.until(bench.now_us + wait_us)
        shown.append(bench.host.monotonic_us())
        bench.host.drift(ppm)
        shown.append(bench.host.monotonic_us())
    assert shown == sorted(shown)


@pytest.mark.parametrize("ppm", [-500_001, 1_000_001, 1.5, True, None])
def test_an_impossible_drift_is_refused(ppm):
    with pytest.raises(SimulationError, match=r"host w2: drift of .* ppm"):
        Bench().add("w2", drift_ppm=ppm)


def test_the_wall_clock_is_offset_and_stepped_and_the_monotonic_clock_is_neither():
    bench = Bench()
    host = bench.add("w2", wall_offset_us=-5 * SECOND)
    bench.until(60 * SECOND)
    assert host.wall_us() == EPOCH_US + 55 * SECOND
    host.step_wall(-3600 * SECOND)
    assert host.wall_us() == EPOCH_US + 55 * SECOND - 3600 * SECOND
    assert host.monotonic_us() == 60 * SECOND
    bench.until(61 * SECOND)
    assert host.wall_us() == EPOCH_US + 56 * SECOND - 3600 * SECOND


# Crash.


def test_a_crash_runs_no_finally_and_no_except():
    bench = Bench()
    last_words: list[str] = []

    async def handler() -> None:
        try:
            await bench.clock.sleep_us(10)
            last_words.append("went on")
        except BaseException:
            last_words.append("except")
            raise
        finally:
            last_words.append("finally")

    async def waits() -> None:
        try:
            await event.wait(20)
        finally:
            last_words.append("finally of a wait")

    event = bench.clock.event()
    task = bench.spawn(handler())
    bench.spawn(waits())
    bench.until(5)
    bench.host.crash()
    assert bench.host.state is HostState.CRASHED
    event.set()
    task.cancel()
    bench.until(1_000)
    gc.collect()
    assert last_words == []
    assert not task.done()
    bench.bury()


def test_a_task_that_crashes_its_own_host_goes_no_further_than_its_next_await():
    bench = Bench()
    steps: list[str] = []

    async def handler() -> None:
        try:
            bench.host.crash()
            steps.append("the processor has not noticed yet")
            await bench.clock.sleep_us(0)
            steps.append("never")
        finally:
            steps.append("never")

    bench.spawn(handler())
    bench.until(100)
    assert steps == ["the processor has not noticed yet"]
    steps.clear()
    bench.bury()


def test_what_is_spawned_on_a_dead_host_never_begins():
    bench = Bench()
    clock = bench.clock
    begun: list[str] = []

    async def late() -> None:
        begun.append("begun")

    bench.host.crash()
    clock.spawn(late(), "late")
    bench.until(10)
    bench.host.restart()
    clock.spawn(late(), "later")
    bench.until(20)
    assert begun == []
    bench.bury()
    assert begun == []


def test_closing_the_world_afterwards_is_silent_even_for_stubborn_clean_ups():
    """Each of these would make Python warn, of coroutines that were never awaited or that ignored their end."""
    bench = Bench()

    async def awaits_in_its_finally() -> None:
        try:
            await bench.clock.sleep_us(SECOND)
        finally:
            await bench.clock.sleep_us(SECOND)

    async def awaits_in_each_of_three() -> None:
        try:
            await awaits_in_its_finally()
        finally:
            try:
                await bench.clock.sleep_us(SECOND)
            finally:
                await bench.clock.event().wait()

    async def raises_in_its_finally() -> None:
        try:
            await bench.clock.sleep_us(SECOND)
        finally:
            raise ValueError("nobody is left to hear it")

    async def cancelled_in_its_finally() -> None:
        try:
            await bench.clock.sleep_us(SECOND)
        finally:
            raise CancelledError

    async def spawns_in_its_finally() -> None:
        try:
            await bench.clock.sleep_us(SECOND)
        finally:
            bench.spawn(awaits_in_its_finally())

    for stubborn in (
        awaits_in_its_finally,
        awaits_in_each_of_three,
        raises_in_its_finally,
        cancelled_in_its_finally,
        spawns_in_its_finally,
    ):
        bench.spawn(stubborn())
    bench.until(5)
    bench.host.crash()
    bench.spawn(awaits_in_its_finally())
    bench.until(10)
    bench.bury()
    assert not any(life.tasks for life in bench.host.lives)
    gc.collect()


def test_nothing_of_a_crashed_worker_reaches_the_history_when_the_world_is_closed():
    seen: list[object] = []
    app = working_app(seconds=30, seen=seen)
    with opened_story(app=app) as story:
        job = story.enqueue()
        story.to(5)
        assert story.kinds(job)[-1] == "executing"
        story.world.hosts["w1"].crash()
        story.to(20)
        recorded = len(story.world.history)
    gc.collect()
    assert len(story.world.history) == recorded
    assert seen[0][0] == "began"


def test_a_restart_is_a_new_incarnation_with_a_stream_of_its_own():
    bench = Bench(seed=3)
    first_clock = bench.clock
    first = [bench.clock.rng.getrandbits(32) for _ in range(3)]
    with pytest.raises(SimulationError, match="w1 is up; only a crashed host can be restarted"):
        bench.host.restart()
    bench.host.crash()
    bench.host.restart()
    assert bench.host.incarnation == 2
    assert bench.host.state is HostState.UP
    assert bench.clock is not first_clock
    assert [bench.clock.rng.getrandbits(32) for _ in range(3)] != first
    # The same for every run of the seed, whatever the first life drew.
    other = Bench(seed=3)
    other.host.crash()
    other.host.restart()
    again = Bench(seed=3)
    again.clock.rng.getrandbits(32)
    again.host.crash()
    again.host.restart()
    assert other.clock.rng.getrandbits(32) == again.clock.rng.getrandbits(32)


def test_an_event_set_by_the_new_life_wakes_nobody_of_the_old():
    bench = Bench()
    woken: list[str] = []
    event = bench.clock.event()

    async def waits() -> None:
        await event.wait()
        woken.append("old")

    bench.spawn(waits())
    bench.until(1)
    bench.host.crash()
    bench.host.restart()
    event.set()
    bench.until(10)
    assert woken == []
    bench.bury()


def test_the_other_hosts_go_on():
    bench = Bench()
    other = bench.add("w2")
    seen: list[int] = []

    async def ticks() -> None:
        while True:
            await other.clock.sleep_us(10)
            seen.append(other.clock.now_us())

    other.clock.spawn(ticks(), "ticks")
    bench.until(5)
    bench.host.crash()
    bench.until(35)
    assert seen == [10, 20, 30]


def test_a_request_under_way_when_its_host_crashes_still_reaches_the_store():
    bench = Bench()
    far = bench.add("database")
    served: list[int] = []
    network = Network(streams=bench.streams, far=far, latency=Latency(100, 100), decide=lambda *_: Fate())
    heard: list[str] = []

    async def serve() -> str:
        served.append(bench.now_us)
        return "reply"

    async def asks() -> None:
        heard.append(await network.call(bench.host.life, "claim", serve, timeout_us=SECOND))

    bench.spawn(asks())
    bench.until(50)
    bench.host.crash()
    bench.until(SECOND)
    assert served == [100]
    assert heard == []
    bench.bury()


# Pause.


def test_a_pause_defers_and_drops_nothing_and_keeps_the_order_of_falling_due():
    bench = Bench()
    seen: list[tuple[str, int]] = []

    async def sleeps(name: str, until_us: int) -> None:
        await bench.clock.sleep_us(until_us)
        seen.append((name, bench.now_us))
        await bench.clock.sleep_us(1)
        seen.append((name, bench.now_us))

    for name, until_us in (("d", 60), ("b", 20), ("a", 10), ("c", 40), ("e", 200)):
        bench.spawn(sleeps(name, until_us))
    bench.until(5)
    bench.host.pause()
    assert bench.host.state is HostState.PAUSED
    bench.until(100)
    assert seen == []
    bench.host.resume()
    bench.until(150)
    assert seen == [(name, 100) for name in "abcd"] + [(name, 101) for name in "abcd"]
    bench.until(300)
    assert seen[-2:] == [("e", 200), ("e", 201)]


def test_what_fell_due_during_the_pause_comes_before_what_falls_due_as_it_ends():
    bench = Bench()
    seen: list[str] = []

    async def sleeps(name: str, until_us: int) -> None:
        await bench.clock.sleep_us(until_us)
        seen.append(name)

    bench.kernel.after(100, bench.host.resume)
    bench.spawn(sleeps("as it ends", 100))
    bench.spawn(sleeps("during", 50))
    bench.until(5)
    bench.host.pause()
    bench.until(200)
    assert seen == ["during", "as it ends"]


def test_a_wait_whose_flag_was_set_during_the_pause_finds_it_up_even_if_its_time_was_up_too():
    """As a process that was stopped finds the reply in its socket."""
    bench = Bench()
    event = bench.clock.event()
    seen: list[tuple[bool, int]] = []

    async def waits() -> None:
        seen.append((await event.wait(30), bench.now_us))

    bench.spawn(waits())
    bench.until(5)
    bench.host.pause()
    bench.kernel.after(45, event.set)
    bench.until(100)
    bench.host.resume()
    bench.until(101)
    assert seen == [(True, 100)]


def test_a_task_spawned_on_a_paused_host_begins_when_the_pause_ends():
    bench = Bench()
    seen: list[int] = []

    async def begins() -> None:
        seen.append(bench.now_us)

    bench.host.pause()
    bench.spawn(begins())
    bench.until(50)
    bench.host.resume()
    bench.until(60)
    assert seen == [50]


def test_a_cancellation_during_a_pause_is_delivered_once_when_it_ends():
    bench = Bench()
    seen: list[tuple[str, int]] = []

    async def sleeps(us: int) -> None:
        try:
            await bench.clock.sleep_us(us)
        except CancelledError:
            seen.append(("cancelled", bench.now_us))
            await bench.clock.sleep_us(10)
            seen.append(("cleaned up", bench.now_us))
            raise

    tasks = [bench.spawn(sleeps(us)) for us in (20, 500)]
    bench.until(5)
    bench.host.pause()
    bench.until(40)
    for task in tasks:
        task.cancel()
        task.cancel()
    bench.until(100)
    assert seen == []
    bench.host.resume()
    bench.until(600)
    assert seen == [("cancelled", 100)] * 2 + [("cleaned up", 110)] * 2
    assert [type(task.error()) for task in tasks] == [CancelledError] * 2


def test_of_two_tasks_deferred_by_a_pause_one_may_cancel_the_other():
    bench = Bench()
    seen: list[tuple[str, int]] = []

    async def cancels() -> None:
        await bench.clock.sleep_us(10)
        victim.cancel()

    async def waits() -> None:
        try:
            await bench.clock.sleep_us(20)
            seen.append(("slept", bench.now_us))
        except CancelledError:
            await bench.clock.sleep_us(10)
            seen.append(("cleaned up", bench.now_us))
            raise

    bench.spawn(cancels())
    victim = bench.spawn(waits())
    bench.until(5)
    bench.host.pause()
    bench.until(100)
    bench.host.resume()
    bench.until(600)
    assert seen == [("cleaned up", 110)]
    assert type(victim.error()) is CancelledError


def test_a_crash_during_a_pause_ends_both_and_what_was_deferred_never_happens():
    bench = Bench()
    seen: list[str] = []

    async def sleeps() -> None:
        await bench.clock.sleep_us(10)
        seen.append("old")

    bench.spawn(sleeps())
    bench.until(5)
    bench.host.pause()
    bench.until(20)
    bench.host.crash()
    assert bench.host.state is HostState.CRASHED
    bench.host.resume()
    bench.host.pause()
    assert bench.host.state is HostState.CRASHED
    bench.host.restart()
    assert bench.host.state is HostState.UP
    bench.spawn(sleeps())
    bench.until(29)
    assert seen == []
    bench.until(31)
    assert seen == ["old"]
    bench.bury()


def test_pausing_a_paused_host_and_resuming_a_running_one_do_nothing():
    bench = Bench()
    bench.host.resume()
    assert bench.host.state is HostState.UP
    bench.host.pause()
    ending = bench.host.resumed
    bench.host.pause()
    assert bench.host.resumed is ending
    bench.host.resume()
    assert bench.host.state is HostState.UP


def test_a_second_pause_right_after_the_first_still_delivers_everything_once():
    bench = Bench()
    seen: list[int] = []

    async def sleeps() -> None:
        await bench.clock.sleep_us(10)
        seen.append(bench.now_us)

    bench.spawn(sleeps())
    bench.until(5)
    bench.host.pause()
    bench.until(50)
    bench.host.resume()
    bench.host.pause()
    bench.until(90)
    assert seen == []
    bench.host.resume()
    bench.until(100)
    assert seen == [90]


def test_a_paused_hosts_monotonic_clock_goes_on():
    """A frozen virtual machine's clock jumps when it wakes: the lease has run out, and it can know."""
    bench = Bench()
    bench.host.pause()
    bench.until(90 * SECOND)
    bench.host.resume()
    assert bench.host.monotonic_us() == 90 * SECOND


def test_a_call_whose_reply_came_during_a_pause_longer_than_its_timeout_is_answered():
    bench = Bench()
    far = bench.add("database")
    network = Network(streams=bench.streams, far=far, latency=Latency(100, 100), decide=lambda *_: Fate())
    heard: list[object] = []

    async def serve() -> str:
        return "reply"

    async def asks() -> None:
        try:
            heard.append(await network.call(bench.host.life, "claim", serve, timeout_us=SECOND))
        except StoreUnavailable as error:
            heard.append(error)

    bench.spawn(asks())
    bench.until(50)
    bench.host.pause()
    bench.until(60 * SECOND)
    bench.host.resume()
    bench.until(61 * SECOND)
    assert heard == ["reply"]
