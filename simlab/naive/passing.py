"""A store in front of a store that passes everything on: a mistake replaces the verb it is about."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from scheduler.jobs import Job, LeaseRef, NewJob
from scheduler.store import (
    CancelReply,
    ClaimReply,
    ClaimRequest,
    EnqueueReply,
    FinishReply,
    HeartbeatReply,
    Outcome,
    ReplayReply,
    StartReply,
    Stats,
    Store,
    SweepReply,
)

__all__ = ["PassingStore"]


class PassingStore:
    """Passes every verb on."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def enqueue(self, jobs: Sequence[NewJob], /) -> EnqueueReply:
        return await self._store.enqueue(jobs)

    async def claim(self, request: ClaimRequest, /) -> ClaimReply:
        return await self._store.claim(request)

    async def sweep(self, *, limit: int) -> SweepReply:
        return await self._store.sweep(limit=limit)

    async def start(self, refs: Sequence[LeaseRef], /) -> StartReply:
        return await self._store.start(refs)

    async def heartbeat(self, refs: Sequence[LeaseRef], /, *, lease_us: int) -> HeartbeatReply:
        return await self._store.heartbeat(refs, lease_us=lease_us)

    async def finish(self, outcomes: Sequence[Outcome], /) -> FinishReply:
        return await self._store.finish(outcomes)

    async def cancel(self, job_ids: Sequence[UUID], /) -> CancelReply:
        return await self._store.cancel(job_ids)

    async def replay(self, job_ids: Sequence[UUID], /) -> ReplayReply:
        return await self._store.replay(job_ids)

    async def get(self, job_id: UUID, /) -> Job | None:
        return await self._store.get(job_id)

    async def stats(self) -> Stats:
        return await self._store.stats()
