"""AsyncioClock: the Clock port on the real event loop."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from scheduler.clock import AsyncioClock, CancelledError
from tests.waiting import until

SHORT_US = 5_000


@pytest.fixture
def clock() -> Iterator[AsyncioClock]:
    clock = AsyncioClock(rng=random.Random(1), threads=2)
    yield clock
    clock.close()


def test_now_is_monotonic_microseconds(clock: AsyncioClock) -> None:
    before = time.monotonic_ns() // 1000
    now_us = clock.now_us()
    assert type(now_us) is int
    assert before <= now_us <= time.monotonic_ns() // 1000


def test_the_stream_is_the_one_given_or_one_of_its_own() -> None:
    rng = random.Random(1)
    clock = AsyncioClock(rng=rng)
    assert clock.rng is rng
    assert AsyncioClock().rng is not AsyncioClock().rng


def test_a_sleep_lasts_its_time(clock: AsyncioClock) -> None:
    async def story() -> int:
        began_us = clock.now_us()
        await clock.sleep_us(SHORT_US)
        return clock.now_us() - began_us

    assert asyncio.run(story()) >= SHORT_US - 1


def test_an_event_wakes_whoever_waits(clock: AsyncioClock) -> None:
    async def story() -> None:
        event = clock.event()
        assert not event.is_set()
        woken: list[bool] = []

        async def wait() -> None:
            woken.append(await event.wait())

        tasks = [clock.spawn(wait(), f"waiter {n}") for n in range(3)]
        await clock.sleep_us(0)
        event.set()
        for task in tasks:
            await task.join()
        assert woken == [True] * 3
        assert await event.wait(0)
        event.clear()
        assert not event.is_set()

    asyncio.run(story())


def test_a_wait_ends_with_its_timeout(clock: AsyncioClock) -> None:
    async def story() -> None:
        event = clock.event()
        began_us = clock.now_us()
        assert not await event.wait(SHORT_US)
        assert clock.now_us() - began_us >= SHORT_US - 1
        assert not await event.wait(0)
        asyncio.get_running_loop().call_later(SHORT_US / 1_000_000, event.set)
        assert await event.wait(60_000_000)

    asyncio.run(story())


def test_a_cancellation_is_no_timeout(clock: AsyncioClock) -> None:
    async def story() -> None:
        async def wait() -> None:
            await clock.event().wait(60_000_000)

        task = clock.spawn(wait(), "waiter")
        await clock.sleep_us(0)
        task.cancel()
        await task.join()
        assert isinstance(task.error(), CancelledError)

    asyncio.run(story())


def test_a_task_tells_how_it_ended(clock: AsyncioClock) -> None:
    async def story() -> None:
        trouble = ValueError("oh")

        async def fine() -> None:
            await clock.sleep_us(0)

        async def bad() -> None:
            raise trouble

        good, failed = clock.spawn(fine(), "fine"), clock.spawn(bad(), "bad")
        assert not good.done()
        assert good.error() is None
        await good.join()
        await failed.join()  # raises nothing of the task's own
        assert good.done()
        assert good.error() is None
        assert failed.error() is trouble
        good.cancel()  # harmless now

    asyncio.run(story())


def test_a_task_may_clean_up_when_cancelled(clock: AsyncioClock) -> None:
    async def story() -> list[str]:
        told: list[str] = []

        async def handler() -> None:
            try:
                await clock.sleep_us(60_000_000)
            finally:
                told.append("cleaned")

        task = clock.spawn(handler(), "handler")
        await clock.sleep_us(0)
        task.cancel()
        await task.join()
        return told

    assert asyncio.run(story()) == ["cleaned"]


def test_whoever_joins_can_be_cancelled_without_harm_to_the_joined(clock: AsyncioClock) -> None:
    async def story() -> None:
        async def work() -> None:
            await clock.sleep_us(SHORT_US)

        working = clock.spawn(work(), "work")

        async def wait() -> None:
            await working.join()

        waiting = clock.spawn(wait(), "wait")
        await clock.sleep_us(0)
        waiting.cancel()
        await waiting.join()
        assert not working.done()
        await working.join()
        assert working.error() is None

    asyncio.run(story())


def test_a_call_runs_in_a_thread_while_the_loop_goes_on(clock: AsyncioClock) -> None:
    async def story() -> None:
        gate = threading.Event()
        loop = asyncio.get_running_loop()
        loop.call_later(SHORT_US / 1_000_000, gate.set)

        def blocking(word: str, *, more: str) -> tuple[str, bool, str]:
            return word + more, gate.wait(10), threading.current_thread().name

        text, opened, thread = await clock.call(blocking, "a", more="b")
        assert (text, opened) == ("ab", True)
        assert thread.startswith("scheduler-call")
        assert clock.running_calls == 0

    asyncio.run(story())


@pytest.mark.parametrize("error", [ValueError("oh"), SystemExit(3), KeyError("k")])
def test_an_error_in_a_call_is_the_callers(clock: AsyncioClock, error: BaseException) -> None:
    def bad() -> None:
        raise error

    async def story() -> None:
        with pytest.raises(type(error)) as caught:
            await clock.call(bad)
        assert caught.value is error

    asyncio.run(story())


def test_stop_iteration_in_a_call_ends_it(clock: AsyncioClock) -> None:
    """A future refuses StopIteration; a call that carried it there would never be done."""

    async def story() -> None:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.wait_for(clock.call(next, iter(())), 5)

    asyncio.run(story())


def test_a_call_nobody_waits_for_is_still_counted(clock: AsyncioClock) -> None:
    async def story() -> None:
        gate, inside = threading.Event(), threading.Event()

        def stuck() -> None:
            inside.set()
            gate.wait(10)

        async def call() -> None:
            await clock.call(stuck)

        task = clock.spawn(call(), "call")
        await clock.call(inside.wait, 10)
        task.cancel()
        await task.join()
        assert clock.running_calls == 1
        gate.set()
        await until(lambda: clock.running_calls == 0)

    asyncio.run(story())


def test_a_coroutine_is_spawned_under_its_name(clock: AsyncioClock) -> None:
    async def story() -> None:
        names: list[str] = []

        async def tell() -> None:
            task = asyncio.current_task()
            names.append(task.get_name() if task else "")

        coroutine: Coroutine[Any, Any, None] = tell()
        await clock.spawn(coroutine, "teller").join()
        assert names == ["teller"]

    asyncio.run(story())
