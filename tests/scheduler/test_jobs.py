"""Jobs: the one transition table, and times that convert without losing a microsecond."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import jobs
from scheduler.errors import NaiveDatetime
from scheduler.jobs import TERMINAL, TRANSITIONS, JobState, NewJob, from_us, instant_to_us, to_us

ZONES = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)


def test_the_table_knows_every_state() -> None:
    assert set(TRANSITIONS) == set(JobState)
    assert set().union(*TRANSITIONS.values()) == set(JobState)


def test_terminal_states_are_those_that_absorb() -> None:
    assert {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED} == TERMINAL
    assert all(not TRANSITIONS[state] for state in TERMINAL)


@pytest.mark.parametrize(
    ("state", "after"),
    [
        (JobState.PENDING, {JobState.CLAIMED, JobState.FAILED, JobState.CANCELLED}),
        (JobState.CLAIMED, {JobState.RUNNING, JobState.PENDING, JobState.FAILED, JobState.CANCELLED}),
        (JobState.RUNNING, {JobState.SUCCEEDED, JobState.PENDING, JobState.FAILED, JobState.CANCELLED}),
    ],
)
def test_the_ways_out_of_a_state(state: JobState, after: set[JobState]) -> None:
    assert TRANSITIONS[state] == after


def test_the_diagram_draws_the_table() -> None:
    drawn = {
        (source.strip(), target.partition(":")[0].strip())
        for source, arrow, target in (line.partition("-->") for line in (jobs.__doc__ or "").splitlines())
        if arrow
    }
    wanted = {(before.value, after.value) for before, afters in TRANSITIONS.items() for after in afters}
    assert drawn == wanted | {("[*]", "PENDING"), ("FAILED", "PENDING")}


@given(st.integers(-(10**17), 10**17))
def test_a_duration_converts_exactly(us: int) -> None:
    assert to_us(timedelta(microseconds=us)) == us


@given(st.datetimes(timezones=ZONES))
def test_an_instant_converts_there_and_back_exactly(instant: datetime) -> None:
    try:
        assert from_us(instant_to_us("at", instant)) == instant
    except OverflowError:  # less than a day from the first or the last date, in another zone
        assert instant.year in {1, 9999}


@given(st.datetimes(timezones=st.just(UTC)), ZONES)
def test_the_zone_does_not_change_the_instant(instant: datetime, zone: timezone) -> None:
    try:
        elsewhere = instant.astimezone(zone)
    except OverflowError:
        return
    assert instant_to_us("at", elsewhere) == instant_to_us("at", instant)


def test_the_epoch_is_nought() -> None:
    assert instant_to_us("at", datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert instant_to_us("at", datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1


def test_a_naive_instant_is_refused_by_the_name_of_the_argument() -> None:
    with pytest.raises(NaiveDatetime, match=r"^run_at=2026-01-01 00:00:00 has no time zone"):
        instant_to_us("run_at", datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize("when", [{}, {"run_at_us": 1, "delay_us": 1}])
def test_a_new_job_has_exactly_one_time(when: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="exactly one"):
        NewJob(job_id=UUID(int=1), task="task", payload={}, **when)
