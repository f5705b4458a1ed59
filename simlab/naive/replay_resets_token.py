"""An operator's replay makes the job as good as new: attempts at nought, and the fencing token with them.

The attempts may begin again; the token may not. It is what tells the next holder from one that is left over from
before the replay, here and in every resource that remembers the largest token it has seen. For the same reason
the number of the attempt cannot serve as the token.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from scheduler.postgres import Queries
from scheduler.store import ReplayReply
from simlab.locks import Statement
from simlab.naive.rewriting import rewritten
from simlab.scenario import Variant
from simlab.store import ModelStore

__all__ = ["REPLAY_RESETS_TOKEN"]


class _ResetsToken(ModelStore):
    def _replay(self, job_ids: Sequence[UUID], now_us: int) -> Statement[ReplayReply]:
        reply = yield from super()._replay(job_ids, now_us)
        for job_id in reply.replayed:
            self._rows[job_id].lease_token = 0
        return reply


def _resets_token(queries: Queries) -> dict[str, str]:
    return {
        "replay": rewritten(
            queries.replay, ("        attempt = 0,\n", "        attempt = 0, lease_token = 0,\n")
        )
    }


REPLAY_RESETS_TOKEN = Variant(
    name="replay-resets-token",
    says="an operator's replay resets the fencing token along with the attempts",
    caught_by=("token-rises",),
    model_store=_ResetsToken,
    rewrite=_resets_token,
)
