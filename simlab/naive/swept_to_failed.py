"""A job whose lease expires is declared failed: whoever had it must have died of it.

Perhaps it did. More often a machine lost power, a deploy was in a hurry or a network was cut, and the job had
nothing to do with it and has all its other attempts before it.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.jobs import JobState
from scheduler.postgres import Queries
from scheduler.store import Swept
from simlab.naive.rewriting import rewritten
from simlab.scenario import Variant
from simlab.store import ModelStore, Row

__all__ = ["SWEPT_TO_FAILED"]


class _FailsWhatExpired(ModelStore):
    def _sweep_lease(self, row: Row, now_us: int) -> Swept:
        swept = super()._sweep_lease(row, now_us)
        if row.state is JobState.PENDING:
            row.state, row.finished_at_us = JobState.FAILED, now_us
        return replace(swept, state=row.state)


def _fails_what_expired(queries: Queries) -> dict[str, str]:
    return {
        "sweep": rewritten(queries.sweep, ("            ELSE 'PENDING'\n", "            ELSE 'FAILED'\n"))
    }


SWEPT_TO_FAILED = Variant(
    name="swept-to-failed",
    says="a job whose lease has expired is a dead letter, whatever attempts it has left",
    caught_by=("dead-letters-earned",),
    model_store=_FailsWhatExpired,
    rewrite=_fails_what_expired,
)
