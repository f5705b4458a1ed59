"""A lease is counted from when the reply arrives: that is when the worker learns that it has it.

But the database began to count when it wrote the lease, which was before. By as much as the reply has travelled the
worker believes in a lease that is over, and by then somebody else may run the job.
"""

from __future__ import annotations

from scheduler.heartbeat import Heartbeat
from scheduler.held import HeldJob
from scheduler.jobs import Lease
from scheduler.poller import Poller
from scheduler.store import HeartbeatReply
from scheduler.worker import Worker
from simlab.scenario import Variant

__all__ = ["LEASE_FROM_REPLY"]


class _CountsClaimFromReply(Poller):
    async def _take(self, lease: Lease, *, sent_us: int, arrived_us: int) -> None:
        del sent_us
        await super()._take(lease, sent_us=arrived_us, arrived_us=arrived_us)


class _CountsRenewalFromReply(Heartbeat):
    def _believe(self, asked: list[HeldJob], reply: HeartbeatReply, *, lease_until_us: int) -> None:
        del lease_until_us
        super()._believe(asked, reply, lease_until_us=self._clock.now_us() + self._settings.lease_us)


class _CountsFromReply(Worker):
    poller_class = _CountsClaimFromReply
    heartbeat_class = _CountsRenewalFromReply


LEASE_FROM_REPLY = Variant(
    name="lease-from-reply",
    says="a worker counts its lease from when the reply arrived, not from when it asked",
    caught_by=("never-two-at-once",),
    worker_class=_CountsFromReply,
)
"""Both ways to get a lease, claim and heartbeat, are counted the same way."""
