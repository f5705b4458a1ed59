"""The lease is for waiting only: it ends when the job starts, for what runs is known to be with its worker.

Known to the worker, and to nobody else. When the worker dies the row says RUNNING, without an end at which anybody
might take it back.

On PostgreSQL the schema refuses such a row. Whoever makes this mistake has left that constraint out.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.jobs import LeaseRef
from scheduler.postgres import PostgresStore, Queries
from scheduler.store import StartReply
from simlab.locks import Statement
from simlab.naive.rewriting import rewritten
from simlab.scenario import Variant
from simlab.store import ModelStore, Row

__all__ = ["NO_LEASE_WHILE_RUNNING"]


class _EndsLeaseAtStart(ModelStore):
    def _start(self, refs: Sequence[LeaseRef], now_us: int) -> Statement[StartReply]:
        reply = yield from super()._start(refs, now_us)
        for job_id in reply.started:
            self._rows[job_id].lease_expires_at_us = None
        return reply

    def _may_sweep(self, row: Row, now_us: int) -> bool:
        return row.lease_expires_at_us is not None and super()._may_sweep(row, now_us)


class _UnconstrainedPostgres(PostgresStore):
    async def start(self, refs: Sequence[LeaseRef], /) -> StartReply:
        await self._database.fetch(
            "ALTER TABLE scheduler_jobs DROP CONSTRAINT IF EXISTS a_lease_has_owner_and_expiry", {}
        )
        return await super().start(refs)


def _ends_lease_at_start(queries: Queries) -> dict[str, str]:
    return {
        "start": rewritten(
            queries.start, ("SET state = 'RUNNING'", "SET state = 'RUNNING', lease_expires_at = NULL")
        )
    }


NO_LEASE_WHILE_RUNNING = Variant(
    name="no-lease-while-running",
    says="a job's lease ends when its handler begins",
    caught_by=("running-is-leased",),
    model_store=_EndsLeaseAtStart,
    postgres_store=_UnconstrainedPostgres,
    rewrite=_ends_lease_at_start,
)
