"""Errors: one tree, whose fault it is by class, one line each, facts as fields."""

from __future__ import annotations

from datetime import datetime

import pytest

from scheduler import errors
from scheduler.errors import (
    IdempotencyConflict,
    InvalidPayload,
    InvalidSetting,
    JobCancelled,
    LeaseLost,
    MissingMigration,
    NaiveDatetime,
    SchedulerError,
    StoreUnavailable,
    TooMany,
    UnknownTask,
    UsageError,
)

NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - what the error is about
EXAMPLES = [
    NaiveDatetime("run_at", NAIVE),
    UnknownTask("nap", ["b", "a"]),
    UnknownTask("nap", []),
    InvalidPayload("task", "$.a[0]", "holds a NUL character"),
    InvalidSetting("lease_us", 0, "must be at least 1"),
    TooMany("jobs", 100_001, 100_000),
    IdempotencyConflict("key", "a job"),
    MissingMigration(found=0, wanted=1),
    MissingMigration(found=2, wanted=1),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_reads_as_one_line(error: SchedulerError) -> None:
    assert str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("error", "mend"),
    [
        (NaiveDatetime("run_at", NAIVE), "pass an aware datetime"),
        (UnknownTask("nap", ["b", "a"]), "registered: a, b; register it with @app.task"),
        (UnknownTask("nap", []), "registered: none at all"),
        (TooMany("jobs", 100_001, 100_000), "100,001 jobs in one call; at most 100,000: split the call"),
        (MissingMigration(found=0, wanted=1), "run `scheduler migrate`"),
        (MissingMigration(found=2, wanted=1), "upgrade this package"),
        (IdempotencyConflict("k", "j"), "use a key of its own"),
    ],
)
def test_an_error_names_the_mend(error: SchedulerError, mend: str) -> None:
    assert mend in str(error)


def test_the_class_says_whose_fault_it_is_and_how_the_process_ends() -> None:
    usage = (NaiveDatetime, UnknownTask, InvalidPayload, InvalidSetting, TooMany, IdempotencyConflict)
    assert all(issubclass(kind, UsageError) and kind.exit_code == 2 for kind in usage)
    assert issubclass(MissingMigration, StoreUnavailable)
    assert StoreUnavailable.exit_code == MissingMigration.exit_code == 3
    assert not issubclass(StoreUnavailable, UsageError)
    assert all(not issubclass(kind, UsageError) for kind in (JobCancelled, LeaseLost))


def test_every_error_has_the_one_base_and_stands_in_the_tree() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), SchedulerError)
        assert name in (errors.__doc__ or "")


def test_facts_are_fields() -> None:
    assert UnknownTask("nap", ["b", "a"]).known == ("a", "b")
    assert InvalidPayload("task", "$.a", "why").where == "$.a"
    assert (TooMany("jobs", 2, 1).count, TooMany("jobs", 2, 1).limit) == (2, 1)
    assert MissingMigration(found=0, wanted=1).wanted == 1
