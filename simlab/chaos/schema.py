"""A schema of our own on a server of our own, with the scheduler's tables and the outside world in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import make_conninfo

from scheduler.postgres import apply_migrations
from simlab.chaos.audit import install_audit
from simlab.chaos_app import EFFECTS_TABLE
from simlab.pgserver import PostgresServer

__all__ = ["SCHEMA", "chaos_schema"]

SCHEMA = "lab_chaos"


@contextmanager
def chaos_schema(server: PostgresServer, *, audited: bool) -> Iterator[str]:
    """Make the schema, with the audit or without; yields a DSN to it, and drops it at the end."""
    dsn = make_conninfo(server.dsn, options=f"-c search_path={SCHEMA} -c client_min_messages=warning")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        connection.execute(f"CREATE SCHEMA {SCHEMA}")
        apply_migrations(connection)
        connection.execute(EFFECTS_TABLE)
        if audited:
            install_audit(connection)
    try:
        yield dsn
    finally:
        if server.running:
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
