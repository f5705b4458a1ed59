"""A queue in memory: the claim is the acknowledgement, and from then on the job lives in the worker only.

The table is asked once, the row is done with, no lease, no heartbeat, no outcome to write. It is the fastest
queue there is. What a worker that dies had in its memory is gone, and the table says that it has been done.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.finisher import Finisher
from scheduler.heartbeat import Heartbeat
from scheduler.jobs import JobState, LeaseRef
from scheduler.pool import Pool
from scheduler.postgres import Queries
from scheduler.store import ClaimReply, ClaimRequest, Finished, Outcome
from scheduler.worker import Worker
from simlab.naive.rewriting import rewritten
from simlab.scenario import Variant
from simlab.store import ModelStore

__all__ = ["QUEUE_IN_MEMORY"]


class _AcknowledgesAtClaim(ModelStore):
    async def claim(self, request: ClaimRequest, /) -> ClaimReply:
        reply = await super().claim(request)
        for lease in reply.leases:
            self._unlease(self._rows[lease.ref.job_id], JobState.SUCCEEDED, reply.now_us)
        return reply


def _acknowledges(queries: Queries) -> dict[str, str]:
    return {
        "claim": rewritten(
            queries.claim,
            ("SET state = 'CLAIMED',", "SET state = 'SUCCEEDED',"),
            ("lease_owner = %(owner)s,", "lease_owner = NULL,"),
            (
                "lease_expires_at = now() + %(lease)s::interval",
                "lease_expires_at = NULL, finished_at = now()",
            ),
        )
    }


class _StartsUnasked(Pool):
    async def _write_starts(self, refs: Sequence[LeaseRef]) -> Sequence[int | None]:
        return [0] * len(refs)


class _NothingToRenew(Heartbeat):
    async def beat(self) -> None:
        await self._clock.event().wait()

    async def watch(self) -> None:
        await self._clock.event().wait()


class _NothingToWrite(Finisher):
    async def submit(self, outcome: Outcome) -> Finished:
        return Finished(outcome.ref.job_id, accepted=True, recovered=False, state=JobState.SUCCEEDED)


class _RemembersJobs(Worker):
    pool_class = _StartsUnasked
    heartbeat_class = _NothingToRenew
    finisher_class = _NothingToWrite


QUEUE_IN_MEMORY = Variant(
    name="queue-in-memory",
    says="the claim acknowledges the job, which from then on is only in the worker's memory",
    caught_by=("one-effect",),
    model_store=_AcknowledgesAtClaim,
    rewrite=_acknowledges,
    worker_class=_RemembersJobs,
)
