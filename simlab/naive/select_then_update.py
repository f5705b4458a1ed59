"""SELECT what is due, then UPDATE it: two statements, and no lock on the rows in between.

Each is right by itself. Two workers that ask in the same few milliseconds select the same rows, and each of them
makes them its own: the second takes away what the first has just been told is its.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler.jobs import JobState
from scheduler.postgres import Database, Parameters, PostgresStore, Queries
from scheduler.store import ClaimReply, ClaimRequest
from simlab.naive.rewriting import rewritten
from simlab.pgworld import VirtualDatabase
from simlab.scenario import Variant
from simlab.store import ModelStore, Row

__all__ = ["SELECT_THEN_UPDATE"]

BETWEEN_US = 2_000
"""From one statement to the next: a round trip, and a moment of the worker's own."""


class _SelectsThenUpdates(ModelStore):
    async def claim(self, request: ClaimRequest, /) -> ClaimReply:
        selected = self._select_due(request, self._now_us())
        await self._locks.pause_us(BETWEEN_US)
        self._selected = selected
        return await super().claim(request)

    def _select_due(self, request: ClaimRequest, now_us: int) -> list[Row]:
        due = [
            row
            for row in self._rows.values()
            if row.state is JobState.PENDING
            and row.run_at_us <= now_us + request.lookahead_us
            and row.task in request.tasks
            and not self._too_old(row, now_us)
        ]
        return sorted(due, key=lambda row: (row.run_at_us, row.job_id))[: request.limit]

    def _pick_due(self, request: ClaimRequest, now_us: int) -> list[Row]:
        return self._selected


class _TwoStatements:
    """Runs the claim as the two halves of production's statement, one after the other and without row locks."""

    def __init__(self, database: Database, claim: str) -> None:
        assert isinstance(database, VirtualDatabase)  # only there is it known what a pause is
        self._database = database
        self._claim = claim
        pick = claim[claim.index("    SELECT job.job_id") : claim.index("),\nclaimed AS")]
        self._select = rewritten(pick, ("    FOR UPDATE SKIP LOCKED\n", ""))
        self._update = rewritten(claim, (pick, "    SELECT unnest(%(selected)s::uuid[]) AS job_id\n"))

    async def fetch(self, query: str, parameters: Parameters) -> Sequence[tuple[Any, ...]]:
        if query != self._claim:
            return await self._database.fetch(query, parameters)
        rows = await self._database.fetch(self._select, parameters)
        await self._database.pause_us(BETWEEN_US)
        return await self._database.fetch(self._update, {**parameters, "selected": [row[0] for row in rows]})


class _PostgresSelectsThenUpdates(PostgresStore):
    def __init__(self, database: Database, *, queries: Queries | None = None) -> None:
        known = queries if queries is not None else Queries.load()
        super().__init__(_TwoStatements(database, known.claim), queries=known)


SELECT_THEN_UPDATE = Variant(
    name="select-then-update",
    says="what is due is selected without a lock, and made the worker's by a second statement",
    caught_by=("one-live-lease",),
    model_store=_SelectsThenUpdates,
    postgres_store=_PostgresSelectsThenUpdates,
)
