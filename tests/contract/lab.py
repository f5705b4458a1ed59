"""What the behaviour suite asks of a store at hand: a clock that it moves, and short words for the verbs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import cached_property
from typing import Any, Generic, TypeVar
from uuid import UUID

import psycopg

from scheduler.errors import StoreUnavailable
from scheduler.jobs import Job, JobState, Lease, LeaseRef, NewJob, from_us
from scheduler.postgres import PostgresStore
from scheduler.store import (
    CancelReply,
    ClaimReply,
    ClaimRequest,
    Enqueued,
    EnqueueReply,
    Finished,
    FinishReply,
    HeartbeatReply,
    Outcome,
    OutcomeKind,
    ReplayReply,
    StartReply,
    Stats,
    Store,
    SweepReply,
)
from simlab.kernel import Kernel
from simlab.locks import LockTable
from simlab.pgworld import SCHEMA, postgres_backend
from simlab.store import ModelStore
from simlab.world import Backend, DatabaseClock, model_backend

__all__ = ["BEGINNING_US", "LEASE_US", "Asked", "LabStore", "ModelLabStore", "PostgresLabStore", "job_id"]

T = TypeVar("T")

BEGINNING_US = 1_767_225_600_000_000
"""The database's time when a test begins: 2026-01-01 00:00 UTC."""

LEASE_US = 60_000_000


def job_id(number: int) -> UUID:
    """Return the identity of the test's n-th job; identities order as the numbers do."""
    return UUID(int=number)


class Asked(Generic[T]):
    """A verb that a store was asked for: it has ended, or it waits for a lock."""

    def __init__(self, verb: Coroutine[Any, Any, T]) -> None:
        self._verb = verb
        self._awaited: Any = None
        self.ended = False
        self._value: T | None = None
        self._error: StoreUnavailable | None = None
        self.go_on()

    def go_on(self) -> None:
        """Go on, if what it waited for has happened."""
        while not self.ended and (self._awaited is None or self._awaited.triggered):
            try:
                self._awaited = self._verb.send(None)
            except StopIteration as end:
                self._value, self.ended = end.value, True
            except StoreUnavailable as error:
                self._error, self.ended = error, True

    @property
    def reply(self) -> T | str:
        """What came of it; an error in words."""
        assert self.ended, "the store still waits"
        return str(self._error) if self._error is not None else self._value  # type: ignore[return-value]


class LabStore(ABC):
    """A store whose database's clock stands still until the test moves it."""

    store: Store
    backend: Backend

    def __init__(self) -> None:
        self.now_us = BEGINNING_US
        self.kernel = Kernel()
        self.locks = LockTable(self.kernel, statement_timeout_us=LEASE_US)

    def use(self, backend: Backend) -> None:
        """Work on this store from now on."""
        self.backend = backend
        self.store = backend.store

    def advance_us(self, us: int) -> None:
        """Move the database's clock."""
        self.now_us += us

    def run(self, verb: Coroutine[Any, Any, T]) -> T:
        """Run a store's verb to its end, where it has nothing to wait for."""
        asked = Asked(verb)
        assert asked.ended, "the store waits for something"
        if asked._error is not None:
            raise asked._error
        return asked._value  # type: ignore[return-value]

    def table(self) -> list[Job]:
        """Return every row, ordered by identity."""
        return self.backend.table()

    def time_out(self) -> None:
        """Let so much time pass that the server gives up whatever waits for a lock."""
        self.kernel.run_until(self.kernel.now_us + 2 * LEASE_US)

    @abstractmethod
    def reset(self) -> None:
        """Empty the table and turn the clock back."""

    # A client that enqueues in a transaction of its own, and has not said yet how that ends.

    @abstractmethod
    def begin(self, *jobs: NewJob) -> EnqueueReply:
        """Enqueue inside a transaction that stays open; nothing in it may have to wait."""

    @abstractmethod
    def commit(self) -> None:
        """Commit that transaction."""

    @abstractmethod
    def roll_back(self) -> None:
        """Undo that transaction."""

    # The verbs, with what most tests do not care about filled in.

    def enqueue(self, *jobs: NewJob) -> EnqueueReply:
        return self.run(self.store.enqueue(jobs))

    def add(self, number: int, **fields: Any) -> Enqueued:
        """Enqueue one job, due now unless `fields` say otherwise."""
        return self.enqueue(new_job(number, **fields)).jobs[0]

    def claim(
        self,
        *,
        owner: str = "w1",
        tasks: Sequence[str] = ("task",),
        limit: int = 100,
        lookahead_us: int = 0,
        lease_us: int = LEASE_US,
    ) -> ClaimReply:
        return self.run(
            self.store.claim(
                ClaimRequest(
                    owner=owner, tasks=tuple(tasks), limit=limit, lookahead_us=lookahead_us, lease_us=lease_us
                )
            )
        )

    def claim_one(self, **request: Any) -> Lease:
        """Claim exactly one job."""
        (lease,) = self.claim(**request).leases
        return lease

    def start(self, *refs: LeaseRef) -> StartReply:
        return self.run(self.store.start(refs))

    def heartbeat(self, *refs: LeaseRef, lease_us: int = LEASE_US) -> HeartbeatReply:
        return self.run(self.store.heartbeat(refs, lease_us=lease_us))

    def sweep(self, limit: int = 100) -> SweepReply:
        return self.run(self.store.sweep(limit=limit))

    def finish(self, *outcomes: Outcome) -> FinishReply:
        return self.run(self.store.finish(outcomes))

    def finish_one(
        self, ref: LeaseRef, kind: OutcomeKind, *, delay_us: int = 0, error: str | None = None
    ) -> Finished:
        return self.finish(Outcome(ref, kind, delay_us, error)).results[0]

    def cancel(self, *numbers: int) -> CancelReply:
        return self.run(self.store.cancel([job_id(number) for number in numbers]))

    def replay(self, *numbers: int) -> ReplayReply:
        return self.run(self.store.replay([job_id(number) for number in numbers]))

    def stats(self) -> Stats:
        return self.run(self.store.stats())

    def find(self, number: int) -> Job | None:
        return self.run(self.store.get(job_id(number)))

    def row(self, number: int) -> Job:
        """Return a job that is there."""
        job = self.find(number)
        assert job is not None
        return job

    @contextmanager
    def locked(self, *numbers: int) -> Iterator[None]:
        """Have an open transaction of somebody else's hold rows."""
        self.backend.lock([job_id(number) for number in numbers])
        try:
            yield
        finally:
            self.backend.unlock()

    # Ways to a state.

    def claimed(self, number: int = 1, *, owner: str = "w1", **fields: Any) -> LeaseRef:
        """Enqueue a job and claim it; returns the lease's name."""
        self.add(number, **fields)
        return self.claim_one(owner=owner).ref

    def running(self, number: int = 1, *, owner: str = "w1", **fields: Any) -> LeaseRef:
        """Enqueue, claim and start a job."""
        ref = self.claimed(number, owner=owner, **fields)
        assert self.start(ref).started == (ref.job_id,)
        return ref

    def ended(self, state: JobState, number: int = 1, **fields: Any) -> LeaseRef:
        """Take a job to a terminal state; returns the last lease's name."""
        kinds = {
            JobState.SUCCEEDED: OutcomeKind.SUCCEEDED,
            JobState.FAILED: OutcomeKind.FAILED,
            JobState.CANCELLED: OutcomeKind.CANCELLED,
        }
        ref = self.running(number, **fields)
        assert self.finish_one(ref, kinds[state]).state is state
        return ref


def new_job(number: int, *, payload: Mapping[str, Any] | None = None, **fields: Any) -> NewJob:
    """Return a job, due now and with three attempts unless `fields` say otherwise."""
    if fields.get("run_at_us") is None:
        fields.setdefault("delay_us", 0)
    fields.setdefault("max_attempts", 3)
    fields.setdefault("task", "task")
    return NewJob(job_id=job_id(number), payload=payload if payload is not None else {}, **fields)


class ModelLabStore(LabStore):
    """The in-memory model."""

    def __init__(self, store_class: type[ModelStore] = ModelStore) -> None:
        super().__init__()
        self._store_class = store_class
        self._uncommitted: list[NewJob] = []
        self.reset()

    def reset(self) -> None:
        self.now_us = BEGINNING_US
        opened = model_backend(_StandingClock(self), self.locks, store_class=self._store_class)
        with opened as backend:  # nothing is closed at its end
            self.use(backend)

    # The model has no transactions of several statements: the insert is kept until the commit, and its
    # identities and keys are locked until then.

    def begin(self, *jobs: NewJob) -> EnqueueReply:
        now_us = self.now_us
        trial = ModelStore(lambda: now_us)
        trial._rows, trial._by_key = deepcopy((self.store._rows, self.store._by_key))  # type: ignore[attr-defined]
        reply = self.run(trial.enqueue(jobs))
        self._uncommitted = [job for job, told in zip(jobs, reply.jobs, strict=True) if told.created]
        for job in self._uncommitted:
            self.locks.lock([name for name in (job.job_id, job.idempotency_key) if name], by=self)
        self._began_us = now_us
        return reply

    def commit(self) -> None:
        for job in self._uncommitted:
            self.store._insert(job, self._began_us)  # type: ignore[attr-defined]
        self.roll_back()

    def roll_back(self) -> None:
        self._uncommitted = []
        self.locks.unlock(by=self)


class PostgresLabStore(LabStore):
    """Production's store and SQL on a real server, at virtual time."""

    def __init__(self, dsn: str, stack: ExitStack) -> None:
        super().__init__()
        self._dsn = dsn
        self._stack = stack
        self.use(stack.enter_context(postgres_backend(_StandingClock(self), self.locks, dsn=dsn)))
        self._connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))

    def reset(self) -> None:
        self.now_us = BEGINNING_US
        self._connection.execute(f"DELETE FROM {SCHEMA}.scheduler_jobs")

    def recover(self) -> None:
        """End whatever transaction is open, and whatever waits for it, however a test ended."""
        self.backend.unlock()
        self.roll_back()

    @cached_property
    def _client(self) -> psycopg.Connection[Any]:
        """Somebody else's connection, with transactions of its own."""
        client = self._stack.enter_context(psycopg.connect(self._dsn, autocommit=True))
        client.execute(f"SET search_path = {SCHEMA}, pg_catalog")
        client.execute("SET TIME ZONE 'UTC'")
        return client

    def begin(self, *jobs: NewJob) -> EnqueueReply:
        store: PostgresStore = self.store  # type: ignore[assignment]
        self._client.execute("SELECT set_config('lab.now', %s, false)", [from_us(self.now_us).isoformat()])
        self._client.execute("BEGIN")
        # Whoever finds the identities and keys of this transaction may have to wait.
        self.locks.lock(["an open enqueue"], by=self)
        return self.run(store.inside(self._client).enqueue(jobs))

    def commit(self) -> None:
        self._end("COMMIT")

    def roll_back(self) -> None:
        self._end("ROLLBACK")

    def _end(self, how: str) -> None:
        self._client.execute(how.encode())
        self.locks.unlock(by=self)
        self.backend.database.settle()  # type: ignore[attr-defined]


class _StandingClock(DatabaseClock):
    def __init__(self, lab: LabStore) -> None:
        self._lab = lab

    def now_us(self) -> int:
        return self._lab.now_us
