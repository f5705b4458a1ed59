"""The stories of time, load and life cycles: the real scheduler is VALID, and each famous mistake is caught."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest

from scheduler.jobs import Job, JobState
from simlab.checks import Verdict
from simlab.experiment import simulate
from simlab.marks import count_marks
from simlab.results import Result
from simlab.scenarios import SCENARIOS, find_scenario
from simlab.scenarios.age_limit import MAX_AGE
from simlab.scenarios.midnight_stampede import MIDNIGHT_US
from simlab.scenarios.poison_pill import PILL_ATTEMPTS
from simlab.scenarios.same_key_conflict import is_conflict

SEEDS = range(10)
SEARCH = range(200)

HAPPENS = {
    "age-limit": (
        "a job aged out",
        "a retry was scheduled",
        "a job became a dead letter",
        "a host lost power",
    ),
    "blocked-handler": ("a host stood still", "a lease expired", "a worker gave up by its own count"),
    "cancel": (
        "a cancellation won",
        "a cancellation was requested",
        "a cancellation came too late",
        "a handler agreed to stop",
        "a start was refused",
    ),
    "clock-skew": ("a job was not due yet by the database",),
    "drain": ("a worker was asked to stop", "a job was given back"),
    "midnight-stampede": ("a host stood still",),
    "outage-overdue": ("the store did not answer", "a host lost power"),
    "poison-pill": ("a host lost power", "a lease expired", "an exhausted job was swept"),
    "retry-storm": ("a handler raised", "a retry was scheduled"),
    "rolling-deploy": ("a worker was asked to stop", "a job was given back", "a host lost power"),
    "same-key-conflict": ("a repeated enqueue found its job", "an idempotency key was another request's"),
    "slow-handler": (),
    "sooner-job": (),
}
"""For each scenario, what must come about in each of its runs. Two show their point in no mark, but in lateness."""

STORIES = sorted(HAPPENS)
VARIANTS = [(name, variant.name) for name in STORIES for variant in SCENARIOS[name].variants]


def told(name: str, *, seed: int = 0, **options: Any) -> Result:
    return simulate(name, seed=seed, **{**find_scenario(name).small, **options})


@cache
def real(name: str, seed: int = 0) -> Result:
    return told(name, seed=seed)


@cache
def naive(name: str, variant: str) -> Result:
    """Return the first run in which the checks that should catch a mistake do."""
    wanted = set(find_scenario(name).variant(variant).caught_by)  # type: ignore[union-attr]
    for seed in SEARCH:
        result = told(name, seed=seed, variant=variant)
        if wanted <= {check.name for check in result.checks if check.verdict is Verdict.INVALID}:
            return result
    raise AssertionError(f"{variant} escaped {len(SEARCH)} seeds of {name}")


def states(result: Result) -> Counter[JobState]:
    return Counter(row.state for row in result.table)


def kinds(result: Result, kind: str) -> list[Any]:
    return [event for event in result.history if event.kind == kind]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", STORIES)
def test_the_real_scheduler_is_valid(name: str, seed: int) -> None:
    result = real(name, seed)
    assert result.verdict is Verdict.VALID, result.story()
    marks = count_marks(result.history)
    assert [mark for mark in HAPPENS[name] if not marks[mark]] == []


@pytest.mark.parametrize("name", STORIES)
def test_without_faults_it_is_valid_too(name: str) -> None:
    result = told(name, faults=())
    assert result.verdict is Verdict.VALID, result.story()


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_the_mistake_is_caught_by_the_check_it_names(name: str, variant: str) -> None:
    assert naive(name, variant).verdict is Verdict.INVALID


@pytest.mark.parametrize("name", STORIES)
def test_sizes_can_be_turned_up_and_down(name: str) -> None:
    scenario = find_scenario(name)
    small = {**scenario.sizes, **scenario.small}
    for sizes in (dict.fromkeys(small, 1), {size: 2 * value for size, value in small.items()}):
        result = simulate(name, seed=1, **sizes)
        assert result.verdict is Verdict.VALID, result.story()


@pytest.mark.postgres
@pytest.mark.parametrize(("name", "variant"), [*((name, None) for name in STORIES), *VARIANTS])
def test_postgres_gives_the_same_digest(name: str, variant: str | None, postgres_server) -> None:
    model = real(name) if variant is None else naive(name, variant)
    again = told(name, seed=model.seed, variant=variant, store="postgres", server=postgres_server)
    assert again.digest == model.digest


# What each story is about.


def test_a_clock_that_is_wrong_makes_nobody_late_or_early() -> None:
    lateness = real("clock-skew").lateness.lateness_ms
    assert lateness.between(0, 10).all()


def test_everybody_at_midnight_is_run_soon_after() -> None:
    result = told("midnight-stampede", n_jobs=2000, n_workers=10)
    assert result.verdict is Verdict.VALID
    assert states(result) == {JobState.SUCCEEDED: 2000}
    assert {row.run_at_us for row in result.table} == {result.table[0].run_at_us}
    first = min(event.time_us for event in kinds(result, "executing"))
    assert 0 <= first - MIDNIGHT_US < 10_000


def test_the_pill_is_a_dead_letter_and_the_others_are_unharmed() -> None:
    for seed in SEEDS:
        pills: list[Job] = []
        for row in real("poison-pill", seed).table:
            if row.task == "pill":
                pills.append(row)
            else:
                assert row.state is JobState.SUCCEEDED
        assert [(pill.state, pill.attempt) for pill in pills] == [(JobState.FAILED, PILL_ATTEMPTS)]


def test_all_jobs_get_through_the_storm() -> None:
    result = real("retry-storm")
    assert set(states(result)) == {JobState.SUCCEEDED}
    assert {row.attempt for row in result.table} == {3}


def test_old_work_is_not_run_and_fails_with_attempts_left() -> None:
    result = real("age-limit")
    dead = [row for row in result.table if row.state is JobState.FAILED]
    ran = {event.job for event in kinds(result, "executing")}
    assert any(row.job_id in ran for row in dead)
    assert any(row.job_id not in ran for row in dead)
    assert all(row.attempt < row.max_attempts for row in dead)
    limit_us = MAX_AGE.total_seconds() * 1e6
    assert all(event.db_us - event.due_us < limit_us for event in kinds(result, "claimed"))


def test_each_answer_to_a_cancellation_holds() -> None:
    result = real("cancel")
    answers = {}
    for event in kinds(result, "cancelled"):
        answers.setdefault(event.job, event.detail)
    rows = {row.job_id: row for row in result.table}
    ran = {event.job for event in kinds(result, "executing")}
    for job, answer in answers.items():
        row = rows[job]
        if answer == "cancelled":
            assert row.state is JobState.CANCELLED
            assert job not in ran
        elif answer == "too_late" or row.task == "deaf":
            assert row.state is JobState.SUCCEEDED
    assert len(answers) == len(rows)


def test_a_sooner_job_is_on_time() -> None:
    for seed in SEEDS:
        result = real("sooner-job", seed)
        assert result.lateness.lateness_ms.max() < 10
        # It did arrive while the far one was held, and was run before it.
        order = list(result.lateness.sort_values("began_s").job)
        enqueued = list(result.jobs.sort_values("due_s").job)
        assert order == enqueued


def test_a_slow_job_delays_nobody_and_keeps_its_lease() -> None:
    result = real("slow-handler")
    slow = max(kinds(result, "executed"), key=lambda event: event.time_us)
    renewals = [event for event in kinds(result, "renewed") if event.job == slow.job]
    assert len(renewals) > 10
    assert result.lateness.lateness_ms.max() < 10


def test_the_blocked_workers_jobs_end_elsewhere() -> None:
    result = real("blocked-handler")
    assert set(states(result)) == {JobState.SUCCEEDED}
    again = Counter(event.job for event in kinds(result, "executing"))
    assert max(again.values()) == 2


def test_everything_overdue_is_found() -> None:
    result = real("outage-overdue")
    assert set(states(result)) == {JobState.SUCCEEDED}
    assert result.lateness.lateness_ms.max() > 60_000


def test_a_drain_gives_back_what_waits_and_ends_what_runs() -> None:
    result = real("drain")
    asked = kinds(result, "stopping")[0].time_us
    ended = [event for event in kinds(result, "executed") if event.host == "w1" and event.time_us > asked]
    assert max(event.time_us for event in ended) - asked > 2 * result.lease_us
    assert {row.attempt for row in result.table} == {1}
    taken_over = {event.job for event in kinds(result, "finished") if event.detail.startswith("released")}
    assert {event.host for event in kinds(result, "executed") if event.job in taken_over} == {"w2"}


def test_a_deploy_replaces_every_worker() -> None:
    result = real("rolling-deploy")
    assert set(states(result)) == {JobState.SUCCEEDED}
    newest = {event.host: event.incarnation for event in kinds(result, "claimed")}
    assert {host for host, number in newest.items() if number > 1} == {"w1", "w2", "w3"}


def test_one_job_a_key_and_a_conflict_for_the_other_request() -> None:
    result = real("same-key-conflict")
    keys = Counter(row.idempotency_key for row in result.table)
    assert set(keys.values()) == {1}
    asked = [event for event in kinds(result, "enqueued") if event.detail.startswith("conflict")]
    conflicting = {row.job_id for row in result.table if is_conflict(row.payload["n"])}
    assert {event.job for event in asked} == conflicting
