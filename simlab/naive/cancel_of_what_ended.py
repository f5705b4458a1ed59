"""Cancelling does not ask whether the job has ended: it writes CANCELLED into the row, whatever stands there.

Whoever reads the row afterwards is told that the work was never done. It was.
"""

from __future__ import annotations

from uuid import UUID

from scheduler.jobs import TERMINAL, JobState
from scheduler.postgres import Queries
from scheduler.store import CancelResult
from simlab.naive.rewriting import rewritten
from simlab.scenario import Variant
from simlab.store import ModelStore

__all__ = ["CANCEL_OF_WHAT_ENDED"]


class _CancelsAnything(ModelStore):
    def _is_open(self, job_id: UUID) -> bool:
        return self.knows(job_id)

    def _cancel_one(self, job_id: UUID, now_us: int) -> CancelResult:
        row = self._rows[job_id]
        if row.state not in TERMINAL:
            return super()._cancel_one(job_id, now_us)
        row.state, row.cancel_requested, row.finished_at_us = JobState.CANCELLED, True, now_us
        return CancelResult.CANCELLED


def _cancels_anything(queries: Queries) -> dict[str, str]:
    return {
        "cancel": rewritten(
            queries.cancel, ("    WHERE job.state IN ('PENDING', 'CLAIMED', 'RUNNING')\n", "")
        )
    }


CANCEL_OF_WHAT_ENDED = Variant(
    name="cancel-of-what-ended",
    says="a cancellation is written into the row without asking whether the job has ended",
    caught_by=("terminal-absorbs",),
    model_store=_CancelsAnything,
    rewrite=_cancels_anything,
)
