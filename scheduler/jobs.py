"""The job: its row, its states, its lease. Pure data; no I/O, no clock.

Owns the one transition table. Every store enforces it, every check reads it, and the docs draw it:

.. code-block:: mermaid

    stateDiagram-v2
        [*] --> PENDING: enqueue
        PENDING --> CLAIMED: claim (token + 1, attempt + 1)
        PENDING --> FAILED: age limit passed
        PENDING --> CANCELLED: cancel won
        CLAIMED --> RUNNING: start
        CLAIMED --> PENDING: released, or lease expired
        CLAIMED --> FAILED: lease expired, attempts or age exhausted
        CLAIMED --> CANCELLED: cancel won
        RUNNING --> SUCCEEDED: finish
        RUNNING --> PENDING: retry, or lease expired
        RUNNING --> FAILED: attempts or age exhausted
        RUNNING --> CANCELLED: the handler agreed to stop
        FAILED --> PENDING: replay (an operator's act)

Times are integer microseconds: instants since the Unix epoch by the database's clock, and durations.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from scheduler.errors import NaiveDatetime

__all__ = [
    "EPOCH",
    "TERMINAL",
    "TRANSITIONS",
    "Job",
    "JobState",
    "Lease",
    "LeaseRef",
    "NewJob",
    "from_us",
    "instant_to_us",
    "to_us",
]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_us(duration: timedelta) -> int:
    """Return a duration in integer microseconds, exactly."""
    return duration // _MICROSECOND


def instant_to_us(name: str, instant: datetime) -> int:
    """Return an aware datetime as integer microseconds since the Unix epoch.

    Raises
    ------
    NaiveDatetime
        If the datetime has no time zone; `name` says which argument it was.
    """
    if instant.tzinfo is None or instant.utcoffset() is None:
        raise NaiveDatetime(name, instant)
    return (instant - EPOCH) // _MICROSECOND


def from_us(instant_us: int) -> datetime:
    """Return microseconds since the Unix epoch as an aware UTC datetime, exactly."""
    return EPOCH + timedelta(microseconds=instant_us)


class JobState(enum.StrEnum):
    """Where a job stands."""

    PENDING = "PENDING"
    CLAIMED = "CLAIMED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    JobState.PENDING: frozenset({JobState.CLAIMED, JobState.FAILED, JobState.CANCELLED}),
    JobState.CLAIMED: frozenset({JobState.RUNNING, JobState.PENDING, JobState.FAILED, JobState.CANCELLED}),
    JobState.RUNNING: frozenset({JobState.SUCCEEDED, JobState.PENDING, JobState.FAILED, JobState.CANCELLED}),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}
"""What the scheduler itself may do. An operator's `replay` (FAILED to PENDING) stands outside it."""

TERMINAL = frozenset(state for state, after in TRANSITIONS.items() if not after)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job as it is handed to a store: validated, with its identity already drawn.

    Exactly one of `run_at_us` (an instant since the epoch) and `delay_us` (counted from the database's
    now) is given. `max_age_us` bounds the life of the job, counted from its original run time.
    """

    job_id: UUID
    task: str
    payload: Mapping[str, Any]
    run_at_us: int | None = None
    delay_us: int | None = None
    max_attempts: int = 1
    max_age_us: int | None = None
    idempotency_key: str | None = None

    def __post_init__(self) -> None:
        if (self.run_at_us is None) == (self.delay_us is None):
            raise ValueError("exactly one of run_at_us and delay_us is needed")


@dataclass(frozen=True, slots=True)
class LeaseRef:
    """What names a lease in every write after the claim: the job, its owner and the fencing token."""

    job_id: UUID
    owner: str
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A claim as the store granted it.

    `due_in_us` is ``run_at - now()`` at the claim, negative when overdue: a duration, so that the worker's
    own idea of the date never matters.
    """

    ref: LeaseRef
    task: str
    payload: Mapping[str, Any]
    attempt: int
    max_attempts: int
    due_in_us: int
    run_at_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One row of the jobs table, as read. Instants in microseconds since the epoch, by the database."""

    job_id: UUID
    task: str
    payload: Mapping[str, Any]
    run_at_us: int
    state: JobState
    attempt: int
    max_attempts: int
    expires_at_us: int | None
    lease_owner: str | None
    lease_token: int
    lease_expires_at_us: int | None
    idempotency_key: str | None
    cancel_requested: bool
    last_error: str | None
    created_at_us: int
    finished_at_us: int | None
