"""A fresh idempotency key for every try: the key is made where the request is sent, inside the loop that repeats it.

The table can only recognise a request by its key. One that comes with another key each time is another request
each time, and every reply that is lost is another job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scheduler.jobs import NewJob
from scheduler.store import EnqueueReply, Store
from simlab.locks import RowLocks
from simlab.naive.passing import PassingStore
from simlab.scenario import Variant

__all__ = ["KEY_PER_TRY"]


class _KeyPerTry(PassingStore):
    async def enqueue(self, jobs: Sequence[NewJob], /) -> EnqueueReply:
        # A job's identity is drawn anew at each try, and so is the key.
        return await super().enqueue([_with_fresh_key(job) for job in jobs])


def _with_fresh_key(job: NewJob) -> NewJob:
    if job.idempotency_key is None:
        return job
    return replace(job, idempotency_key=f"{job.idempotency_key}/{job.job_id}")


def _wrap(store: Store, locks: RowLocks) -> Store:
    del locks
    return _KeyPerTry(store)


KEY_PER_TRY = Variant(
    name="key-per-try",
    says="a request that is repeated has another idempotency key each time",
    caught_by=("one-job-per-request",),
    wrap=_wrap,
)
