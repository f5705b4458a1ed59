"""One throwaway PostgreSQL for a whole test run, and a schema of its own for each test that asks for one.

A test directory gets the fixtures by importing them in its ``conftest.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler import migrate
from simlab.errors import PostgresUnavailable
from simlab.pgserver import PostgresServer, throwaway_postgres

__all__ = ["empty_dsn", "migrated_dsn", "postgres_server"]

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Start a server for the session; skip what needs it, with the reason, where none can be had."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(throwaway_postgres())
        except PostgresUnavailable as error:
            pytest.skip(str(error))
        yield server


@pytest.fixture
def empty_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """Give the DSN of a new, empty schema; dropped at the end."""
    schema = f"test_{next(_numbers)}"
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        yield make_conninfo(postgres_server.dsn, options=f"-csearch_path={schema}")
        connection.execute("SET client_min_messages = warning")
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture
def migrated_dsn(empty_dsn: str) -> str:
    """Give the DSN of a new schema with the scheduler's tables."""
    migrate(empty_dsn)
    return empty_dsn
