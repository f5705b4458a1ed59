"""The poller: asks the table for what is due soon, and sweeps what was abandoned.

Only here do jobs enter a worker. It never asks for more than the worker has room for, and it turns each
grant into the two local anchors: fire time from the arrival of the reply, lease from the sending of the
request. It polls again at once while the table has more and there is room, otherwise after the interval.
"""

from __future__ import annotations

from collections.abc import Callable

from scheduler.clock import Clock
from scheduler.errors import StoreUnavailable
from scheduler.failpoints import Failpoint
from scheduler.held import Abort, Held, HeldJob, Observer
from scheduler.jobs import Lease
from scheduler.policy import WorkerSettings, jittered_us
from scheduler.store import ClaimRequest, Store

__all__ = ["Poller"]


class Poller:
    """Claims jobs into `held` and hands each to `accept`, until stopped."""

    def __init__(
        self,
        *,
        clock: Clock,
        store: Store,
        owner: str,
        tasks: tuple[str, ...],
        held: Held,
        settings: WorkerSettings,
        accept: Callable[[HeldJob], None],
        failpoint: Failpoint | None,
        observe: Observer,
    ) -> None:
        self._clock = clock
        self._store = store
        self._owner = owner
        self._tasks = tasks
        self._held = held
        self._settings = settings
        self._accept = accept
        self._failpoint = failpoint
        self._observe = observe
        self._wake = clock.event()
        self._more = False
        self._stopped = False
        self._next_sweep_us = clock.now_us()
        held.when_dropped(self._room_made)

    def wake(self) -> None:
        """Poll now: somebody knows of new work."""
        self._wake.set()

    def stop(self) -> None:
        """Let `run` return after the poll in flight: cancelling it would orphan what it was granted."""
        self._stopped = True
        self._wake.set()

    def _room_made(self) -> None:
        # Refilling one job at a time would poll once per job; half the prefetch is worth a round trip.
        if self._more and self._held.room >= max(1, self._settings.prefetch // 2):
            self._wake.set()

    async def run(self) -> None:
        """Poll until stopped."""
        while not self._stopped:
            self._wake.clear()
            pause_us = jittered_us(self._settings.poll_interval_us, self._clock.rng)
            try:
                await self._sweep_if_due()
                again = await self._claim()
            except StoreUnavailable as error:
                self._observe("unavailable", None, f"poll: {error}")
                again, pause_us = False, self._settings.store_retry_us
            if not again and not self._stopped:
                await self._wake.wait(pause_us)

    async def _sweep_if_due(self) -> None:
        now_us = self._clock.now_us()
        # Nearer to this poll than to the next: waiting for the exact moment would sweep at every other poll.
        if self._next_sweep_us - now_us <= self._settings.poll_interval_us // 2:
            reply = await self._store.sweep(limit=self._settings.sweep_limit)
            if len(reply.jobs) < self._settings.sweep_limit:
                self._next_sweep_us = now_us + self._settings.sweep_interval_us

    async def _claim(self) -> bool:
        limit = min(self._held.room, self._settings.batch)
        if limit == 0 or not self._tasks:
            self._more = True
            return False
        request = ClaimRequest(
            owner=self._owner,
            tasks=self._tasks,
            limit=limit,
            lookahead_us=self._settings.lookahead_us,
            lease_us=self._settings.lease_us,
        )
        sent_us = self._clock.now_us()
        reply = await self._store.claim(request)
        arrived_us = self._clock.now_us()
        for lease in reply.leases:
            await self._take(lease, sent_us=sent_us, arrived_us=arrived_us)
        self._more = len(reply.leases) == limit
        return self._more and self._held.room > 0

    async def _take(self, lease: Lease, *, sent_us: int, arrived_us: int) -> None:
        job = HeldJob(
            lease,
            fire_at_us=arrived_us + max(lease.due_in_us, 0),
            lease_until_us=sent_us + self._settings.lease_us,
        )
        older = self._held.add(job)
        if older is not None:
            self._observe("aborted", older, Abort.LOST.name.lower())
        self._observe("claimed", job, "")
        if self._failpoint is not None:
            await self._failpoint("after_claim", job)
        self._accept(job)
