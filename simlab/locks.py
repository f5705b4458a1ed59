"""Row locks in virtual time: who holds which row, who waits for it, and in which order they get it.

A lock has a name: a row's identity, or an idempotency key that an open transaction has inserted. A statement
that skips locked rows asks :meth:`RowLocks.locked`; one that waits is run by :meth:`RowLocks.run`, which takes
its locks one after the other, keeps those it has while it waits for the next, and carries it out at the very
instant it has the last, as PostgreSQL does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable
from typing import Any, Protocol, TypeVar

import simpy

from scheduler.errors import StoreUnavailable
from simlab.clock import wait_for
from simlab.kernel import Kernel

__all__ = ["LockTable", "NoLocks", "RowLocks", "Statement", "Waiting"]

T = TypeVar("T")

Statement = Generator[Hashable, None, T]
"""A statement: yields the name of each lock it needs, goes on when it has it, and returns its reply."""


class RowLocks(Protocol):
    """Which rows other transactions hold."""

    def locked(self, name: Hashable) -> bool:
        """Say whether a transaction holds a row, or a key."""

    async def run(self, statement: Statement[T]) -> T:
        """Carry out a statement, waiting for the locks it needs."""

    async def pause_us(self, duration_us: int) -> None:
        """Let virtual time pass inside a transaction, between two of its statements."""


class NoLocks:
    """Nobody holds anything."""

    def locked(self, name: Hashable) -> bool:
        del name
        return False

    async def run(self, statement: Statement[T]) -> T:
        return _carried_out(statement)

    async def pause_us(self, duration_us: int) -> None:
        del duration_us


class Waiting:
    """Somebody who waits for the reply to a statement that waits for a lock.

    Parameters
    ----------
    timeout_us
        How long the server lets a statement wait.
    give_up
        Called when that time is over: the statement is undone and lets go of what it holds.
    """

    def __init__(self, kernel: Kernel, *, timeout_us: int, give_up: Callable[[], None]) -> None:
        self._kernel = kernel
        self._give_up = give_up
        self._gate = simpy.Event(kernel)
        self._given_up = False
        self._timeout = kernel.after(timeout_us, self._time_out)

    def end(self) -> None:
        """Say that the statement has ended."""
        self._kernel.cancel(self._timeout)
        self._gate.succeed()

    def _time_out(self) -> None:
        self._given_up = True
        self._give_up()
        self._gate.succeed()

    async def reply(self) -> None:
        """Wait for the end.

        Raises
        ------
        StoreUnavailable
            If the server has given the statement up, with nothing done.
        """
        await wait_for(self._gate)
        if self._given_up:
            raise StoreUnavailable("canceling statement due to statement timeout")


class _Running:
    """A statement under way: what it still has to do, and what came of it."""

    __slots__ = ("arrival", "error", "statement", "value", "waiting")

    def __init__(self, statement: Statement[Any], arrival: int) -> None:
        self.statement = statement
        self.arrival = arrival
        self.value: Any = None
        self.error: Exception | None = None
        self.waiting: Waiting | None = None

    def next_name(self) -> Hashable | None:
        """Go on to the next lock that is needed; None at the end."""
        try:
            return next(self.statement)
        except StopIteration as end:
            self.value = end.value
        except Exception as error:  # noqa: BLE001 - raised again where the statement's reply is awaited
            self.error = error
        return None


_OTHER = "somebody's open session"


class LockTable:
    """Row locks in virtual time.

    Parameters
    ----------
    statement_timeout_us
        How long a statement waits before the server gives it up, with nothing done.
    """

    def __init__(self, kernel: Kernel, *, statement_timeout_us: int) -> None:
        self._kernel = kernel
        self._timeout_us = statement_timeout_us
        self._holders: dict[Hashable, object] = {}
        self._queues: dict[Hashable, deque[_Running]] = {}
        self._arrivals = 0

    @property
    def busy(self) -> bool:
        """Whether anybody holds anything; if not, no statement can have to wait."""
        return bool(self._holders)

    def locked(self, name: Hashable) -> bool:
        return name in self._holders

    def lock(self, names: Iterable[Hashable], *, by: object = _OTHER) -> None:
        """Let an open transaction take rows, or keys, that are free."""
        for name in names:
            assert self._holders.get(name, by) is by, f"{name} is taken: an open transaction cannot wait here"
            self._holders[name] = by

    def unlock(self, *, by: object = _OTHER) -> None:
        """End that transaction; who waits for its rows has them at once."""
        self._release(by)

    async def run(self, statement: Statement[T]) -> T:
        """Carry out a statement, waiting for the locks it needs.

        Raises
        ------
        StoreUnavailable
            If that takes longer than the statement timeout.
        """
        if not self._holders:
            return _carried_out(statement)
        self._arrivals += 1
        running = _Running(statement, self._arrivals)
        if self._advance(running):
            self._release(running)
        else:
            running.waiting = self.waiting(give_up=lambda: self._abandon(running))
            await running.waiting.reply()
        if running.error is not None:
            raise running.error
        value: T = running.value
        return value

    def waiting(self, *, give_up: Callable[[], None]) -> Waiting:
        """Begin to wait for the reply of a statement that waits for a lock."""
        return Waiting(self._kernel, timeout_us=self._timeout_us, give_up=give_up)

    async def pause_us(self, duration_us: int) -> None:
        await wait_for(simpy.Timeout(self._kernel, duration_us))

    def _advance(self, running: _Running) -> bool:
        """Take one lock after the other, as far as they are free; say whether the statement has ended."""
        while (name := running.next_name()) is not None:
            if self._holders.setdefault(name, running) is not running:
                self._queues.setdefault(name, deque()).append(running)
                return False
        return True

    def _release(self, holder: object) -> None:
        """Give each row of a transaction that has ended to the first who waits for it."""
        ready = self._hand_over(holder)
        ended: list[_Running] = []
        while ready:
            running = ready.popleft()
            if self._advance(running):
                ended.append(running)
                ready += self._hand_over(running)
        for running in sorted(ended, key=lambda one: one.arrival):
            assert running.waiting is not None  # it waited
            running.waiting.end()

    def _hand_over(self, holder: object) -> deque[_Running]:
        ready: deque[_Running] = deque()
        for name in [name for name, held_by in self._holders.items() if held_by is holder]:
            queue = self._queues.get(name)
            if not queue:
                del self._holders[name]
                continue
            self._holders[name] = queue[0]
            ready.append(queue.popleft())
            if not queue:
                del self._queues[name]
        return ready

    def _abandon(self, running: _Running) -> None:
        """Undo a statement that has waited for too long."""
        running.statement.close()
        for name, queue in list(self._queues.items()):
            if running in queue:
                queue.remove(running)
                if not queue:
                    del self._queues[name]
        self._release(running)


def _carried_out(statement: Statement[T]) -> T:
    """Carry out a statement that has nobody to wait for."""
    while True:
        try:
            next(statement)
        except StopIteration as end:
            value: T = end.value
            return value
