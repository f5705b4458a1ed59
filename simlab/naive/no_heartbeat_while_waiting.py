"""Only jobs that run are renewed; those still waiting for a slot are left to their lease.

Nothing happens to a waiting job, so there seems to be nothing to keep alive. But it was claimed, ahead of time or
ahead of a slot, and its lease runs. Behind slow jobs it expires, is given to somebody else, and waits there.
"""

from __future__ import annotations

from scheduler.heartbeat import Heartbeat
from scheduler.held import HeldJob, Phase
from scheduler.worker import Worker
from simlab.scenario import Variant

__all__ = ["NO_HEARTBEAT_WHILE_WAITING"]


class _RunningOnly(Heartbeat):
    def _worth_renewing(self) -> list[HeldJob]:
        return [job for job in super()._worth_renewing() if job.phase is not Phase.WAITING]


class _RenewsRunningOnly(Worker):
    heartbeat_class = _RunningOnly


NO_HEARTBEAT_WHILE_WAITING = Variant(
    name="no-heartbeat-while-waiting",
    says="the heartbeat renews only the jobs that run, not those that wait for a slot",
    caught_by=("healthy-keeps-lease",),
    worker_class=_RenewsRunningOnly,
)
