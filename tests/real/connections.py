"""Real connections in real threads: a store on each, and many of them at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar
from uuid import UUID

import psycopg

from scheduler.jobs import LeaseRef, NewJob
from scheduler.postgres import ConnectionDatabase, PostgresStore, Queries
from scheduler.store import ClaimRequest

__all__ = ["Connected", "all_at_once", "job", "shuffled"]

T = TypeVar("T")


class Connected:
    """A store on a connection of its own, each verb a transaction."""

    def __init__(self, dsn: str, *, queries: Queries | None = None) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.store = PostgresStore(ConnectionDatabase(self.connection), queries=queries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def ask(self, verb: Coroutine[Any, Any, T]) -> T:
        """Carry out a verb; on a plain connection it needs no event loop."""
        try:
            verb.send(None)
        except StopIteration as end:
            value: T = end.value
            return value
        raise AssertionError("a store on a plain connection never waits")

    def execute(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run any statement, and return its rows."""
        cursor = self.connection.execute(statement.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def claim(self, owner: str, *, limit: int, lease_us: int) -> list[LeaseRef]:
        """Claim what is due."""
        request = ClaimRequest(owner=owner, tasks=("task",), limit=limit, lookahead_us=0, lease_us=lease_us)
        return [lease.ref for lease in self.ask(self.store.claim(request)).leases]

    def leases(self) -> list[LeaseRef]:
        """Read which leases there are, anybody's."""
        rows = self.execute(
            "SELECT job_id, lease_owner, lease_token FROM scheduler_jobs WHERE lease_owner IS NOT NULL"
        )
        return [LeaseRef(*row) for row in rows]


def job(number: int, **fields: Any) -> NewJob:
    """Return a job that is due now."""
    fields = {"task": "task", "payload": {}, "delay_us": 0, "max_attempts": 1000} | fields
    return NewJob(job_id=UUID(int=number), **fields)


def all_at_once(*works: Callable[[], None], seconds: float = 120) -> list[Exception]:
    """Run each in a thread, let go at the same moment; returns the errors there were."""
    gate = threading.Barrier(len(works))
    errors: list[Exception] = []

    def run(work: Callable[[], None]) -> None:
        gate.wait()
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the test looks at them
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    assert not any(thread.is_alive() for thread in threads), f"not done within {seconds} s"
    return errors


def shuffled(items: Sequence[T], rng: Any, *, most: int) -> list[T]:
    """Pick some, in any order."""
    return rng.sample(items, min(len(items), rng.randint(1, most)))
