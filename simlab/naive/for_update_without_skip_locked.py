"""SELECT … FOR UPDATE without SKIP LOCKED: correct, and as slow as if there were one worker.

Everybody wants the same first row. Whoever comes second waits for whoever came first to commit, finds the row
taken, and goes on to the next, which the third is waiting for by then. Twenty workers claim one after the
other, each for as long as a claim's transaction lasts; a twenty-first makes it no faster.
"""

from __future__ import annotations

from collections import deque

from scheduler.jobs import JobState
from scheduler.postgres import Queries
from scheduler.store import ClaimReply, ClaimRequest, Store
from simlab.locks import LockTable, RowLocks, Statement, Waiting
from simlab.naive.passing import PassingStore
from simlab.naive.rewriting import rewritten
from simlab.scenario import Variant
from simlab.store import ModelStore, Row

__all__ = ["FOR_UPDATE_WITHOUT_SKIP_LOCKED"]

TRANSACTION_US = 25_000
"""How long a claim's transaction holds its rows: BEGIN, the SELECT, a moment of the worker's own, the UPDATE, COMMIT."""


class _ClaimsInTurn(PassingStore):
    """Lets a claim's transaction last a while, and whoever claims meanwhile wait for its end.

    All claims want the same first row, so that who waits for it waits for whoever has it: the laboratory lets them
    queue for that row in front of either store, in the order of their coming, as PostgreSQL would.
    """

    def __init__(self, store: Store, locks: LockTable) -> None:
        super().__init__(store)
        self._locks = locks
        self._busy = False
        self._queue: deque[Waiting] = deque()

    async def claim(self, request: ClaimRequest, /) -> ClaimReply:
        if self._busy:
            await self._turn().reply()
        self._busy = True
        try:
            reply = await super().claim(request)
            await self._locks.pause_us(TRANSACTION_US)
        finally:
            self._busy = bool(self._queue)
            if self._queue:
                self._queue.popleft().end()
        return reply

    def _turn(self) -> Waiting:
        def give_up() -> None:
            self._queue.remove(waiting)

        waiting = self._locks.waiting(give_up=give_up)
        self._queue.append(waiting)
        return waiting


class _WaitsForLocked(ModelStore):
    async def claim(self, request: ClaimRequest, /) -> ClaimReply:
        self._picked = await self._locks.run(self._pick(request, self._now_us()))
        return await super().claim(request)

    def _pick(self, request: ClaimRequest, now_us: int) -> Statement[list[Row]]:
        """Lock one due row after the other, and look at each again when it has been waited for."""

        def wanted(row: Row) -> bool:
            due = row.state is JobState.PENDING and row.run_at_us <= now_us + request.lookahead_us
            return due and row.task in request.tasks and not self._too_old(row, now_us)

        due = sorted(filter(wanted, self._rows.values()), key=lambda row: (row.run_at_us, row.job_id))
        picked: list[Row] = []
        for row in due:
            if len(picked) == request.limit:
                break
            yield row.job_id
            if wanted(row):
                picked.append(row)
        return picked

    def _pick_due(self, request: ClaimRequest, now_us: int) -> list[Row]:
        return self._picked


def _without_skip_locked(queries: Queries) -> dict[str, str]:
    return {"claim": rewritten(queries.claim, ("FOR UPDATE SKIP LOCKED", "FOR UPDATE"))}


def _wrap(store: Store, locks: RowLocks) -> Store:
    assert isinstance(locks, LockTable)  # in a laboratory there is no other
    return _ClaimsInTurn(store, locks)


FOR_UPDATE_WITHOUT_SKIP_LOCKED = Variant(
    name="for-update-without-skip-locked",
    says="a claim waits for the rows that another claim has locked, instead of passing them over",
    caught_by=("lateness-bounded",),
    model_store=_WaitsForLocked,
    rewrite=_without_skip_locked,
    wrap=_wrap,
)
