"""Fixtures of the laboratory's tests: one throwaway PostgreSQL for the session, skipped where none can be had."""

from tests.postgres_fixture import postgres_server

__all__ = ["postgres_server"]
