"""The Store on PostgreSQL: production's. The only module that imports psycopg.

Two halves. :class:`PostgresStore` says what to ask: it turns verbs into the statements of ``sql/`` and rows
into replies, and knows nothing of connections. A :class:`Database` runs one statement in one transaction:
:class:`PoolDatabase` on a pool of asyncio connections, :class:`ConnectionDatabase` on the caller's own
connection and inside the caller's own transaction.

Every instant is the database's ``now()``. Durations go in as intervals; nothing here reads a clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from importlib import resources
from typing import Any, Protocol
from uuid import UUID

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from scheduler.errors import InvalidSetting, MissingMigration, StoreUnavailable
from scheduler.jobs import Job, JobState, Lease, LeaseRef, NewJob, from_us, instant_to_us, to_us
from scheduler.store import (
    Cancelled,
    CancelReply,
    CancelResult,
    ClaimReply,
    ClaimRequest,
    Early,
    Enqueued,
    EnqueueReply,
    Finished,
    FinishReply,
    HeartbeatReply,
    Outcome,
    Renewed,
    ReplayReply,
    StartReply,
    Stats,
    SweepReply,
    Swept,
    refuse_repeated_leases,
    refuse_wrong_jobs,
)

__all__ = [
    "MIGRATIONS",
    "ConnectionDatabase",
    "Database",
    "PoolDatabase",
    "PostgresStore",
    "Queries",
    "applied_migration",
    "apply_migrations",
    "migrate",
    "open_postgres",
]

Row = tuple[Any, ...]
Parameters = Mapping[str, Any]

_SQL = resources.files("scheduler") / "sql"


def _read(name: str) -> str:
    return (_SQL / f"{name}.sql").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """The statements, one field a file in ``sql/``; a laboratory may replace one."""

    enqueue: str
    existing: str
    claim: str
    sweep: str
    start: str
    heartbeat: str
    finish: str
    cancel: str
    replay: str
    get: str
    list: str
    stats: str

    @classmethod
    def load(cls) -> Queries:
        """Read the statements that ship with the package."""
        return cls(**{field.name: _read(field.name) for field in fields(cls)})


LARGE_BATCH = 1000
"""Up to so many jobs in a call, the time limit is the plain one: a worker's lease is reckoned with it."""

ROW_ALLOWANCE_US = 150
"""What each job beyond `LARGE_BATCH` adds to a call's time limit; inserting one takes about a fifth of it."""


class Database(Protocol):
    """Runs statements."""

    async def fetch(self, query: str, parameters: Parameters) -> Sequence[Row]:
        """Run one statement as one transaction (or as a part of the caller's) and return its rows.

        Raises
        ------
        StoreUnavailable
            If the statement was not answered; it may or may not have been carried out.
        """


class PoolDatabase:
    """One transaction a statement, on a pool of asyncio connections.

    Parameters
    ----------
    timeout_us
        How long one call may take, waiting for a connection included. A batch of more than `LARGE_BATCH`
        jobs may take `ROW_ALLOWANCE_US` longer for each job beyond.
    """

    def __init__(self, pool: AsyncConnectionPool[Any], *, timeout_us: int) -> None:
        self._pool = pool
        self._timeout_s = timeout_us / 1_000_000

    async def fetch(self, query: str, parameters: Parameters) -> Sequence[Row]:
        more_s = max(0, len(parameters.get("job_ids", ())) - LARGE_BATCH) * ROW_ALLOWANCE_US / 1_000_000
        timeout_s = self._timeout_s + more_s
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            async with self._pool.connection(timeout_s) as connection, _hanging_up(connection, deadline):
                if not more_s:
                    return await _fetch(connection, query, parameters)
                async with connection.transaction():
                    # The connection's own limit is meant for the small statements of a worker.
                    await connection.execute(f"SET LOCAL statement_timeout = {int(timeout_s * 1000)}")
                    return await _fetch(connection, query, parameters)
        except (psycopg.Error, PoolTimeout) as error:
            if loop.time() >= deadline:
                raise StoreUnavailable(f"PostgreSQL did not answer within {timeout_s:g} s") from error
            raise _translated(error) from error


@asynccontextmanager
async def _hanging_up(connection: psycopg.AsyncConnection[Any], deadline: float) -> AsyncIterator[None]:
    """Hang up at the deadline, so that a connection which has gone silent ends the statement on it.

    Cancelling the statement is not enough: psycopg then asks the server to cancel it too and waits for the answer,
    up to ten seconds in all, which a silent network never gives (``AsyncConnection.wait`` of psycopg 3.3). Here the
    socket is shut down and the statement fails at once; a server that still works ends it by its statement timeout,
    and the pool throws the connection away.
    """

    def hang_up() -> None:
        # A second handle on the same socket: psycopg keeps its own, and reads from it that this is the end.
        with (
            contextlib.suppress(psycopg.Error, OSError),
            socket.socket(fileno=os.dup(connection.fileno())) as line,
        ):
            line.shutdown(socket.SHUT_RDWR)

    timer = asyncio.get_running_loop().call_at(deadline, hang_up)
    try:
        yield
    finally:
        timer.cancel()


async def _fetch(
    connection: psycopg.AsyncConnection[Any], query: str, parameters: Parameters
) -> Sequence[Row]:
    cursor = await connection.execute(query, parameters)
    rows: list[Row] = await cursor.fetchall()
    return rows


class ConnectionDatabase:
    """The caller's own connection, sync or async: the statement is part of the caller's transaction.

    Nothing is committed or rolled back here; enqueued jobs exist when, and only if, the caller commits.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> None:
        self._connection = connection

    async def fetch(self, query: str, parameters: Parameters) -> Sequence[Row]:
        # Rows as tuples, whatever row factory the caller has set on the connection.
        rows = psycopg.rows.tuple_row
        try:
            if isinstance(self._connection, psycopg.AsyncConnection):
                async with self._connection.cursor(row_factory=rows) as cursor:
                    await cursor.execute(query, parameters)
                    return await cursor.fetchall()
            with self._connection.cursor(row_factory=rows) as plain:
                plain.execute(query, parameters)
                return plain.fetchall()
        except psycopg.Error as error:
            raise _translated(error) from error


def _translated(error: Exception) -> Exception:
    """Return the scheduler's error for one of psycopg's; what is a mistake of ours stays as it is."""
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        return MissingMigration(found=0, wanted=MIGRATIONS[-1])
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return StoreUnavailable(f"PostgreSQL: {_first_line(error)}")
    if isinstance(error, _REFUSALS):
        return StoreUnavailable(
            f"PostgreSQL refuses: {_first_line(error)}; use a role and a server that may write"
        )
    return error


_REFUSALS = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.ReadOnlySqlTransaction,
)


def _unreachable(error: psycopg.OperationalError) -> StoreUnavailable:
    return StoreUnavailable(f"PostgreSQL: {_first_line(error)}; is it running, and is the DSN right?")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


class PostgresStore:
    """The Store port in SQL."""

    def __init__(self, database: Database, *, queries: Queries | None = None) -> None:
        self._database = database
        self._sql = queries if queries is not None else Queries.load()

    def inside(self, connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> PostgresStore:
        """Return this store inside the caller's own transaction, for enqueueing together with other writes.

        Examples
        --------
        >>> async with connection.transaction():          # doctest: +SKIP
        ...     await connection.execute("INSERT INTO orders ...")
        ...     await Client(app, store.inside(connection), rng=rng).enqueue("ship", {"order": 7})
        """
        return PostgresStore(ConnectionDatabase(connection), queries=self._sql)

    async def enqueue(self, jobs: Sequence[NewJob], /) -> EnqueueReply:
        refuse_wrong_jobs(jobs)
        payloads = [json.dumps(dict(job.payload)) for job in jobs]
        identity: dict[str, Any] = {
            "job_ids": [job.job_id for job in jobs],
            "tasks": [job.task for job in jobs],
            "payloads": payloads,
            "keys": [job.idempotency_key for job in jobs],
        }
        rows = await self._database.fetch(
            self._sql.enqueue,
            identity
            | {
                "run_ats": [None if job.run_at_us is None else from_us(job.run_at_us) for job in jobs],
                "delays": [_interval(job.delay_us) for job in jobs],
                "max_attempts": [job.max_attempts for job in jobs],
                "max_ages": [_interval(job.max_age_us) for job in jobs],
            },
        )
        created = {row[0] for row in rows}
        now_us = _instant(rows[0][1]) if rows else 0
        earlier: dict[int, Row] = {}
        if len(created) < len(jobs):
            found = await self._database.fetch(self._sql.existing, identity)
            for row in found:
                earlier.setdefault(row[0] - 1, row)
            now_us = now_us or _instant(found[0][3])
        return EnqueueReply(
            now_us,
            tuple(
                Enqueued(job.job_id, created=True)
                if job.job_id in created
                else Enqueued(earlier[n][1], created=False, same=earlier[n][2])
                for n, job in enumerate(jobs)
            ),
        )

    async def claim(self, request: ClaimRequest, /) -> ClaimReply:
        rows = await self._database.fetch(
            self._sql.claim,
            {
                "owner": request.owner,
                "tasks": list(request.tasks),
                "limit": request.limit,
                "lookahead": _interval(request.lookahead_us),
                "lease": _interval(request.lease_us),
            },
        )
        now_us = _instant(rows[0][0])
        return ClaimReply(now_us, tuple(_lease(row, request.owner, now_us) for row in rows if row[1]))

    async def sweep(self, *, limit: int) -> SweepReply:
        rows = await self._database.fetch(self._sql.sweep, {"limit": limit})
        return SweepReply(
            _instant(rows[0][0]),
            tuple(
                Swept(
                    job_id=row[1],
                    owner=row[2],
                    token=row[3],
                    attempt=row[4],
                    was=JobState(row[5]),
                    state=JobState(row[6]),
                )
                for row in rows
                if row[1]
            ),
        )

    async def start(self, refs: Sequence[LeaseRef], /) -> StartReply:
        refuse_repeated_leases(refs)
        rows = await self._database.fetch(self._sql.start, _named(refs))
        now_us = _instant(rows[0][0])
        return StartReply(
            now_us,
            started=tuple(row[1] for row in rows if row[1] and not row[2]),
            early=tuple(Early(row[1], _instant(row[3]) - now_us) for row in rows if row[1] and row[2]),
        )

    async def heartbeat(self, refs: Sequence[LeaseRef], /, *, lease_us: int) -> HeartbeatReply:
        refuse_repeated_leases(refs)
        rows = await self._database.fetch(self._sql.heartbeat, _named(refs) | {"lease": _interval(lease_us)})
        return HeartbeatReply(
            _instant(rows[0][0]), tuple(Renewed(row[1], row[2], row[3]) for row in rows if row[1])
        )

    async def finish(self, outcomes: Sequence[Outcome], /) -> FinishReply:
        if not outcomes:
            raise ValueError("finish needs at least one outcome")
        refuse_repeated_leases([outcome.ref for outcome in outcomes])
        rows = await self._database.fetch(
            self._sql.finish,
            _named([outcome.ref for outcome in outcomes])
            | {
                "kinds": [outcome.kind.value for outcome in outcomes],
                "delays": [_interval(outcome.delay_us) for outcome in outcomes],
                "errors": [outcome.error for outcome in outcomes],
            },
        )
        return FinishReply(
            _instant(rows[0][0]),
            tuple(
                Finished(
                    job_id=row[1],
                    accepted=row[2],
                    recovered=bool(row[3]),
                    state=None if row[4] is None else JobState(row[4]),
                )
                for row in rows
            ),
        )

    async def cancel(self, job_ids: Sequence[UUID], /) -> CancelReply:
        if not job_ids:
            raise ValueError("cancel needs at least one job")
        rows = await self._database.fetch(self._sql.cancel, {"job_ids": list(job_ids)})
        return CancelReply(
            _instant(rows[0][0]), tuple(Cancelled(row[1], CancelResult(row[2])) for row in rows)
        )

    async def replay(self, job_ids: Sequence[UUID], /) -> ReplayReply:
        rows = await self._database.fetch(self._sql.replay, {"job_ids": list(job_ids)})
        return ReplayReply(_instant(rows[0][0]), tuple(row[1] for row in rows if row[1]))

    async def get(self, job_id: UUID, /) -> Job | None:
        rows = await self._database.fetch(self._sql.get, {"job_id": job_id})
        return _job(rows[0]) if rows else None

    async def list_jobs(self, *, state: JobState | None = None, limit: int = 100) -> list[Job]:
        """Return a page of jobs, soonest first."""
        rows = await self._database.fetch(
            self._sql.list, {"state": None if state is None else state.value, "limit": limit}
        )
        return [_job(row) for row in rows]

    async def stats(self) -> Stats:
        rows = await self._database.fetch(self._sql.stats, {})
        counts = dict.fromkeys(JobState, 0)
        oldest_due_us = 0
        for _, state, jobs, oldest_due in rows:
            if state is not None:
                counts[JobState(state)] = jobs
            if oldest_due is not None:
                oldest_due_us = to_us(oldest_due)
        return Stats(_instant(rows[0][0]), counts, oldest_due_us)


def _instant(value: Any) -> int:
    return instant_to_us("a time from the database", value)


def _interval(duration_us: int | None) -> timedelta | None:
    return None if duration_us is None else timedelta(microseconds=duration_us)


def _named(refs: Sequence[LeaseRef]) -> dict[str, Any]:
    return {
        "job_ids": [ref.job_id for ref in refs],
        "owners": [ref.owner for ref in refs],
        "tokens": [ref.token for ref in refs],
    }


def _lease(row: Row, owner: str, now_us: int) -> Lease:
    _, job_id, task, payload, attempt, max_attempts, token, run_at = row
    run_at_us = _instant(run_at)
    return Lease(
        ref=LeaseRef(job_id, owner, token),
        task=task,
        payload=payload,
        attempt=attempt,
        max_attempts=max_attempts,
        due_in_us=run_at_us - now_us,
        run_at_us=run_at_us,
    )


def _job(row: Row) -> Job:
    (
        job_id, task, payload, run_at, state, attempt, max_attempts, expires_at, lease_owner, lease_token,
        lease_expires_at, idempotency_key, cancel_requested, last_error, created_at, finished_at,
    ) = row  # fmt: skip
    return Job(
        job_id=job_id,
        task=task,
        payload=payload,
        run_at_us=_instant(run_at),
        state=JobState(state),
        attempt=attempt,
        max_attempts=max_attempts,
        expires_at_us=None if expires_at is None else _instant(expires_at),
        lease_owner=lease_owner,
        lease_token=lease_token,
        lease_expires_at_us=None if lease_expires_at is None else _instant(lease_expires_at),
        idempotency_key=idempotency_key,
        cancel_requested=cancel_requested,
        last_error=last_error,
        created_at_us=_instant(created_at),
        finished_at_us=None if finished_at is None else _instant(finished_at),
    )


def _migration_files() -> dict[int, str]:
    names = sorted(entry.name for entry in (_SQL / "migrations").iterdir() if entry.name.endswith(".sql"))
    return {int(name.partition("_")[0]): name for name in names}


MIGRATIONS = tuple(_migration_files())
"""The numbers of the migrations that ship with this version, in order."""

_MIGRATION_LOCK = 7_243_392_105_511_417
"""An advisory lock, so that two deployments migrating at once take turns."""


def migrate(dsn: str) -> list[int]:
    """Bring the tables of a database up to this version; return the migrations applied, perhaps none.

    All of it is one transaction: it happens as a whole or not at all.

    Raises
    ------
    MissingMigration
        If the database is newer than this version.
    StoreUnavailable
        If it cannot be reached.
    """
    try:
        with psycopg.connect(_conninfo(dsn), connect_timeout=5) as connection:
            return apply_migrations(connection)
    except psycopg.OperationalError as error:
        raise _unreachable(error) from error
    except _REFUSALS as error:
        raise _translated(error) from error
    except psycopg.Error as error:
        raise StoreUnavailable(
            f"the migration failed and left nothing behind: {_first_line(error)}"
        ) from error


def apply_migrations(connection: psycopg.Connection[Any]) -> list[int]:
    """Apply what is missing, on a connection of the caller's; return the migrations applied, perhaps none.

    The tables are made in the first schema of the connection's search path.
    """
    files = _migration_files()
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_MIGRATION_LOCK])
        found = applied_migration(connection)
        if found > MIGRATIONS[-1]:
            raise MissingMigration(found=found, wanted=MIGRATIONS[-1])
        pending = [number for number in MIGRATIONS if number > found]
        for number in pending:
            text = (_SQL / "migrations" / files[number]).read_text(encoding="utf-8")
            connection.execute(text.encode())
            connection.execute(
                "INSERT INTO scheduler_migrations (version, applied_at) VALUES (%s, now())", [number]
            )
    return pending


def applied_migration(connection: psycopg.Connection[Any]) -> int:
    """Return the newest migration a database has, creating the table that remembers it if need be."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS scheduler_migrations "
        "(version integer PRIMARY KEY, applied_at timestamptz NOT NULL)"
    )
    row = connection.execute("SELECT coalesce(max(version), 0) FROM scheduler_migrations").fetchone()
    assert row is not None  # an aggregate without GROUP BY always returns one row
    found: int = row[0]
    return found


def _conninfo(dsn: str, **more: Any) -> str:
    try:
        return make_conninfo(dsn, **more)
    except psycopg.ProgrammingError as error:
        if "password" in dsn or "@" in dsn:
            # libpq quotes what it could not read, and that may be the password.
            raise InvalidSetting(
                "DSN", "...", "does not read; write postgresql://user:password@host/name"
            ) from None
        raise InvalidSetting("DSN", dsn, _first_line(error)) from error


@asynccontextmanager
async def open_postgres(
    dsn: str, *, connections: int = 4, timeout_us: int = 2_500_000
) -> AsyncIterator[PostgresStore]:
    """Open a store on a database that has been migrated.

    Parameters
    ----------
    connections
        The most connections the pool opens. A worker has at most five calls in flight: poll, start,
        heartbeat, finish, and one to spare.
    timeout_us
        How long one call may take before it counts as unanswered.

    Raises
    ------
    StoreUnavailable
        If the database cannot be reached.
    MissingMigration
        If its tables are missing or of another version.
    """
    milliseconds = max(1, timeout_us // 1000)
    conninfo = _conninfo(
        dsn,
        connect_timeout=max(2, timeout_us // 1_000_000),
        # A host that has gone silent is noticed by the kernel, too.
        tcp_user_timeout=milliseconds,
        application_name="scheduler",
    )
    await _check(conninfo)
    async with AsyncConnectionPool(
        conninfo,
        min_size=1,
        max_size=connections,
        open=False,
        kwargs={"autocommit": True},
        configure=_configure(milliseconds),
        timeout=timeout_us / 1_000_000,
        # The pool doubles its pause after each failed attempt, for as long as this: after an outage of minutes it
        # would sleep for minutes more. Whoever gives up soon tries again at the next call, which the callers pace.
        reconnect_timeout=timeout_us / 1_000_000,
    ) as pool:
        yield PostgresStore(PoolDatabase(pool, timeout_us=timeout_us))


def _configure(milliseconds: int) -> Any:
    async def configure(connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute(f"SET statement_timeout = {int(milliseconds)}")

    return configure


async def _check(conninfo: str) -> None:
    try:
        # Connecting once by hand gives the reason at once; the pool would only say that time ran out.
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
            cursor = await connection.execute("SELECT to_regclass('scheduler_migrations') IS NOT NULL")
            row = await cursor.fetchone()
            found = 0
            if row and row[0]:
                cursor = await connection.execute(
                    "SELECT coalesce(max(version), 0) FROM scheduler_migrations"
                )
                newest = await cursor.fetchone()
                found = newest[0] if newest else 0
    except psycopg.OperationalError as error:
        raise _unreachable(error) from error
    except psycopg.Error as error:
        raise _translated(error) from error
    if found != MIGRATIONS[-1]:
        raise MissingMigration(found=found, wanted=MIGRATIONS[-1])
