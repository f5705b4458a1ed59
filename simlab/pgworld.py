"""Virtual time on a real PostgreSQL: production's statements, untouched, at the laboratory's time.

The statements say an unqualified ``now()``. With the search path ``lab, pg_catalog`` (pg_catalog named, and
after lab) that name resolves to ``lab.now()``, which reads a setting of the session. The planner inlines it,
so the indexes are still used. ``CURRENT_TIMESTAMP`` and ``clock_timestamp()`` would escape this, which is why
the statements do not use them.

A statement that has to wait for a row lock really waits, on a connection of its own, while virtual time goes on;
PostgreSQL itself decides what it finds when the lock goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import psycopg

from scheduler.jobs import Job, from_us, instant_to_us
from scheduler.postgres import PostgresStore, Queries, apply_migrations
from scheduler.store import Store
from simlab.effects import Effect, EffectMode
from simlab.errors import SimulationError
from simlab.locks import LockTable, RowLocks, Waiting
from simlab.world import Backend, DatabaseClock

__all__ = ["PostgresEffects", "VirtualDatabase", "postgres_backend"]

SCHEMA = "lab"

LOCK_TIMEOUT_MS = 10_000
"""A statement that waits where nothing is locked, as far as the laboratory knows, is a mistake in the laboratory."""

PATIENCE_S = 30.0
"""How long a statement may take, in real time, to end or to come to a lock."""

LOOK_S = 0.002
"""How often a statement that has not ended yet is asked whether it waits for a lock."""

MAX_WAITING = 64
"""The most statements that may wait for locks at once."""

_MAX_ROWS = 10_000_000


class VirtualDatabase:
    """Runs each statement as one transaction, at the laboratory's time.

    A statement takes no virtual time, and the network in front of the store decides what it costs to reach.
    Only one that must wait for a row lock waits in virtual time.

    Parameters
    ----------
    connection
        For whatever cannot have to wait.
    connect
        Opens one more connection like it, for a statement that may.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        now_us: Callable[[], int],
        locks: LockTable,
        *,
        connect: Callable[[], psycopg.Connection[Any]],
    ) -> None:
        self._connection = connection
        self._now_us = now_us
        self._locks = locks
        self._connect = connect
        self._idle: list[psycopg.Connection[Any]] = []
        self._under_way: list[_UnderWay] = []
        self._threads: ThreadPoolExecutor | None = None

    async def pause_us(self, duration_us: int) -> None:
        """Let virtual time pass between two statements."""
        await self._locks.pause_us(duration_us)

    async def fetch(self, query: str, parameters: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
        now_us = self._now_us()
        if not self._locks.busy:
            return self.fetch_now(query, parameters, now_us=now_us)
        statement = self._begin(query, parameters, now_us)
        self.settle()
        if not statement.ended:
            statement.waiting = self._locks.waiting(give_up=lambda: self._give_up(statement))
            await statement.waiting.reply()
        return statement.future.result()

    def fetch_now(
        self, query: str, parameters: Mapping[str, Any], *, now_us: int | None = None
    ) -> Sequence[tuple[Any, ...]]:
        """Run one statement that cannot have to wait, by default at the present moment."""
        return _fetch(self._connection, query, parameters, self._now_us() if now_us is None else now_us)

    def settle(self) -> None:
        """See that every statement has ended that can, and wake who waits for the replies."""
        self._until_each_ends_or_waits()
        ended = [statement for statement in self._under_way if statement.ended]
        self._under_way = [statement for statement in self._under_way if not statement.ended]
        for statement in ended:
            self._idle.append(statement.connection)
            if statement.waiting is not None:
                statement.waiting.end()

    def close(self) -> None:
        """End what still waits, and close the connections opened here."""
        for statement in self._under_way:
            statement.connection.cancel_safe()
        wait([statement.future for statement in self._under_way], timeout=PATIENCE_S)
        for connection in (*self._idle, *(statement.connection for statement in self._under_way)):
            connection.close()
        if self._threads is not None:
            self._threads.shutdown()

    def _begin(self, query: str, parameters: Mapping[str, Any], now_us: int) -> _UnderWay:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(MAX_WAITING, "simlab-waits")
        if len(self._under_way) == MAX_WAITING:
            raise SimulationError(f"more than {MAX_WAITING} statements wait for row locks at once")
        connection = self._idle.pop() if self._idle else self._connect()
        future = self._threads.submit(_fetch, connection, query, parameters, now_us)
        statement = _UnderWay(connection, future)
        self._under_way.append(statement)
        return statement

    def _until_each_ends_or_waits(self) -> None:
        """Wait, in real time, until no statement is under way but those that wait for a lock."""
        for _ in range(int(PATIENCE_S / LOOK_S)):
            running = {one.pid: one.future for one in self._under_way if not one.ended}
            if not running or wait(running.values(), LOOK_S, FIRST_COMPLETED).done:
                if len(running) <= 1:
                    return
                continue
            # One that has ended on the server, or has just been given its lock, is blocked by nobody.
            free = self._connection.execute(
                "SELECT FROM unnest(%s::int[]) AS pid WHERE cardinality(pg_blocking_pids(pid)) = 0",
                [list(running)],
            )
            if free.rowcount == 0:
                return
        raise SimulationError(f"a statement neither ended nor came to a lock within {PATIENCE_S:g} s")

    def _give_up(self, statement: _UnderWay) -> None:
        """Undo a statement that has waited for too long; who waits for it goes on."""
        statement.connection.cancel_safe()
        wait([statement.future], timeout=PATIENCE_S)
        self._under_way.remove(statement)
        self._idle.append(statement.connection)
        self.settle()


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A statement on a connection of its own."""

    connection: psycopg.Connection[Any]
    future: Future[Sequence[tuple[Any, ...]]]
    waiting: Waiting | None = None
    pid: int = field(init=False)

    def __post_init__(self) -> None:
        self.pid = self.connection.info.backend_pid

    @property
    def ended(self) -> bool:
        return self.future.done()


def _fetch(
    connection: psycopg.Connection[Any], query: str, parameters: Mapping[str, Any], now_us: int
) -> Sequence[tuple[Any, ...]]:
    # One round trip: the setting and the statement travel together.
    with connection.pipeline():
        connection.execute("SELECT set_config('lab.now', %s, false)", [from_us(now_us).isoformat()])
        cursor = connection.execute(query.encode(), parameters)
    rows: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
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
    database: VirtualDatabase
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
        self.database.settle()

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
            _settle_in(connection)
            connection.execute(f"SET lock_timeout = {LOCK_TIMEOUT_MS}")
            _settle_in(other)
            connection.execute(
                "SELECT set_config('lab.now', %s, false)", [from_us(clock.now_us()).isoformat()]
            )
            _create_tables(connection)
            database = VirtualDatabase(connection, clock.now_us, locks, connect=lambda: _connect(dsn))
            queries = Queries.load()
            if rewrite is not None:
                queries = replace(queries, **rewrite(queries))
            real = store_class(database, queries=queries)
            store = real if wrap is None else wrap(real, locks)
            try:
                yield _PostgresBackend(store, real, database, PostgresEffects(database), locks, other)
            finally:
                database.close()
        finally:
            other.execute("ROLLBACK")
            connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")


def _connect(dsn: str) -> psycopg.Connection[Any]:
    connection = psycopg.connect(dsn, autocommit=True)
    _settle_in(connection)
    return connection


def _settle_in(connection: psycopg.Connection[Any]) -> None:
    """Let a connection find the laboratory's tables, and its time."""
    connection.execute(f"SET search_path = {SCHEMA}, pg_catalog")
    connection.execute("SET TIME ZONE 'UTC'")


def _create_tables(connection: psycopg.Connection[Any]) -> None:
    apply_migrations(connection)
    connection.execute(
        "CREATE TABLE effects (n bigserial PRIMARY KEY, job_id uuid NOT NULL, token bigint NOT NULL, "
        "host text NOT NULL, at timestamptz NOT NULL)"
    )
    connection.execute("CREATE INDEX effects_job ON effects (job_id)")
