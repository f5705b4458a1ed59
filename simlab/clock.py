"""SimClock: the scheduler's Clock port on SimPy, for one life of one simulated host.

Ordinary ``async def`` code runs on it unmodified. A SimPy ``Process`` accepts any object with ``send`` and
``throw``; :class:`SimTask` is that object, a thin trampoline around a coroutine whose awaitables yield SimPy
events. The trampoline is where the host's life is enforced: a crashed host's coroutine is never resumed, a
paused one's only when the pause ends.
"""

from __future__ import annotations

import contextvars
import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

import simpy

from scheduler.clock import CancelledError
from simlab.errors import ForeignAwait
from simlab.kernel import Kernel, checked_delay

if TYPE_CHECKING:
    from scheduler.policy import RandomStream
    from simlab.hosts import Incarnation

__all__ = ["SimClock", "SimEvent", "SimTask", "wait_for"]

T = TypeVar("T")

_MAX_CLOSES = 100
"""How many awaits, one inside the clean-up of the other, the disposal of a coroutine gets past."""


class wait_for:  # noqa: N801 - read as a verb: `await wait_for(event)`
    """Await a bare SimPy event; returns its value."""

    __slots__ = ("_event",)

    def __init__(self, event: simpy.Event) -> None:
        self._event = event

    def __await__(self) -> Generator[simpy.Event, Any, Any]:
        return (yield self._event)


class SimTask:
    """A coroutine running on a host, and the generator that SimPy's Process drives.

    SimPy re-creates a failure as ``type(e)(*e.args)``, which loses fields and refuses some classes; so a
    process here never fails: how the coroutine ended is kept in `error`, the very object it raised.
    """

    __slots__ = (
        "__name__",
        "_cancelling",
        "_context",
        "_coroutine",
        "_deferred",
        "_error",
        "_kernel",
        "_life",
        "_process",
        "_running",
    )

    def __init__(self, life: Incarnation, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        self.__name__ = name
        self._life = life
        self._kernel = life.host.kernel
        self._coroutine = coroutine
        # Each task in a context of its own: what one handler sets, another never sees.
        self._context = contextvars.copy_context()
        self._cancelling = False
        self._running = False
        self._error: BaseException | None = None
        # What to resume the coroutine with once the host's pause has ended.
        self._deferred: tuple[bool, Any] | None = None
        life.tasks[self] = None
        self._process = simpy.Process(self._kernel, self)  # type: ignore[arg-type]

    # What SimPy calls.

    def send(self, value: Any) -> simpy.Event:
        """Resume the coroutine with a value; returns the next event it waits for."""
        return self._step(value, cancel=False)

    def throw(self, error: BaseException) -> simpy.Event:
        """Resume the coroutine with a cancellation: SimPy's Interrupt is the only error that comes here.

        It is delivered as CancelledError, which a handler's ``except Exception`` does not swallow.
        """
        del error
        if not self._cancelling:
            # Delivered already, by a resumption that was under way when the cancellation was asked for.
            return self._process.target
        return self._step(None, cancel=True)

    def _step(self, value: Any, *, cancel: bool) -> simpy.Event:
        if not self._life.alive:
            # Power is lost: park on an event that never happens.
            return simpy.Event(self._kernel)
        resumed = self._life.host.resumed
        if resumed is not None:
            if self._deferred is None or cancel:
                self._deferred = (cancel, value)
            return resumed
        if self._deferred is not None:
            (deferred_cancel, value), self._deferred = self._deferred, None
            cancel = cancel or deferred_cancel
        while True:
            # Cancelled before it began, or on the way to this very resumption, or by itself while it ran: then
            # it is delivered here, or at its first await, as asyncio does.
            event = self._resume(value, cancel=cancel or self._cancelling)
            cancel = False
            if not self._cancelling:
                return event

    def _resume(self, value: Any, *, cancel: bool) -> simpy.Event:
        self._running = True
        try:
            if cancel:
                self._cancelling = False
                awaited = self._context.run(self._coroutine.throw, CancelledError())
            else:
                awaited = self._context.run(self._coroutine.send, value)
            return self._checked(awaited)
        except StopIteration:
            self._ended(None)
            raise
        except (Exception, CancelledError) as error:  # noqa: BLE001 - kept for whoever asks with error()
            self._ended(error)
            raise StopIteration from None
        finally:
            self._running = False

    def _checked(self, awaited: object) -> simpy.Event:
        """Return what the coroutine awaits if SimPy can wait for it; otherwise end the run, by name."""
        if isinstance(awaited, simpy.Event) and awaited.env is self._kernel:
            return awaited
        error = ForeignAwait(_describe(awaited), _innermost(self._coroutine))
        self._kernel.fail(error)
        raise error

    def _ended(self, error: BaseException | None) -> None:
        self._error = error
        self._life.tasks.pop(self, None)

    # The scheduler's Task port.

    def cancel(self) -> None:
        if self.done() or self._cancelling or not self._life.alive:
            return
        self._cancelling = True
        if not self._running:
            self._process.interrupt()

    def done(self) -> bool:
        return not self._process.is_alive

    async def join(self) -> None:
        if not self.done():
            await wait_for(self._process)

    def error(self) -> BaseException | None:
        return self._error

    @property
    def process(self) -> simpy.Process:
        """The SimPy process, to run a world until it ends."""
        return self._process

    def close(self) -> None:
        """Dispose of a coroutine that will never run again. Its ``finally`` runs, in a world that is over."""
        self._life.tasks.pop(self, None)
        for _ in range(_MAX_CLOSES):
            try:
                self._coroutine.close()
            except RuntimeError:
                # It awaits in its clean-up, as is honest; on a machine without power that too is never resumed.
                continue
            except (Exception, CancelledError):  # noqa: BLE001 - who would have heard of it is gone
                return
            else:
                return


def _describe(event: object) -> str:
    if event is None:
        return "a bare yield (asyncio.sleep(0), perhaps)"
    if isinstance(event, simpy.Event):
        return "an event of another simulation"
    return f"{type(event).__module__}.{type(event).__qualname__}"


def _innermost(coroutine: Any) -> str:
    """Name the function in which a coroutine stands: the last one of its chain of awaits with a frame."""
    where = "a coroutine"
    while inspect.iscoroutine(coroutine):
        frame = coroutine.cr_frame
        if frame is None:
            break
        where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
        coroutine = coroutine.cr_await
    return where


class SimEvent:
    """A flag. Each waiter has a gate of its own; one timeout is called off, not left to fire into nothing."""

    __slots__ = ("_flag", "_gates", "_life")

    def __init__(self, life: Incarnation) -> None:
        self._life = life
        self._flag = False
        self._gates: deque[simpy.Event] = deque()

    def set(self) -> None:
        self._flag = True
        gates, self._gates = self._gates, deque()
        for gate in gates:
            _open(gate)

    def clear(self) -> None:
        self._flag = False

    def is_set(self) -> bool:
        return self._flag

    async def wait(self, timeout_us: int | None = None) -> bool:
        kernel = self._life.host.kernel
        if self._flag:
            # No event of SimPy's: a loop around this would never come to a step that could be counted.
            kernel.count_turn()
            return True
        gate = simpy.Event(kernel)
        if timeout_us is None:
            self._gates.append(gate)
            try:
                await wait_for(gate)
            except CancelledError:
                self._forget(gate)
                raise
            return True
        delay_us = self._life.host.virtual_delay_us(checked_delay(timeout_us))
        self._gates.append(gate)
        timeout = kernel.after(delay_us, lambda: _open(gate))
        try:
            await wait_for(gate)
        finally:
            kernel.cancel(timeout)
            self._forget(gate)
        return self._flag

    def _forget(self, gate: simpy.Event) -> None:
        if gate in self._gates:
            self._gates.remove(gate)


def _open(gate: simpy.Event) -> None:
    if not gate.triggered:
        gate.succeed()


class SimClock:
    """Time, waiting, concurrency and chance for one life of a host."""

    __slots__ = ("_life",)

    def __init__(self, life: Incarnation) -> None:
        self._life = life

    @property
    def rng(self) -> RandomStream:
        return self._life.host.rng

    def now_us(self) -> int:
        return self._life.host.monotonic_us()

    def wall_us(self) -> int:
        """Return what the host believes the date to be. No part of the port: the scheduler cannot ask."""
        return self._life.host.wall_us()

    async def sleep_us(self, duration_us: int) -> None:
        delay_us = self._life.host.virtual_delay_us(checked_delay(duration_us))
        timeout = simpy.Timeout(self._kernel, delay_us)
        try:
            await wait_for(timeout)
        except CancelledError:
            self._kernel.cancel(timeout)
            raise

    @property
    def _kernel(self) -> Kernel:
        return self._life.host.kernel

    def event(self) -> SimEvent:
        return SimEvent(self._life)

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> SimTask:
        return SimTask(self._life, coroutine, name)

    async def call(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Run a plain function: it takes no virtual time."""
        return function(*args, **kwargs)
