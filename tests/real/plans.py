"""What PostgreSQL means to do with one of production's statements: which indexes its plan uses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
from psycopg import sql

__all__ = ["FINISHED_BESIDE", "indexes_used"]

FINISHED_BESIDE = """
INSERT INTO scheduler_jobs (job_id, task, payload, run_at, state, attempt, max_attempts, lease_owner, lease_token,
    lease_expires_at, cancel_requested, created_at, finished_at, expires_at)
SELECT gen_random_uuid(), 'task', '{}', timestamptz '2026-01-01' + n * interval '1 ms',
    CASE WHEN n <= 300 THEN 'PENDING' WHEN n <= 600 THEN 'RUNNING' ELSE 'SUCCEEDED' END,
    1, 3, CASE WHEN n BETWEEN 301 AND 600 THEN 'w1' END, 1,
    CASE WHEN n BETWEEN 301 AND 600 THEN timestamptz '2026-01-01' + n * interval '1 ms' END,
    false, timestamptz '2026-01-01', CASE WHEN n > 600 THEN timestamptz '2026-01-01' END,
    CASE WHEN n %% 3 = 0 THEN timestamptz '2100-01-01' END
FROM generate_series(1, %s) AS n
"""
"""So many rows: 300 are due, 300 have expired leases, the others are finished."""


def indexes_used(
    connection: psycopg.Connection[Any], statement: str, parameters: Mapping[str, Any], *, generic: bool
) -> set[str]:
    """Return the indexes in a statement's plan, and ``"Seq Scan"`` where it reads the whole table.

    Parameters
    ----------
    generic
        Whether to plan once for any parameters, as a prepared statement is after some uses.
    """
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
    for place, name in enumerate(names, start=1):
        statement = statement.replace(f"%({name})s", f"${place}")
    mode = "force_generic_plan" if generic else "force_custom_plan"
    connection.execute(f"SET plan_cache_mode = {mode}".encode())
    connection.execute(f"PREPARE looked_at AS {statement.strip().rstrip(';')}".encode())
    try:
        given = sql.SQL(", ").join(sql.Literal(parameters[name]) for name in names)
        explain = sql.SQL("EXPLAIN (FORMAT JSON) EXECUTE looked_at({})").format(given)
        row = connection.execute(explain).fetchone()
    finally:
        connection.execute("DEALLOCATE looked_at")
    assert row is not None
    return set(_nodes(row[0][0]["Plan"]))


def _nodes(plan: Mapping[str, Any]) -> Iterator[str]:
    if "Index Name" in plan:
        yield plan["Index Name"]
    if plan["Node Type"] == "Seq Scan":
        yield "Seq Scan"
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)
