"""The fixtures of the scheduler's own tests."""

from tests.postgres_fixture import empty_dsn, migrated_dsn, postgres_server

__all__ = ["empty_dsn", "migrated_dsn", "postgres_server"]
