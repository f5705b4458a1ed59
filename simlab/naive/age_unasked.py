"""The claim does not ask for a job's age: what is due is run, however long ago that was.

The sweep ends old jobs, so it seems to be taken care of. But sweeps come seconds apart, and claims in between.
"""

from __future__ import annotations

from scheduler.postgres import Queries
from simlab.naive.rewriting import rewritten
from simlab.scenario import Variant
from simlab.store import ModelStore, Row

__all__ = ["AGE_UNASKED"]


class _AgeUnasked(ModelStore):
    def _too_old(self, row: Row, now_us: int) -> bool:
        return False


def _age_unasked(queries: Queries) -> dict[str, str]:
    asks = "      AND (job.expires_at IS NULL OR job.expires_at > now())\n"
    return {"claim": rewritten(queries.claim, (asks, ""))}


AGE_UNASKED = Variant(
    name="age-unasked",
    says="the claim leaves the age limit to the sweep",
    caught_by=("too-old-never-claimed",),
    model_store=_AgeUnasked,
    rewrite=_age_unasked,
)
