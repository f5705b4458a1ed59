"""Virtual time on a real PostgreSQL: production's statements, untouched, at the laboratory's time.

The statements say an unqualified ``now()``. With the search path ``lab, pg_catalog`` (pg_catalog named, and
after lab) that name resolves to ``lab.now()``, which reads a setting of the session. The planner inlines it,
so the indexes are still used. ``CURRENT_TIMESTAMP`` and ``clock_timestamp()`` would escape this, which is why
the statements do not use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import psycopg

from scheduler.jobs import Job, from_us, instant_to_us
from scheduler.postgres import PostgresStore, Queries, apply_migrations
from scheduler.store import Store
from simlab.effects import Effect, EffectMode
from simlab.locks import LockTable, RowLocks
from simlab.world import Backend, DatabaseClock

__all__ = ["PostgresEffects", "VirtualDatabase", "postgres_backend"]

SCHEMA = "lab"

LOCK_TIMEOUT_MS = 20

_MAX_ROWS = 10_000_000


class VirtualDatabase:
    """Runs each statement on one connection, at the laboratory's time.

    A statement takes no virtual time, and the network in front of the store decides what it costs to reach;
    but one that must wait for a row lock waits in virtual time.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], now_us: Callable[[], int], locks: LockTable
    ) -> None:
        self._connection = connection
        self._now_us = now_us
        self._locks = locks

    async def pause_us(self, duration_us: int) -> None:
        """Let virtual time pass between two statements."""
        await self._locks.pause_us(duration_us)

    async def fetch(self, query: str, parameters: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
        now_us = self._now_us()
        deadline_us = self._locks.deadline_us()
        while True:
            try:
                return self.fetch_now(query, parameters, now_us=now_us)
            except psycopg.errors.LockNotAvailable:
                # It would wait for somebody's row lock. Waiting here would stop the world: it is rolled back,
                # and run again when the lock goes, with ``now()`` still the start of its transaction.
                await self._locks.wait_for_release(deadline_us)

    def fetch_now(
        self, query: str, parameters: Mapping[str, Any], *, now_us: int | None = None
    ) -> Sequence[tuple[Any, ...]]:
        """Run one statement as one transaction, by default at the present moment."""
        now = from_us(self._now_us() if now_us is None else now_us).isoformat()
        # One round trip: the setting and the statement travel together.
        with self._connection.pipeline():
            self._connection.execute("SELECT set_config('lab.now', %s, false)", [now])
            cursor = self._connection.execute(query.encode(), parameters)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


_EFFECT = """
WITH seen AS (
    SELECT max(token) AS token FROM effects WHERE job_id = %(job_id)s
),
applied AS (
    INSERT INTO effects (job_id, token, host, at)
    SELECT %(job_id)s, %(token)s, %(host)s, now()
    FROM seen
    WHERE seen.token IS NULL
       OR CASE %(mode)s WHEN 'idempotent' THEN false WHEN 'fenced' THEN %(token)s >= seen.token ELSE true END
    RETURNING 1
)
SELECT now(), EXISTS (SELECT FROM applied)
"""


class PostgresEffects:
    """The ledger as a table in the laboratory's schema."""

    def __init__(self, database: VirtualDatabase) -> None:
        self._database = database

    async def apply(self, job_id: UUID, *, token: int, host: str, mode: EffectMode) -> tuple[int, bool]:
        rows = self._database.fetch_now(
            _EFFECT, {"job_id": job_id, "token": token, "host": host, "mode": mode.value}
        )
        now, new = rows[0]
        return instant_to_us("at", now), new

    def table(self) -> list[Effect]:
        rows = self._database.fetch_now("SELECT job_id, token, host, at FROM effects ORDER BY n", {})
        return [
            Effect(job_id=job_id, token=token, host=host, at_us=instant_to_us("at", at))
            for job_id, token, host, at in rows
        ]


@dataclass(frozen=True, slots=True)
class _PostgresBackend:
    store: Store
    real: PostgresStore
    effects: PostgresEffects
    locks: LockTable
    other: psycopg.Connection[Any]

    def lock(self, job_ids: Sequence[UUID]) -> None:
        self.other.execute("BEGIN")
        self.other.execute(
            "SELECT FROM scheduler_jobs WHERE job_id = ANY (%s) ORDER BY job_id FOR UPDATE", [list(job_ids)]
        )
        self.locks.lock(job_ids)

    def unlock(self) -> None:
        self.other.execute("ROLLBACK")
        self.locks.unlock()

    def table(self) -> list[Job]:
        rows = _run(self.real.list_jobs(limit=_MAX_ROWS))
        return sorted(rows, key=lambda job: job.job_id)


def _run(coroutine: Any) -> Any:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a statement on the laboratory's own connection never waits")


@contextmanager
def postgres_backend(
    clock: DatabaseClock,
    locks: LockTable,
    *,
    dsn: str,
    store_class: type[PostgresStore] = PostgresStore,
    rewrite: Callable[[Queries], Mapping[str, str]] | None = None,
    wrap: Callable[[Store, RowLocks], Store] | None = None,
) -> Iterator[Backend]:
    """Open the laboratory's schema on a server, from nothing, and drop it again.

    Parameters
    ----------
    store_class, wrap
        A replaced store, and one to put in front of it.
    rewrite
        From production's statements to those that replace some of them, by the name of their file.
    """
    with (
        psycopg.connect(dsn, autocommit=True) as connection,
        psycopg.connect(dsn, autocommit=True) as other,
    ):
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        connection.execute(f"CREATE SCHEMA {SCHEMA}")
        try:
            connection.execute(
                f"CREATE FUNCTION {SCHEMA}.now() RETURNS timestamptz LANGUAGE sql STABLE "
                f"AS $$ SELECT current_setting('lab.now')::timestamptz $$"
            )
            connection.execute(f"SET search_path = {SCHEMA}, pg_catalog")
            connection.execute("SET TIME ZONE 'UTC'")
            # Long enough for a server that is busy with other things, short enough for a story full of locks.
            connection.execute(f"SET lock_timeout = {LOCK_TIMEOUT_MS}")
            other.execute(f"SET search_path = {SCHEMA}, pg_catalog")
            connection.execute(
                "SELECT set_config('lab.now', %s, false)", [from_us(clock.now_us()).isoformat()]
            )
            _create_tables(connection)
            database = VirtualDatabase(connection, clock.now_us, locks)
            queries = Queries.load()
            if rewrite is not None:
                queries = replace(queries, **rewrite(queries))
            real = store_class(database, queries=queries)
            store = real if wrap is None else wrap(real, locks)
            yield _PostgresBackend(store, real, PostgresEffects(database), locks, other)
        finally:
            other.execute("ROLLBACK")
            connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")


def _create_tables(connection: psycopg.Connection[Any]) -> None:
    apply_migrations(connection)
    connection.execute(
        "CREATE TABLE effects (n bigserial PRIMARY KEY, job_id uuid NOT NULL, token bigint NOT NULL, "
        "host text NOT NULL, at timestamptz NOT NULL)"
    )
    connection.execute("CREATE INDEX effects_job ON effects (job_id)")
