"""Row locks held by open transactions that are not the scheduler's: an operator's session left open, say.

A statement that skips locked rows asks :meth:`RowLocks.locked`; one that waits awaits :meth:`RowLocks.wait`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol
from uuid import UUID

import simpy

from scheduler.errors import StoreUnavailable
from simlab.clock import wait_for
from simlab.kernel import Kernel

__all__ = ["LockTable", "NoLocks", "RowLocks"]


class RowLocks(Protocol):
    """Which rows other transactions hold."""

    def locked(self, job_id: UUID) -> bool:
        """Say whether another transaction holds a row."""

    async def wait(self, job_ids: Sequence[UUID]) -> None:
        """Wait until none of these rows is held."""

    async def pause_us(self, duration_us: int) -> None:
        """Let virtual time pass inside a transaction, between two of its statements."""


class NoLocks:
    """Nobody holds anything."""

    def locked(self, job_id: UUID) -> bool:
        del job_id
        return False

    async def wait(self, job_ids: Sequence[UUID]) -> None:
        del job_ids

    async def pause_us(self, duration_us: int) -> None:
        del duration_us


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
        self._held: dict[UUID, None] = {}
        self._released: simpy.Event = simpy.Event(kernel)

    def locked(self, job_id: UUID) -> bool:
        return job_id in self._held

    def lock(self, job_ids: Iterable[UUID]) -> None:
        """Let the one open transaction there is take rows."""
        self._held.update(dict.fromkeys(job_ids))

    def unlock(self) -> None:
        """End the transaction, and wake whoever waits for its rows."""
        self._held.clear()
        released, self._released = self._released, simpy.Event(self._kernel)
        released.succeed()

    async def wait(self, job_ids: Sequence[UUID]) -> None:
        """Wait until none of these rows is held.

        Raises
        ------
        StoreUnavailable
            If that takes longer than the statement timeout.
        """
        deadline_us = self.deadline_us()
        while any(job_id in self._held for job_id in job_ids):
            await self.wait_for_release(deadline_us)

    async def pause_us(self, duration_us: int) -> None:
        await wait_for(simpy.Timeout(self._kernel, duration_us))

    def deadline_us(self) -> int:
        """Return when, in virtual time, the server gives up a statement that begins now."""
        return self._kernel.now_us + self._timeout_us

    async def wait_for_release(self, deadline_us: int) -> None:
        """Wait until some transaction lets go of something.

        Raises
        ------
        StoreUnavailable
            If it is `deadline_us` of virtual time before that happens.
        """
        gate = simpy.Event(self._kernel)
        waker = self._released
        assert waker.callbacks is not None  # it has not happened yet
        waker.callbacks.append(lambda _: _open(gate))
        timeout = self._kernel.after(max(0, deadline_us - self._kernel.now_us), lambda: _open(gate))
        await wait_for(gate)
        self._kernel.cancel(timeout)
        if self._kernel.now_us >= deadline_us:
            raise StoreUnavailable("canceling statement due to statement timeout")


def _open(gate: simpy.Event) -> None:
    if not gate.triggered:
        gate.succeed()
