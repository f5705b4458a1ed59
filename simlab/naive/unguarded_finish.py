"""Complete without guard: the outcome is written by job alone, whoever holds the lease by now.

A worker that stood still through its lease wakes up and completes a job that is somebody else's.
"""

from __future__ import annotations

from scheduler.postgres import Queries
from scheduler.store import Outcome
from simlab.scenario import Variant
from simlab.store import ModelStore, Row

__all__ = ["UNGUARDED_FINISH"]


class UnguardedFinish(ModelStore):
    """Writes any outcome to any row that exists."""

    def _may_finish(self, row: Row, outcome: Outcome) -> bool:
        return True


_GUARDS = (
    " AND job.lease_owner = asked.owner AND job.lease_token = asked.token",
    "    WHERE job.state = CASE asked.kind WHEN 'released' THEN 'CLAIMED' ELSE 'RUNNING' END\n",
)


def _without_guards(queries: Queries) -> dict[str, str]:
    statement = queries.finish
    for guard in _GUARDS:
        if statement.count(guard) != 1:
            raise AssertionError(f"finish.sql has changed; this guard is not in it once: {guard.strip()}")
        statement = statement.replace(guard, "")
    return {"finish": statement}


UNGUARDED_FINISH = Variant(
    name="unguarded-finish",
    says="an outcome is written without asking whether the lease is still the worker's",
    caught_by=("no-stale-write",),
    model_store=UnguardedFinish,
    rewrite=_without_guards,
)
