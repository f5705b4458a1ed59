"""SimPy's environment, with what a laboratory needs on top: integer time, cheap cancelling, a spin guard.

Owns the event queue. Time is virtual, in integer microseconds from the start of the run. Knows nothing of
hosts or schedulers.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import simpy
from simpy.events import NORMAL, URGENT, EventPriority

from simlab.errors import ForeignAwait, InvalidExperiment, SimulationError, SimulationStalled

__all__ = [
    "MAX_STEPS_AT_ONE_INSTANT",
    "MAX_TIES",
    "DecidedKernel",
    "Kernel",
    "checked_decisions",
    "checked_delay",
]

MAX_STEPS_AT_ONE_INSTANT = 5_000_000
"""So many steps without time advancing mean that something spins."""

MAX_TIES = 16
"""Among so many events of one instant, at most, a decision chooses; the rest wait for the next decision."""

_COMPACT_ABOVE = 1024
_BEFORE_ALL = -1


def checked_delay(delay_us: object) -> int:
    """Return a delay if it is one: a float or a NaN would poison the virtual clock for good."""
    if type(delay_us) is not int:
        raise SimulationError(
            f"a delay must be an int of microseconds, not {type(delay_us).__name__} {delay_us!r}"
        )
    if delay_us < 0:
        raise SimulationError(f"a delay cannot be negative: {delay_us} us")
    return delay_us


def checked_decisions(decisions: Sequence[object]) -> tuple[int, ...]:
    """Return a stream of decisions if it is one."""
    checked = []
    for decision in decisions:
        if type(decision) is not int or decision < 0:
            raise InvalidExperiment(f"decision {decision!r}: must be a whole number of at least 0")
        checked.append(decision)
    return tuple(checked)


class Kernel(simpy.Environment):
    """A SimPy environment in integer microseconds.

    Parameters
    ----------
    max_steps_at_one_instant
        The spin guard: more steps than this without time advancing are an error.
    """

    def __init__(self, *, max_steps_at_one_instant: int = MAX_STEPS_AT_ONE_INSTANT) -> None:
        super().__init__(0)
        self._limit = max_steps_at_one_instant
        self._steps_here = 0
        self._spinners: dict[str, int] = {}
        self._cancelled = 0
        self._fatal: BaseException | None = None

    @property
    def now_us(self) -> int:
        """The virtual time in microseconds."""
        return int(self._now)

    def schedule(
        self, event: simpy.Event, priority: EventPriority = NORMAL, delay: simpy.core.SimTime = 0
    ) -> None:
        """Schedule an event; the delay must be an int of at least 0 microseconds."""
        super().schedule(event, priority, checked_delay(delay))

    def after(self, delay_us: int, act: Callable[[], None]) -> simpy.Event:
        """Call `act` after a delay; `cancel` the returned event to call it off."""
        timeout = simpy.Timeout(self, checked_delay(delay_us))
        assert timeout.callbacks is not None  # a new event has its list of callbacks
        timeout.callbacks.append(lambda _: act())
        return timeout

    def happen_first(self, event: simpy.Event) -> None:
        """Let an event succeed before everything else that is due at this instant."""
        event._ok = True
        event._value = None
        self.schedule(event, URGENT)

    def cancel(self, event: simpy.Event) -> None:
        """Call off a scheduled event that only we wait for.

        It stays in the queue and is skipped when its time comes, without moving the clock. When the skipped
        ones outnumber the rest the queue is rebuilt, so that a million short waits with long timeouts do not
        fill the memory.
        """
        # Counted even when nobody waits any more: SimPy itself lets go of what an interrupted process waits for.
        if event.callbacks is not None:
            event.callbacks.clear()
            self._cancelled += 1
            if self._cancelled > _COMPACT_ABOVE and self._cancelled > len(self._queue) // 2:
                self._compact()

    def _compact(self) -> None:
        kept = []
        for entry in self._queue:
            if entry[3].callbacks or not entry[3]._ok:
                kept.append(entry)
            else:
                # It is past, as far as anybody can tell: who waits for it later must not wait for ever.
                entry[3].callbacks = None  # type: ignore[assignment]
        self._queue[:] = kept
        heapq.heapify(self._queue)
        self._cancelled = 0

    def fail(self, error: BaseException) -> None:
        """End the run with an error, whatever the code that caused it makes of it."""
        if self._fatal is None:
            self._fatal = error

    def step(self) -> None:
        """Process the next event that somebody waits for."""
        queue = self._queue
        while queue and not queue[0][3].callbacks and queue[0][3]._ok:
            heapq.heappop(queue)[3].callbacks = None  # type: ignore[assignment]
            self._cancelled = max(0, self._cancelled - 1)
        if self._steps_here > self._limit - 1000:
            # Gathered only near the limit: naming every step would slow all the honest ones.
            self._note_spinner()
        before = self._now
        super().step()
        if self._fatal is not None:
            raise self._fatal
        if self._now != before:
            self._steps_here = 0
            self._spinners.clear()
            return
        self.count_turn()

    def count_turn(self) -> None:
        """Count something done without time advancing; too much of it is an error naming what spins."""
        self._steps_here += 1
        if self._steps_here > self._limit:
            if self._active_proc is not None:
                self._spinners.setdefault(self._active_proc.name, 1)
            stalled = SimulationStalled(self.now_us, self._limit, self._spinners)
            self.fail(stalled)
            raise stalled

    def _note_spinner(self) -> None:
        for callback in self._queue[0][3].callbacks if self._queue else ():
            process = getattr(callback, "__self__", None)
            if isinstance(process, simpy.Process):
                self._spinners[process.name] = self._spinners.get(process.name, 0) + 1

    def run_until(self, until_us: int) -> None:
        """Run until the virtual clock stands at `until_us`, with everything before that instant done."""
        if until_us < self.now_us:
            raise SimulationError(f"cannot run back to {until_us} us: it is {self.now_us} us already")
        if until_us > self.now_us:
            self._guarded(lambda: self.run(until=until_us))

    def run_until_done(self, task: simpy.Event) -> None:
        """Run until an event has happened, or nothing is left to happen."""
        self._guarded(lambda: self.run(until=task))

    def _guarded(self, run: Callable[[], Any]) -> None:
        # In a notebook a real event loop is running in this very thread. Hiding it behind one that refuses
        # makes a stray asyncio call fail here, by name, and not somewhere else, later.
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(_NoLoop(self))  # type: ignore[arg-type]
        try:
            run()
        finally:
            asyncio._set_running_loop(outer)


class DecidedKernel(Kernel):
    """A kernel in which a stream of decisions orders what is due at the same instant.

    Whenever more than one event is next, the stream's next number says which of them happens: 0 the one that
    was scheduled first, 1 the one after it, and so on, around. When the stream is exhausted the order is that
    of scheduling, as it is without one. What SimPy calls urgent (the first step of a process, an interruption)
    is never reordered: that is not chance, but cause and effect.

    Parameters
    ----------
    decisions
        Whole numbers of at least 0; a stream of zeros changes nothing.
    """

    def __init__(
        self, decisions: Sequence[int], *, max_steps_at_one_instant: int = MAX_STEPS_AT_ONE_INSTANT
    ) -> None:
        super().__init__(max_steps_at_one_instant=max_steps_at_one_instant)
        self._decisions = checked_decisions(decisions)
        self._decided = 0

    @property
    def decided(self) -> int:
        """How many decisions have been taken."""
        return self._decided

    def step(self) -> None:
        """Process the event that the stream chooses among those that are next."""
        if self._decided < len(self._decisions):
            self._decide()
        super().step()

    def _decide(self) -> None:
        queue = self._queue
        tied: list[Any] = []
        while queue and len(tied) < MAX_TIES:
            entry = queue[0]
            if tied and (entry[0], entry[1]) != (tied[0][0], tied[0][1]):
                break
            if entry[1] != NORMAL and not tied:
                return
            heapq.heappop(queue)
            if entry[3].callbacks or not entry[3]._ok:
                tied.append(entry)
            else:
                entry[3].callbacks = None  # type: ignore[assignment]  # called off: see `cancel`
                self._cancelled = max(0, self._cancelled - 1)
        if len(tied) > 1:
            chosen = self._decisions[self._decided] % len(tied)
            self._decided += 1
            at, priority, _, event = tied.pop(chosen)
            tied.append((at, priority, _BEFORE_ALL, event))
        for entry in tied:
            heapq.heappush(queue, entry)


class _NoLoop:
    """Stands where asyncio looks for its loop, and says which function looked."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def __getattr__(self, name: str) -> NoReturn:
        frame = sys._getframe(1)
        while frame.f_back is not None and "/asyncio/" in frame.f_code.co_filename.replace("\\", "/"):
            frame = frame.f_back
        where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
        error = ForeignAwait(f"asyncio (its loop's {name})", where)
        self._kernel.fail(error)
        raise error
