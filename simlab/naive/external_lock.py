"""A lock with a time to live in a second system, and no fencing token in what the lock protects.

Whoever holds the lock may write, so the table and the outside world do not ask any more. But a lock that expires
is only ever held as of a moment ago: a worker that stands still after looking at it writes when it wakes, while
somebody else holds the lock. Nothing at the place of the write can tell the two apart. See "How to do distributed
locking" (Martin Kleppmann, 2016), whose drawing of the paused client this is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from scheduler.jobs import LeaseRef
from scheduler.store import ClaimReply, ClaimRequest, FinishReply, HeartbeatReply, Outcome, Store
from simlab.effects import EffectMode
from simlab.locks import RowLocks
from simlab.naive.passing import PassingStore
from simlab.naive.unguarded_finish import UNGUARDED_FINISH
from simlab.scenario import Variant

__all__ = ["EXTERNAL_LOCK"]


@dataclass(frozen=True, slots=True)
class _Lock:
    holder: str
    until_us: int


class _LockService:
    """The second system: a lock a name, each with a holder and an end."""

    def __init__(self) -> None:
        self._locks: dict[UUID, _Lock] = {}

    def take(self, name: UUID, holder: str, *, now_us: int, for_us: int) -> bool:
        """Take a lock that is free, or renew one's own; say whether it is the holder's now."""
        lock = self._locks.get(name)
        if lock is not None and lock.until_us > now_us and lock.holder != holder:
            return False
        self._locks[name] = _Lock(holder, now_us + for_us)
        return True

    def release(self, name: UUID, holder: str) -> None:
        lock = self._locks.get(name)
        if lock is not None and lock.holder == holder:
            del self._locks[name]


class _Locking(PassingStore):
    """Takes a job's lock with its claim, renews it with each heartbeat, releases it with the outcome.

    The worker that writes an outcome had the lock when it began to: that is all that is ever asked.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._service = _LockService()

    async def claim(self, request: ClaimRequest, /) -> ClaimReply:
        reply = await super().claim(request)
        locked = tuple(
            lease
            for lease in reply.leases
            if self._service.take(
                lease.ref.job_id, request.owner, now_us=reply.now_us, for_us=request.lease_us
            )
        )
        return replace(reply, leases=locked)

    async def heartbeat(self, refs: Sequence[LeaseRef], /, *, lease_us: int) -> HeartbeatReply:
        reply = await super().heartbeat(refs, lease_us=lease_us)
        owners = {ref.job_id: ref.owner for ref in refs}
        for held in reply.held:
            if held.extended:
                self._service.take(held.job_id, owners[held.job_id], now_us=reply.now_us, for_us=lease_us)
        return reply

    async def finish(self, outcomes: Sequence[Outcome], /) -> FinishReply:
        reply = await super().finish(outcomes)
        for outcome in outcomes:
            self._service.release(outcome.ref.job_id, outcome.ref.owner)
        return reply


def _wrap(store: Store, locks: RowLocks) -> Store:
    del locks
    return _Locking(store)


EXTERNAL_LOCK = Variant(
    name="external-lock",
    says="a lock with a time to live elsewhere stands for the guards, and no write carries a fencing token",
    caught_by=("fence-holds",),
    model_store=UNGUARDED_FINISH.model_store,
    rewrite=UNGUARDED_FINISH.rewrite,
    wrap=_wrap,
    effect_mode=EffectMode.PLAIN,
)
