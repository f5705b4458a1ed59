"""The Store port: what the scheduler asks of the table of jobs, as a tiny set of batched verbs.

Every verb is one transaction, and every comparison and stamp inside it is the database's ``now()``. The
scheduler sends **durations, never instants** (a run time that a user chose as a date is the one exception:
it is data). Every reply says the database's time of its transaction, for the record, never for decisions.

Every write after the claim names job, owner and token; a write whose lease is no longer the row's is
refused row by row, never as an error. A batch names each lease, and each new job, at most once: a repetition is
a mistake of the caller's and a ValueError. (Job identities that people name, to cancel or to replay, may be
repeated; each place gets the same answer.) A store raises :class:`~scheduler.errors.StoreUnavailable` when it
cannot say what happened.

This module owns the vocabulary and holds no behaviour but that limit.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from scheduler.jobs import Job, JobState, Lease, LeaseRef, NewJob

__all__ = [
    "CancelReply",
    "CancelResult",
    "Cancelled",
    "ClaimReply",
    "ClaimRequest",
    "Early",
    "EnqueueReply",
    "Enqueued",
    "FinishReply",
    "Finished",
    "HeartbeatReply",
    "Outcome",
    "OutcomeKind",
    "Renewed",
    "ReplayReply",
    "StartReply",
    "Stats",
    "Store",
    "SweepReply",
    "Swept",
    "refuse_repeated_leases",
    "refuse_wrong_jobs",
]


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The answer for one new job: its identity, and whether this call created it.

    `created` is False when the idempotency key was taken; `job_id` is then the earlier job's, and `same`
    says whether that one has the same task and payload.
    """

    job_id: UUID
    created: bool
    same: bool = True


@dataclass(frozen=True, slots=True)
class EnqueueReply:
    """One answer for each new job, in the order asked."""

    now_us: int
    jobs: tuple[Enqueued, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """Ask for up to `limit` jobs of the named tasks, due within `lookahead_us` from now."""

    owner: str
    tasks: tuple[str, ...]
    limit: int
    lookahead_us: int
    lease_us: int


@dataclass(frozen=True, slots=True)
class ClaimReply:
    """What was claimed, ordered by (run_at, job_id)."""

    now_us: int
    leases: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class Swept:
    """One job the sweep moved: an abandoned lease, or a job past its age limit.

    `token` and `attempt` are the row's, unchanged; `was` and `state` are the states before and after.
    """

    job_id: UUID
    owner: str | None
    token: int
    attempt: int
    was: JobState
    state: JobState


@dataclass(frozen=True, slots=True)
class SweepReply:
    """What the sweep moved, ordered by identity."""

    now_us: int
    jobs: tuple[Swept, ...]


@dataclass(frozen=True, slots=True)
class Early:
    """A job that was to be started before it is due, by the database: ask again in `due_in_us`."""

    job_id: UUID
    due_in_us: int


@dataclass(frozen=True, slots=True)
class StartReply:
    """The jobs now RUNNING, and those not yet due; one that is in neither must not be run."""

    now_us: int
    started: tuple[UUID, ...]
    early: tuple[Early, ...] = ()


@dataclass(frozen=True, slots=True)
class Renewed:
    """A lease that is still the asker's.

    `extended` is False when the row was locked by an open transaction at that moment: the lease is still
    held, but it was not renewed, and the holder must go on counting from the last renewal. It is no promise: whoever
    has the row locked may be about to take it away, or may just have done so; then the next heartbeat misses it.
    """

    job_id: UUID
    extended: bool
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The leases that are still the asker's; a job that was named and is missing is lost."""

    now_us: int
    held: tuple[Renewed, ...]


class OutcomeKind(enum.StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    RETRY = "retry"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One outcome to write.

    `delay_us` is the pause before the next attempt, for RETRY only. The store makes a RETRY into FAILED
    when attempts or age are exhausted, and into CANCELLED when a cancellation was asked for. RELEASED gives
    back a claim that never ran, and its attempt with it.
    """

    ref: LeaseRef
    kind: OutcomeKind
    delay_us: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer for one outcome: whether it was written now, and how the row stands.

    `recovered` is True when this same outcome had been written before (its reply was lost on the way).
    Neither means the write was refused: the lease is somebody else's, or the job was cancelled. `state` is
    None when there is no such job. What was not written is told as it stood when the call reached the
    database, even if the call then had to wait for a lock, and the row changed meanwhile.
    """

    job_id: UUID
    accepted: bool
    recovered: bool
    state: JobState | None


@dataclass(frozen=True, slots=True)
class FinishReply:
    """One answer for each outcome, in the order asked."""

    now_us: int
    results: tuple[Finished, ...]


class CancelResult(enum.StrEnum):
    """What a cancellation came to."""

    CANCELLED = "cancelled"
    """It won: the job had not started and never will."""
    REQUESTED = "requested"
    """The job is running; its handler is told, and may or may not stop."""
    TOO_LATE = "too_late"
    """The job had already ended."""
    UNKNOWN = "unknown"
    """There is no such job."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The answer for one job whose cancellation was asked for."""

    job_id: UUID
    result: CancelResult


@dataclass(frozen=True, slots=True)
class CancelReply:
    """One answer for each job, in the order asked."""

    now_us: int
    results: tuple[Cancelled, ...]


@dataclass(frozen=True, slots=True)
class ReplayReply:
    """The dead letters that were made PENDING again, due now."""

    now_us: int
    replayed: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts by state, and how long the oldest due job has been waiting (0 when none is due)."""

    now_us: int
    counts: dict[JobState, int]
    oldest_due_us: int


class Store(Protocol):
    """The table of jobs. Sequences in, one reply out, one transaction each."""

    async def enqueue(self, jobs: Sequence[NewJob], /) -> EnqueueReply:
        """Insert new jobs, all or none; a taken idempotency key yields the earlier job."""

    async def claim(self, request: ClaimRequest, /) -> ClaimReply:
        """Take due jobs that nobody holds or locks: token and attempt rise by one, a lease begins."""

    async def sweep(self, *, limit: int) -> SweepReply:
        """End expired leases and aged-out jobs: PENDING again, or FAILED, or CANCELLED as was asked."""

    async def start(self, refs: Sequence[LeaseRef], /) -> StartReply:
        """CLAIMED to RUNNING, for leases that are still the asker's, have not expired, and are due."""

    async def heartbeat(self, refs: Sequence[LeaseRef], /, *, lease_us: int) -> HeartbeatReply:
        """Renew every named lease that is still the asker's, in one statement."""

    async def finish(self, outcomes: Sequence[Outcome], /) -> FinishReply:
        """Write outcomes, for leases that are still the asker's."""

    async def cancel(self, job_ids: Sequence[UUID], /) -> CancelReply:
        """Cancel what has not started; ask what runs to stop."""

    async def replay(self, job_ids: Sequence[UUID], /) -> ReplayReply:
        """Make dead letters PENDING again with their attempts reset; the token is never reset."""

    async def get(self, job_id: UUID, /) -> Job | None:
        """Return one row."""

    async def stats(self) -> Stats:
        """Return counts by state and the age of the oldest due job."""


def refuse_repeated_leases(refs: Sequence[LeaseRef]) -> None:
    """Refuse a batch that names one lease twice: of two outcomes for one lease, nobody knows which is meant.

    Two leases of the same job, an old and a new one, may stand in one batch; at most one of them is the row's.

    Raises
    ------
    ValueError
        If a lease is named twice.
    """
    if len(set(refs)) < len(refs):
        raise ValueError("a batch names each lease at most once")


def refuse_wrong_jobs(jobs: Sequence[NewJob]) -> None:
    """Refuse a batch that enqueues nothing, or one job twice.

    Raises
    ------
    ValueError
        If there is no job, or an identity is given to two jobs.
    """
    if not jobs:
        raise ValueError("enqueue needs at least one job")
    if len({job.job_id for job in jobs}) < len(jobs):
        raise ValueError("a batch enqueues each job, by its identity, at most once")
