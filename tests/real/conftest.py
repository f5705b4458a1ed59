"""The fixtures of the tests in real time."""

from tests.postgres_fixture import empty_dsn, migrated_dsn, postgres_server

__all__ = ["empty_dsn", "migrated_dsn", "postgres_server"]
