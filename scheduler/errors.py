"""Every error the scheduler raises on purpose.

::

    SchedulerError
    ├── UsageError                 the caller's mistake; nothing was written           exit 2
    │   ├── NaiveDatetime          a datetime without a time zone
    │   ├── UnknownTask            a task name nobody registered
    │   ├── InvalidPayload         not JSON, or text that JSONB refuses
    │   ├── InvalidSetting         a worker or task setting out of its range
    │   ├── TooMany                a batch above its documented limit
    │   └── IdempotencyConflict    one key, two different jobs
    ├── StoreUnavailable           the database cannot be reached, or did not answer   exit 3
    │   └── MissingMigration       reached, but the tables are not there (or too old)  exit 3
    ├── JobCancelled               raised inside a handler: an asked-for cancellation
    └── LeaseLost                  raised inside a handler: the job is another worker's now

A user's mistake reads as one line: what was wrong, where, and the mend. ``exit_code`` is what the command
line ends with. This module must not import anything of the package.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "IdempotencyConflict",
    "InvalidPayload",
    "InvalidSetting",
    "JobCancelled",
    "LeaseLost",
    "MissingMigration",
    "NaiveDatetime",
    "SchedulerError",
    "StoreUnavailable",
    "TooMany",
    "UnknownTask",
    "UsageError",
]


class SchedulerError(Exception):
    """Base class of everything raised here."""

    exit_code = 2


class UsageError(SchedulerError):
    """The caller asked for something that cannot be done; nothing was written."""


class NaiveDatetime(UsageError):
    """A datetime without a time zone: it names no instant."""

    def __init__(self, name: str, value: object) -> None:
        self.name = name
        self.value = value
        super().__init__(
            f"{name}={value!s} has no time zone, so it names no instant; "
            f"pass an aware datetime, such as datetime(..., tzinfo=timezone.utc)"
        )


class UnknownTask(UsageError):
    """The task is not registered with the application."""

    def __init__(self, task: str, known: Iterable[str]) -> None:
        self.task = task
        self.known = tuple(sorted(known))
        names = ", ".join(self.known) or "none at all"
        super().__init__(f"unknown task {task!r}; registered: {names}; register it with @app.task")


class InvalidPayload(UsageError):
    """The payload is not a JSON object that PostgreSQL's JSONB accepts."""

    def __init__(self, task: str, where: str, why: str) -> None:
        self.task = task
        self.where = where
        super().__init__(f"payload of {task!r} at {where}: {why}")


class InvalidSetting(UsageError):
    """A setting is out of its range."""

    def __init__(self, name: str, value: object, rule: str) -> None:
        self.name = name
        self.value = value
        super().__init__(f"{name}={value!r}: {rule}")


class TooMany(UsageError):
    """A batch above its documented limit."""

    def __init__(self, what: str, count: int, limit: int) -> None:
        self.count = count
        self.limit = limit
        super().__init__(f"{count:,} {what} in one call; at most {limit:,}: split the call")


class IdempotencyConflict(UsageError):
    """The idempotency key already belongs to a job with another task or payload."""

    def __init__(self, key: str, job_id: object) -> None:
        self.key = key
        self.job_id = job_id
        super().__init__(
            f"idempotency key {key!r} already belongs to job {job_id} with another task or payload; "
            f"use a key of its own for each distinct request"
        )


class StoreUnavailable(SchedulerError):
    """The store cannot be reached or did not answer in time; whether it acted is unknown."""

    exit_code = 3


class MissingMigration(StoreUnavailable):
    """The database answers but its tables are missing or of another version."""

    def __init__(self, found: int, wanted: int) -> None:
        self.found = found
        self.wanted = wanted
        mend = "run `scheduler migrate`" if found < wanted else "upgrade this package: the database is newer"
        super().__init__(f"the database is at migration {found}, this version needs {wanted}; {mend}")


class JobCancelled(SchedulerError):
    """Raised at a checkpoint inside a handler whose cancellation was asked for."""


class LeaseLost(SchedulerError):
    """Raised at a checkpoint inside a handler whose lease is no longer this worker's."""
