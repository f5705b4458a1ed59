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
from simlab.effects import Effect, EffectMode
from simlab.world import Backend, DatabaseClock

__all__ = ["PostgresEffects", "VirtualDatabase", "postgres_backend"]

SCHEMA = "lab"

_MAX_ROWS = 10_000_000


class VirtualDatabase:
    """Runs each statement on one connection, at the laboratory's time.

    Nothing awaits here: a statement takes no virtual time, and the network in front of the store decides
    what it costs to reach.
    """

    def __init__(self, connection: psycopg.Connection[Any], now_us: Callable[[], int]) -> None:
        self._connection = connection
        self._now_us = now_us

    async def fetch(self, query: str, parameters: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
        return self.fetch_now(query, parameters)

    def fetch_now(self, query: str, parameters: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
        """Run one statement as one transaction."""
        now = from_us(self._now_us()).isoformat()
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
    store: PostgresStore
    effects: PostgresEffects
    database: VirtualDatabase

    def table(self) -> list[Job]:
        rows = _run(self.store.list_jobs(limit=_MAX_ROWS))
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
    clock: DatabaseClock, *, dsn: str, rewrite: Callable[[Queries], Mapping[str, str]] | None = None
) -> Iterator[Backend]:
    """Open the laboratory's schema on a server, from nothing, and drop it again.

    Parameters
    ----------
    rewrite
        From production's statements to those that replace some of them, by the name of their file.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        connection.execute(f"CREATE SCHEMA {SCHEMA}")
        try:
            connection.execute(
                f"CREATE FUNCTION {SCHEMA}.now() RETURNS timestamptz LANGUAGE sql STABLE "
                f"AS $$ SELECT current_setting('lab.now')::timestamptz $$"
            )
            connection.execute(f"SET search_path = {SCHEMA}, pg_catalog")
            connection.execute("SET TIME ZONE 'UTC'")
            connection.execute(
                "SELECT set_config('lab.now', %s, false)", [from_us(clock.now_us()).isoformat()]
            )
            _create_tables(connection)
            database = VirtualDatabase(connection, clock.now_us)
            queries = Queries.load()
            if rewrite is not None:
                queries = replace(queries, **rewrite(queries))
            store = PostgresStore(database, queries=queries)
            yield _PostgresBackend(store, PostgresEffects(database), database)
        finally:
            connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")


def _create_tables(connection: psycopg.Connection[Any]) -> None:
    apply_migrations(connection)
    connection.execute(
        "CREATE TABLE effects (n bigserial PRIMARY KEY, job_id uuid NOT NULL, token bigint NOT NULL, "
        "host text NOT NULL, at timestamptz NOT NULL)"
    )
    connection.execute("CREATE INDEX effects_job ON effects (job_id)")
