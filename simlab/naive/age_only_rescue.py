"""Jobs are rescued a fixed time after their claim, however often they have been renewed since.

"Running for over a minute: it must be stuck." A heartbeat is answered, and counts for nothing. Every job that
takes longer than somebody once thought is taken away from a worker that is alive and at work on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.jobs import LeaseRef
from scheduler.postgres import Queries
from scheduler.store import HeartbeatReply
from simlab.naive.rewriting import rewritten
from simlab.scenario import Variant
from simlab.store import ModelStore

__all__ = ["AGE_ONLY_RESCUE"]


class _RescuedByAge(ModelStore):
    async def heartbeat(self, refs: Sequence[LeaseRef], /, *, lease_us: int) -> HeartbeatReply:
        rows = [row for ref in refs if (row := self._rows.get(ref.job_id)) is not None]
        ends = [row.lease_expires_at_us for row in rows]
        reply = await super().heartbeat(refs, lease_us=lease_us)
        for row, end_us in zip(rows, ends, strict=True):
            row.lease_expires_at_us = end_us
        return reply


def _by_age(queries: Queries) -> dict[str, str]:
    # The row's expiry stays what the claim made it: the claim's time, plus the age.
    renews = "SET lease_expires_at = now() + %(lease)s::interval"
    return {
        "heartbeat": rewritten(queries.heartbeat, (renews, "SET lease_expires_at = job.lease_expires_at"))
    }


AGE_ONLY_RESCUE = Variant(
    name="age-only-rescue",
    says="a job is rescued a fixed time after its claim, however often its lease was renewed",
    caught_by=("one-live-lease",),
    model_store=_RescuedByAge,
    rewrite=_by_age,
)
