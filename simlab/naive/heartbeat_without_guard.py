"""The heartbeat renews a job's lease, whoever's it is.

"My job, my lease": a worker that slept through its lease, or whose heartbeat was held up on the way, renews its
successor's and is told that all is well. So it works on, beside the other one.
"""

from __future__ import annotations

from scheduler.jobs import LeaseRef
from scheduler.postgres import Queries
from simlab.naive.rewriting import rewritten_everywhere
from simlab.scenario import Variant
from simlab.store import ModelStore, Row

__all__ = ["HEARTBEAT_WITHOUT_GUARD"]


class _RenewsAnybodys(ModelStore):
    def _may_renew(self, row: Row, ref: LeaseRef) -> bool:
        return row.lease_owner is not None


_GUARD = " AND job.lease_owner = asked.owner AND job.lease_token = asked.token"


def _without_guard(queries: Queries) -> dict[str, str]:
    # It stands in the renewal, and in the answer for rows that could not be renewed.
    return {"heartbeat": rewritten_everywhere(queries.heartbeat, _GUARD, "", times=2)}


HEARTBEAT_WITHOUT_GUARD = Variant(
    name="heartbeat-without-guard",
    says="a heartbeat renews the lease of the job, whoever holds it by now",
    caught_by=("no-stale-write",),
    model_store=_RenewsAnybodys,
    rewrite=_without_guard,
)
