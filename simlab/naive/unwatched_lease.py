"""A worker that cannot renew its leases goes on: it waits for the database to tell it that they are gone.

The heartbeat's reply does say so, when there is one. In a partition there is none, and while the worker
waits for it the lease runs out, the job is given away, and two work on it for as long as the partition lasts.
"""

from __future__ import annotations

from scheduler.heartbeat import Heartbeat
from scheduler.held import HeldJob
from scheduler.worker import Worker
from simlab.scenario import Variant

__all__ = ["UNWATCHED_LEASE"]


class _Trusting(Heartbeat):
    async def watch(self) -> None:
        await self._clock.event().wait()

    def _worth_renewing(self) -> list[HeldJob]:
        return [job for job in self._held if job.abort is None]


class _TrustingWorker(Worker):
    heartbeat_class = _Trusting


UNWATCHED_LEASE = Variant(
    name="unwatched-lease",
    says="a worker that cannot renew its leases does not count them down itself",
    caught_by=("loser-stops",),
    worker_class=_TrustingWorker,
)
