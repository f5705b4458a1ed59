"""Tidy frames from a fabricated history: one row a job, a claim, an execution."""

import math

import pandas as pd
import pytest

from scheduler.jobs import JobState
from simlab.frames import attempts_frame, jobs_frame, lateness_frame
from simlab.history import History
from tests.simlab.bench import job_id
from tests.simlab.test_checks import Tale, plain, row

JOBS = [
    "job", "job_id", "task", "state", "due_s", "attempts", "executions", "effects", "lateness_s", "finished_s",
    "last_error",
]  # fmt: skip
ATTEMPTS = [
    "job", "job_id", "token", "attempt", "host", "claimed_s", "lease_until_s", "executing_s", "executed_s",
    "ended_s", "end",
]  # fmt: skip
LATENESS = ["job", "attempt", "host", "due_s", "began_s", "lateness_ms"]


def test_a_job_is_one_row_with_its_counts_and_its_lateness():
    tale = plain()
    frame = jobs_frame(tale.history, [row(last_error="oops")], tale.effects)
    assert list(frame.columns) == JOBS
    (job,) = frame.to_dict("records")
    assert job["job_id"] == str(job_id(1))
    assert (job["state"], job["task"], job["last_error"]) == ("SUCCEEDED", "work", "oops")
    assert (job["attempts"], job["executions"], job["effects"]) == (1, 1, 1)
    assert (job["due_s"], job["lateness_s"], job["finished_s"]) == (0.0, 2.0, 10.0)


def test_a_job_that_never_ran_has_no_lateness_and_none_that_never_ended_an_end():
    frame = jobs_frame(Tale().enqueued().history, [row(state=JobState.PENDING, finished_at_us=None)], [])
    assert pd.isna(frame["lateness_s"][0])
    assert pd.isna(frame["finished_s"][0])
    assert frame["effects"][0] == 0


def test_jobs_are_in_the_order_they_were_due():
    tale = Tale().enqueued(0, job=1, due_s=9).enqueued(0, job=2, due_s=3)
    frame = jobs_frame(tale.history, [row(1), row(2)], [])
    assert list(frame["due_s"]) == [3.0, 9.0]


def test_a_retried_job_keeps_its_first_due_time():
    tale = Tale().enqueued(due_s=5).claimed(5).ran(5).finished(6, detail="retry to PENDING", due_s=60)
    frame = jobs_frame(tale.history, [row(run_at_us=1_767_225_660_000_000)], [])
    assert frame["due_s"][0] == 5.0


def test_each_claim_is_one_row_and_says_how_it_ended():
    tale = Tale().enqueued().claimed(1).ran(2).says("renewed", 15, token=1, until_s=75).swept(80)
    tale.claimed(81, "w2", token=2).ran(82, "w2", token=2).says("executed", 83, "w2", token=2)
    tale.finished(84, "w2", token=2).finished(90, "w1", token=1)
    frame = attempts_frame(tale.history)
    assert list(frame.columns) == ATTEMPTS
    first, second = frame.to_dict("records")
    assert (first["token"], first["host"], first["claimed_s"], first["lease_until_s"]) == (1, "w1", 1.0, 75.0)
    assert (first["end"], first["ended_s"]) == ("swept", 80.0), "the late write does not change how it ended"
    assert math.isnan(first["executed_s"])
    assert (second["end"], second["ended_s"]) == ("succeeded", 84.0)
    assert (second["executing_s"], second["executed_s"]) == (82.0, 83.0)


@pytest.mark.parametrize(
    ("detail", "end"), [("cancelled", "cancelled"), ("requested", None), ("too_late", None)]
)
def test_a_cancellation_ends_the_claim_only_when_it_won(detail, end):
    frame = attempts_frame(Tale().enqueued().claimed(1).says("cancelled", 5, "client", detail=detail).history)
    assert frame["end"][0] == end if end else pd.isna(frame["end"][0])


def test_each_execution_is_one_row_late_by_the_databases_time():
    tale = Tale().enqueued(due_s=5).claimed(1).says("executing", 99, db_s=5.25, due_s=5, token=1, attempt=1)
    frame = lateness_frame(tale.history)
    assert list(frame.columns) == LATENESS
    assert frame["lateness_ms"][0] == 250.0
    assert (frame["due_s"][0], frame["began_s"][0]) == (5.0, 5.25)


def test_nothing_gives_empty_frames_with_the_same_columns():
    assert list(jobs_frame(History(), [], []).columns) == JOBS
    assert list(attempts_frame(History()).columns) == ATTEMPTS
    assert list(lateness_frame(History()).columns) == LATENESS
