"""Many connections claim the same due jobs, for real: with SKIP LOCKED, without it, and without any locking.

One experiment on a real server, in real time, with a thread for each connection. With ``FOR UPDATE SKIP
LOCKED`` the claims pass each other by. With a plain ``FOR UPDATE`` they queue for the same rows. With neither,
a claim reads first and writes later, and two claims take the same job.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

import pandas as pd
import psycopg
from psycopg.conninfo import make_conninfo

from scheduler.postgres import ConnectionDatabase, PostgresStore, Queries, apply_migrations
from scheduler.store import ClaimRequest

__all__ = ["LOCKING", "claim_contention", "claims_without"]

T = TypeVar("T")

_SKIP_LOCKED = "    FOR UPDATE SKIP LOCKED\n"

LOCKING: Mapping[str, str] = {"skip locked": _SKIP_LOCKED, "for update": "    FOR UPDATE\n", "none": ""}
"""The three ways to pick what to claim: the end of the picking statement."""

MAX_CONNECTIONS = 80
"""A throwaway server lets so many in, with some to spare."""

MAX_EMPTY = 200
"""So many claims in a row that find nothing, and a connection counts what is left as skipped."""

_SCHEMA = "lab_contention"


@dataclass(slots=True)
class _Claims:
    """What one connection did."""

    jobs: list[UUID] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)
    longest: int = 0


def claims_without(locking: str) -> str:
    """Return production's claim with its locking replaced.

    Raises
    ------
    ValueError
        If there is no such way of locking.
    """
    if locking not in LOCKING:
        raise ValueError(f"locking={locking!r}: must be one of {', '.join(LOCKING)}")
    claim = Queries.load().claim
    assert claim.count(_SKIP_LOCKED) == 1, "claim.sql has changed"
    claim = claim.replace(_SKIP_LOCKED, LOCKING[locking])
    if locking == "for update":
        # What one waited for, another has taken: the claim writes only what is still there, or nothing at all.
        claim = claim.replace(
            "    WHERE job.job_id = due.job_id\n",
            "    WHERE job.job_id = due.job_id AND job.state = 'PENDING'\n",
        )
    return claim


def claim_contention(
    dsn: str,
    *,
    n_connections: int = 20,
    n_claims: int = 10_000,
    batch: int = 1,
    open_ms: float = 2.0,
    statement_timeout_ms: int = 0,
    locking: Sequence[str] = tuple(LOCKING),
) -> pd.DataFrame:
    """Let connections claim the same due jobs until none is left, once for each way of locking.

    Parameters
    ----------
    dsn
        A server to make a schema of its own in, dropped at the end.
    n_connections
        Connections, each with a thread of its own; at most `MAX_CONNECTIONS`.
    n_claims
        Rounds in all: claims that take `batch` jobs each, if each job is claimed once.
    open_ms
        How long the transaction of a claim stays open after it, in real milliseconds: what a commit to a disk,
        or a round trip to a server that is not on this machine, takes. It is what others wait for.
    statement_timeout_ms
        How long a claim may take before the server gives it up, which ends the experiment; 0 for ever.

    Returns
    -------
    pandas.DataFrame
        One row for each way of locking: `locking`, `connections`, `jobs`, `claimed_once`, `claimed_twice` (jobs
        that more than one connection was given), `double_claims` (grants beyond the first), `skipped` (jobs
        that nobody was given), `largest_claim` (jobs in one reply), `seconds`, `claims_per_s` (jobs granted a
        second), `ratio` (of that to the first row's), `claim_ms_p50`, `claim_ms_p99` (real milliseconds).
    """
    if not 1 <= n_connections <= MAX_CONNECTIONS:
        raise ValueError(f"n_connections={n_connections}: must be 1 to {MAX_CONNECTIONS}")
    rows = [
        _one_way(dsn, way, n_connections, n_claims, batch, open_ms, statement_timeout_ms) for way in locking
    ]
    frame = pd.DataFrame(rows)
    frame.insert(len(frame.columns) - 2, "ratio", frame["claims_per_s"] / frame["claims_per_s"].iloc[0])
    return frame


def _one_way(
    dsn: str,
    locking: str,
    n_connections: int,
    n_claims: int,
    batch: int,
    open_ms: float,
    statement_timeout_ms: int,
) -> dict[str, Any]:
    statement = claims_without(locking)
    n_jobs = n_claims * batch
    own = make_conninfo(dsn, options=f"-c search_path={_SCHEMA}")
    with ExitStack() as stack:
        admin = stack.enter_context(psycopg.connect(own, autocommit=True))
        admin.execute(f"DROP SCHEMA IF EXISTS {_SCHEMA} CASCADE")
        admin.execute(f"CREATE SCHEMA {_SCHEMA}")
        stack.callback(admin.execute, f"DROP SCHEMA {_SCHEMA} CASCADE")
        apply_migrations(admin)
        admin.execute(_DUE_JOBS, {"jobs": n_jobs})
        admin.execute("ANALYZE scheduler_jobs")
        connections = [
            stack.enter_context(psycopg.connect(own, autocommit=True)) for _ in range(n_connections)
        ]
        for connection in connections:
            connection.execute(f"SET statement_timeout = {int(statement_timeout_ms)}")
        claims = [_Claims() for _ in connections]
        seconds = _all_at_once(
            [
                _claimer(connection, statement, f"w{n}", batch, open_ms, claims[n])
                for n, connection in enumerate(connections)
            ]
        )
    given = Counter(job_id for one in claims for job_id in one.jobs)
    milliseconds = pd.Series([ms for one in claims for ms in one.milliseconds])
    return {
        "locking": locking,
        "connections": n_connections,
        "jobs": n_jobs,
        "claimed_once": sum(times == 1 for times in given.values()),
        "claimed_twice": sum(times > 1 for times in given.values()),
        "double_claims": given.total() - len(given),
        "skipped": n_jobs - len(given),
        "largest_claim": max(one.longest for one in claims),
        "seconds": seconds,
        "claims_per_s": given.total() / seconds,
        "claim_ms_p50": milliseconds.quantile(0.5),
        "claim_ms_p99": milliseconds.quantile(0.99),
    }


# All due at one instant, as at midnight, so that the order of claims is by identity.
_DUE_JOBS = """
INSERT INTO scheduler_jobs (job_id, task, payload, run_at, state, attempt, max_attempts, lease_token,
    cancel_requested, created_at)
SELECT gen_random_uuid(), 'task', '{}', now(), 'PENDING', 0, 3, 0, false, now()
FROM generate_series(1, %(jobs)s)
"""


def _claimer(
    connection: psycopg.Connection[Any],
    statement: str,
    owner: str,
    batch: int,
    open_ms: float,
    claims: _Claims,
) -> Callable[[], None]:
    store = PostgresStore(ConnectionDatabase(connection), queries=_with_claim(statement))
    request = ClaimRequest(owner=owner, tasks=("task",), limit=batch, lookahead_us=0, lease_us=3_600_000_000)

    def work() -> None:
        empty = 0
        while empty < MAX_EMPTY:
            began = time.perf_counter()
            with connection.transaction():
                leases = _now(store.claim(request)).leases
                if leases:
                    time.sleep(open_ms / 1000)
            claims.milliseconds.append((time.perf_counter() - began) * 1000)
            claims.longest = max(claims.longest, len(leases))
            claims.jobs += [lease.ref.job_id for lease in leases]
            # Under contention an empty reply does not mean that nothing is left; so ask whether it is.
            empty = 0 if leases else empty + 1
            if not leases and not _left(connection):
                return

    return work


def _left(connection: psycopg.Connection[Any]) -> bool:
    row = connection.execute("SELECT EXISTS (SELECT FROM scheduler_jobs WHERE state = 'PENDING')").fetchone()
    assert row is not None  # EXISTS always answers
    return bool(row[0])


def _with_claim(statement: str) -> Queries:
    loaded = Queries.load()
    return Queries(
        **{name: getattr(loaded, name) for name in Queries.__dataclass_fields__} | {"claim": statement}
    )


def _all_at_once(works: Sequence[Callable[[], None]]) -> float:
    """Run each in a thread, all let go at the same moment; returns the seconds until the last has ended."""
    gate = threading.Barrier(len(works) + 1)
    errors: list[Exception] = []

    def run(work: Callable[[], None]) -> None:
        gate.wait()
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    gate.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    if errors:
        raise errors[0]
    return seconds


def _now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of a store on a plain connection: it never waits, so it needs no event loop."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    raise AssertionError("a store on a plain connection never waits")
