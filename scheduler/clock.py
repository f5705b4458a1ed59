"""The Clock port, the core's only door to time and concurrency, and its production implementation.

The core awaits five things and nothing else: :meth:`Clock.sleep_us`, :meth:`Event.wait`,
:meth:`Task.join`, :meth:`Clock.call`, and the store. Whoever implements this port decides what time is: the
event loop's monotonic clock here (:class:`AsyncioClock`), or a simulated host's clock elsewhere.

Time is integer microseconds of this host's **monotonic** clock, with an arbitrary origin. It is never the
date: comparisons with `run_at` or a lease's expiry are the database's business.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import time
from asyncio import CancelledError
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from scheduler.policy import RandomStream

__all__ = ["AsyncioClock", "CancelledError", "Clock", "Event", "Task"]

T = TypeVar("T")


class Event(Protocol):
    """A flag that tasks wait for."""

    def set(self) -> None:
        """Raise the flag and wake everyone who waits."""

    def clear(self) -> None:
        """Lower the flag."""

    def is_set(self) -> bool:
        """Say whether the flag is up."""

    async def wait(self, timeout_us: int | None = None) -> bool:
        """Wait until the flag is up; give up after `timeout_us`. Returns whether it is up."""


class Task(Protocol):
    """A running coroutine."""

    def cancel(self) -> None:
        """Deliver `CancelledError` at the await where the task stands. Harmless when it has ended."""

    def done(self) -> bool:
        """Say whether it has ended."""

    async def join(self) -> None:
        """Wait for the end, however it ends. Raises nothing of the task's own."""

    def error(self) -> BaseException | None:
        """Return what ended the task, `CancelledError` included; None when it returned or still runs."""


class Clock(Protocol):
    """Time, waiting, concurrency and chance for one host."""

    @property
    def rng(self) -> RandomStream:
        """The host's own seeded random stream; identifiers come from it too."""

    def now_us(self) -> int:
        """Return the monotonic clock in integer microseconds."""

    async def sleep_us(self, duration_us: int) -> None:
        """Sleep for a duration of at least 0 microseconds."""

    def event(self) -> Event:
        """Return a new lowered flag."""

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> Task:
        """Run a coroutine concurrently. An error nobody looks at is the caller's to find with `error`."""

    async def call(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Run a plain, perhaps blocking function without stopping the other tasks."""


class AsyncioClock:
    """The real world: the running event loop, its monotonic clock, and threads for plain functions.

    Parameters
    ----------
    rng
        The random stream; by default one seeded by the operating system.
    threads
        How many plain functions may run at once.
    """

    def __init__(self, *, rng: RandomStream | None = None, threads: int = 32) -> None:
        self._rng = rng if rng is not None else random.Random()
        self._executor = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="scheduler-call")
        self._running: set[object] = set()

    @property
    def rng(self) -> RandomStream:
        return self._rng

    def now_us(self) -> int:
        return time.monotonic_ns() // 1000

    async def sleep_us(self, duration_us: int) -> None:
        await asyncio.sleep(duration_us / 1_000_000)

    def event(self) -> Event:
        return _AsyncioEvent()

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> Task:
        return _AsyncioTask(asyncio.create_task(coroutine, name=name))

    async def call(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        result: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            self._running.add(run)
            try:
                result.append(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - raised again where it was called from
                errors.append(error)
            finally:
                self._running.discard(run)

        # The error travels as a value: a future refuses StopIteration, and would then never be done.
        await asyncio.get_running_loop().run_in_executor(self._executor, run)
        if errors:
            raise errors[0]
        return result[0]

    @property
    def running_calls(self) -> int:
        """How many plain functions run in threads now, those nobody waits for any more included."""
        return len(self._running)

    def close(self) -> None:
        """Let go of the threads without waiting for those still in a plain function.

        Python itself waits for them when the interpreter ends. A process that must not looks at
        `running_calls`, and leaves by ``os._exit``.
        """
        self._executor.shutdown(wait=False, cancel_futures=True)


class _AsyncioEvent:
    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, timeout_us: int | None = None) -> bool:
        if timeout_us is None or self._event.is_set():
            return await self._event.wait()
        try:
            async with asyncio.timeout(timeout_us / 1_000_000):
                await self._event.wait()
        except TimeoutError:
            pass
        return self._event.is_set()


class _AsyncioTask:
    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def cancel(self) -> None:
        self._task.cancel()

    def done(self) -> bool:
        return self._task.done()

    async def join(self) -> None:
        await asyncio.wait({self._task})

    def error(self) -> BaseException | None:
        if not self._task.done():
            return None
        return CancelledError() if self._task.cancelled() else self._task.exception()
