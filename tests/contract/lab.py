"""What the behaviour suite asks of a store at hand: a clock that it moves, and short words for the verbs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from uuid import UUID

import psycopg

from scheduler.jobs import Job, JobState, Lease, LeaseRef, NewJob
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
from simlab.pgworld import postgres_backend
from simlab.world import Backend, DatabaseClock, model_backend

__all__ = ["BEGINNING_US", "LEASE_US", "LabStore", "ModelLabStore", "PostgresLabStore", "job_id"]

T = TypeVar("T")

BEGINNING_US = 1_767_225_600_000_000
"""The database's time when a test begins: 2026-01-01 00:00 UTC."""

LEASE_US = 60_000_000


def job_id(number: int) -> UUID:
    """Return the identity of the test's n-th job; identities order as the numbers do."""
    return UUID(int=number)


class LabStore(ABC):
    """A store whose database's clock stands still until the test moves it."""

    store: Store
    backend: Backend

    def __init__(self) -> None:
        self.now_us = BEGINNING_US

    def use(self, backend: Backend) -> None:
        """Work on this store from now on."""
        self.backend = backend
        self.store = backend.store

    def advance_us(self, us: int) -> None:
        """Move the database's clock."""
        self.now_us += us

    def run(self, verb: Coroutine[Any, Any, T]) -> T:
        """Run a store's verb to its end; neither store has anything to wait for."""
        try:
            verb.send(None)
        except StopIteration as end:
            value: T = end.value
            return value
        raise AssertionError("the store waited for something")

    @abstractmethod
    def reset(self) -> None:
        """Empty the table and turn the clock back."""

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

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        self.now_us = BEGINNING_US
        with model_backend(_StandingClock(self), _locks()) as backend:  # nothing is closed at its end
            self.use(backend)


class PostgresLabStore(LabStore):
    """Production's store and SQL on a real server, at virtual time."""

    def __init__(self, dsn: str, stack: ExitStack) -> None:
        super().__init__()
        self.use(stack.enter_context(postgres_backend(_StandingClock(self), _locks(), dsn=dsn)))
        self._connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))

    def reset(self) -> None:
        self.now_us = BEGINNING_US
        self._connection.execute("DELETE FROM lab.scheduler_jobs")


class _StandingClock(DatabaseClock):
    def __init__(self, lab: LabStore) -> None:
        self._lab = lab

    def now_us(self) -> int:
        return self._lab.now_us


def _locks() -> LockTable:
    return LockTable(Kernel(), statement_timeout_us=LEASE_US)
