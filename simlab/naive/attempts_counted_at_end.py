"""Attempts are counted when an outcome is written, and not at the claim.

A job that kills its worker never gets so far as to have an outcome. So it is never counted, never runs out of
attempts, and goes on killing one worker after the other for as long as there are any.
"""

from __future__ import annotations

from scheduler.postgres import Queries
from scheduler.store import ClaimReply, ClaimRequest, Finished, Outcome
from simlab.naive.rewriting import rewritten
from simlab.scenario import Variant
from simlab.store import ModelStore

__all__ = ["ATTEMPTS_COUNTED_AT_END"]


class _CountsAtEnd(ModelStore):
    async def claim(self, request: ClaimRequest, /) -> ClaimReply:
        reply = await super().claim(request)
        for lease in reply.leases:
            self._rows[lease.ref.job_id].attempt -= 1
        return reply

    def _finish_one(self, outcome: Outcome, now_us: int) -> Finished:
        row = self._rows.get(outcome.ref.job_id)
        if row is not None and self._may_finish(row, outcome):
            row.attempt += 1
        return super()._finish_one(outcome, now_us)


def _counts_at_end(queries: Queries) -> dict[str, str]:
    return {
        "claim": rewritten(
            queries.claim,
            ("        attempt = job.attempt + 1,\n", ""),
            (
                "RETURNING job.job_id, job.task, job.payload, job.attempt,",
                "RETURNING job.job_id, job.task, job.payload, job.attempt + 1 AS attempt,",
            ),
        ),
        "finish": rewritten(
            queries.finish,
            ("job.attempt >= job.max_attempts", "job.attempt + 1 >= job.max_attempts"),
            ("THEN job.attempt - 1 ELSE job.attempt END", "THEN job.attempt ELSE job.attempt + 1 END"),
        ),
    }


ATTEMPTS_COUNTED_AT_END = Variant(
    name="attempts-counted-at-end",
    says="an attempt is counted when its outcome is written, not when it begins",
    caught_by=("attempts-bounded",),
    model_store=_CountsAtEnd,
    rewrite=_counts_at_end,
)
