"""The stores that the contract holds for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from simlab.pgserver import PostgresServer
from tests.contract.lab import LabStore, ModelLabStore, PostgresLabStore
from tests.postgres_fixture import postgres_server

__all__ = ["lab_store", "postgres_lab_store", "postgres_server"]


@pytest.fixture
def postgres_lab_store(postgres_server: PostgresServer) -> Iterator[PostgresLabStore]:
    """Give a PostgresStore at virtual time, in a schema made for this test."""
    with ExitStack() as stack:
        yield PostgresLabStore(postgres_server.dsn, stack)


@pytest.fixture(params=["model", pytest.param("postgres", marks=pytest.mark.postgres)])
def lab_store(request: pytest.FixtureRequest) -> LabStore:
    """Give each store in turn, empty, its database's clock standing still."""
    if request.param == "model":
        return ModelLabStore()
    store: PostgresLabStore = request.getfixturevalue("postgres_lab_store")
    return store
