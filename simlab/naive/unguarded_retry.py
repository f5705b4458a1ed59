"""A retry is written by job alone: the guard is on the outcomes that end a job, and was forgotten on this one.

"It goes back to the queue, what harm can that do?" It goes back while somebody else runs it, or after somebody
else has ended it.
"""

from __future__ import annotations

from scheduler.postgres import Queries
from scheduler.store import Outcome, OutcomeKind
from simlab.naive.rewriting import rewritten
from simlab.scenario import Variant
from simlab.store import ModelStore, Row

__all__ = ["UNGUARDED_RETRY"]


class _UnguardedRetry(ModelStore):
    def _may_finish(self, row: Row, outcome: Outcome) -> bool:
        return outcome.kind is OutcomeKind.RETRY or super()._may_finish(row, outcome)


_GUARD = "job.lease_owner = asked.owner AND job.lease_token = asked.token"
_STATE = "job.state = CASE asked.kind WHEN 'released' THEN 'CLAIMED' ELSE 'RUNNING' END"


def _without_guard(queries: Queries) -> dict[str, str]:
    return {
        "finish": rewritten(
            queries.finish,
            (_GUARD, f"(asked.kind = 'retry' OR ({_GUARD}))"),
            (_STATE, f"(asked.kind = 'retry' OR {_STATE})"),
        )
    }


UNGUARDED_RETRY = Variant(
    name="unguarded-retry",
    says="a retry is written without asking whether the lease is still the worker's",
    caught_by=("no-stale-write",),
    model_store=_UnguardedRetry,
    rewrite=_without_guard,
)
