"""The stories of leases and of what may come between a worker and the table.

In each the real scheduler is VALID, the story really happens, each famous mistake is caught by the check it
names, and PostgreSQL tells the very same story as the model.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest

from scheduler.jobs import JobState
from scheduler.postgres import Queries
from simlab.checks import Verdict
from simlab.experiment import simulate
from simlab.history import Event
from simlab.marks import count_marks
from simlab.naive.rewriting import rewritten, rewritten_everywhere
from simlab.pgserver import PostgresServer
from simlab.results import Result
from simlab.scenarios import SCENARIOS
from simlab.scenarios import heartbeat_vs_expiry as heartbeats
from simlab.scenarios import reaper_vs_completion as completions
from simlab.scenarios.instants import AROUND_US
from simlab.scenarios.lock_held import SCENARIO as LOCK_HELD
from simlab.scenarios.partitioned_worker import CUT_AT_US, CUT_US

SEEDS = range(10)
SEARCH = range(200)

HAPPENS = {
    "claim-contention": (),
    "crash-before-execution": ("a host lost power", "a lease expired"),
    "cut-off-twice": (
        "a host was cut off",
        "a late outcome was refused",
        "a worker gave up by its own count",
        "a lease expired",
    ),
    "dead-letter-replay": (
        "a host stood still",
        "an exhausted job was swept",
        "a dead letter was replayed",
        "a worker gave up by its own count",
        "a second effect was refused",
    ),
    "gc-pause-zombie": (
        "a host stood still",
        "a lease expired",
        "a worker gave up by its own count",
        "a late outcome was refused",
        "a second effect was refused",
    ),
    "heartbeat-vs-expiry": ("a host stood still", "a message was held up", "a lease was renewed"),
    "lock-held": (
        "a row was locked by somebody else",
        "the store did not answer",
        "a lease was renewed",
        "a worker gave up by its own count",
        "a lease expired",
    ),
    "partitioned-worker": ("a host was cut off", "a worker gave up by its own count", "a lease expired"),
    "reaper-vs-completion": ("a host stood still", "a message was held up"),
    "reply-lost-enqueue": ("a repeated enqueue found its job",),
    "reply-lost-finish": ("a lost reply was recovered", "a retry was scheduled"),
    "reused-worker-name": ("a host lost power", "a message was held up", "a late outcome was refused"),
    "slow-job": ("a lease was renewed",),
    "slow-network": (
        "a message was held up",
        "a host was cut off",
        "a worker gave up by its own count",
        "a lease expired",
    ),
    "stale-request": (
        "a message was held up",
        "a start was refused",
        "a late heartbeat was refused",
        "a late outcome was refused",
    ),
    "store-clock-step": (
        "the store's clock was stepped",
        "a lease expired",
        "a loser was aborted",
        "a job was not due yet by the database",
    ),
    "store-restart": ("the store went down", "the store did not answer", "a worker gave up by its own count"),
}
"""For each scenario, what must come about in each of its runs; contention shows in its mistakes only."""

STORIES = sorted(HAPPENS)
VARIANTS = [(name, variant.name) for name in STORIES for variant in SCENARIOS[name].variants]


@cache
def told(name: str, seed: int = 0) -> Result:
    return simulate(name, seed=seed)


def events(result: Result, kind: str, **fields: Any) -> list[Event]:
    return [
        event
        for event in result.history
        if event.kind == kind and all(getattr(event, name) == value for name, value in fields.items())
    ]


def broken(result: Result) -> list[str]:
    return [f"{check.name}: {check.says}" for check in result.checks if check.verdict is not Verdict.VALID]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", STORIES)
def test_the_real_scheduler_is_valid_and_the_story_happens(name: str, seed: int) -> None:
    result = told(name, seed)
    assert not broken(result)
    marks = count_marks(result.history)
    assert [mark for mark in HAPPENS[name] if not marks[mark]] == []


@pytest.mark.parametrize("name", STORIES)
def test_a_healthy_run_is_valid_and_does_everything_once(name: str) -> None:
    result = simulate(name, seed=0, faults=())
    assert not broken(result)
    assert {row.state for row in result.table} == {JobState.SUCCEEDED}
    assert len(events(result, "executing")) == len(result.table)


@pytest.mark.parametrize(("name", "mistake"), VARIANTS)
def test_the_mistake_is_caught_by_the_check_it_names(name: str, mistake: str) -> None:
    variant = SCENARIOS[name].variant(mistake)
    assert variant is not None
    for seed in SEARCH:
        result = simulate(name, seed=seed, variant=mistake)
        if {check.name for check in result.checks if check.verdict is Verdict.INVALID} & {*variant.caught_by}:
            return
    pytest.fail(f"{mistake} escaped {len(SEARCH)} seeds of {name}")


@pytest.mark.parametrize(("name", "variant"), [*((name, None) for name in STORIES), *VARIANTS])
def test_postgres_tells_the_same_story(
    name: str, variant: str | None, postgres_server: PostgresServer
) -> None:
    model = simulate(name, seed=0, variant=variant)
    postgres = simulate(name, seed=0, variant=variant, store="postgres", server=postgres_server)
    assert model.digest == postgres.digest


def test_sizes_that_are_turned_up_stay_valid() -> None:
    turned_up: dict[str, dict[str, Any]] = {
        "heartbeat-vs-expiry": {"n_workers": 24},
        "reaper-vs-completion": {"n_workers": 24},
        "stale-request": {"n_workers": 13},
        "slow-job": {"n_jobs": 100, "n_workers": 5, "n_slow": 7},
        "reused-worker-name": {"n_jobs": 30, "n_workers": 3},
    }
    for name, sizes in turned_up.items():
        assert not broken(simulate(name, seed=1, **sizes))


# The races.


def order_of_the_race(result: Result, expiry_us: int, message: str) -> Counter[str]:
    """Count, for the jobs of a race, whose message came first, and whether within a microsecond of the sweep."""
    sweeps = {event.job: event.time_us for event in events(result, "swept")}
    came: Counter[str] = Counter()
    kinds = {"heartbeat": ("renewed", "heartbeat"), "finish": ("finished", "finish (succeeded)")}
    accepted, refused = kinds[message]
    for event in result.history:
        raced = abs(event.time_us - expiry_us) <= max(AROUND_US)
        if raced and event.kind == accepted and event.token == 1:
            came["message first"] += 1
        elif raced and event.kind == "rejected" and event.detail == refused:
            close = event.time_us - sweeps[event.job] <= 1
            came["sweep first, by a microsecond" if close else "sweep first"] += 1
    return came


@pytest.mark.parametrize(
    ("name", "message", "expiry_us"),
    [
        ("heartbeat-vs-expiry", "heartbeat", heartbeats.EXPIRY_US),
        ("reaper-vs-completion", "finish", completions.EXPIRY_US),
    ],
)
def test_both_orders_happen_within_a_microsecond(name: str, message: str, expiry_us: int) -> None:
    orders, sweeps_us = Counter[str](), set()
    for seed in range(21):
        result = told(name, seed)
        came = order_of_the_race(result, expiry_us, message)
        # Every message arrives in the race, and whoever is refused was swept before, and only they.
        assert came.total() == SCENARIOS[name].sizes["n_workers"]
        orders += came
        sweeps_us |= {
            event.time_us - expiry_us for event in events(result, "swept", host="late") if event.token == 1
        }
    assert set(orders) == {"message first", "sweep first", "sweep first, by a microsecond"}
    assert {0, 1, 2} <= sweeps_us, "the sweep arrives at each of these, as the seed has it"


def test_the_messages_of_a_race_arrive_between_all_the_steps_of_the_takeover() -> None:
    result = told("heartbeat-vs-expiry", 0)
    assert events(result, "swept", host="late"), "the sweep did not come too early"
    before = set()
    for refused in events(result, "rejected", detail="heartbeat"):
        steps = [
            event.kind
            for event in result.history
            if event.job == refused.job and event.time_us < refused.time_us
        ]
        before.add(steps[steps.index("swept") :][-1])
    assert before == {"swept", "claimed", "started"}


def test_a_worker_that_was_renewed_goes_on_and_one_that_was_refused_stops() -> None:
    result = told("heartbeat-vs-expiry", 0)
    lost = {event.job for event in events(result, "rejected", detail="heartbeat")}
    assert {event.job for event in events(result, "aborted", detail="lost")} == lost
    ended = {event.job for event in events(result, "executed", token=1)}
    assert ended
    assert not ended & lost


# What is particular to one story.


@pytest.mark.parametrize("seed", SEEDS)
def test_a_worker_that_is_cut_off_stops_before_the_job_is_given_away(seed: int) -> None:
    result = told("partitioned-worker", seed)
    gave_up = events(result, "aborted", detail="expired", host="w1")
    assert gave_up
    for event in gave_up:
        assert CUT_AT_US < event.time_us < CUT_AT_US + CUT_US
        taken = next(claim for claim in events(result, "claimed", job=event.job) if claim.token > event.token)
        assert event.time_us < taken.time_us
        swept = next(iter(events(result, "swept", job=event.job)))
        assert event.time_us < swept.time_us


@pytest.mark.parametrize("seed", SEEDS)
def test_a_repeated_enqueue_is_one_job(seed: int) -> None:
    result = told("reply-lost-enqueue", seed)
    keys = Counter(row.idempotency_key for row in result.table)
    assert keys == Counter({f"order-{n}" for n in range(SCENARIOS["reply-lost-enqueue"].sizes["n_jobs"])})


@pytest.mark.parametrize("seed", SEEDS)
def test_a_restarted_worker_gets_its_job_again_and_the_old_message_comes_while_it_is_at_work(
    seed: int,
) -> None:
    result = told("reused-worker-name", seed)
    for late in events(result, "rejected", detail="finish (succeeded)"):
        began = next(iter(events(result, "executing", job=late.job, token=2)))
        ended = next(iter(events(result, "executed", job=late.job, token=2)))
        assert late.incarnation == 1
        assert began.incarnation == 2
        assert began.time_us < late.time_us < ended.time_us


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_done_twice_when_power_is_lost_before_the_work(seed: int) -> None:
    result = told("crash-before-execution", seed)
    assert events(result, "swept")
    assert not events(result, "duplicate")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_job_is_run_once_and_its_neighbours_wait_in_peace(seed: int) -> None:
    result = told("slow-job", seed)
    assert not events(result, "swept")
    assert len(events(result, "executing")) == len(result.table)


def test_a_locked_row_costs_the_other_jobs_nothing() -> None:
    result = told("lock-held", 0)
    locked = {event.job for event in events(result, "enqueued")[:3]}
    others = [event for event in events(result, "executing") if event.job not in locked]
    assert len(others) == LOCK_HELD.sizes["n_jobs"]
    assert max(event.db_us - event.due_us for event in others) < 50_000


def test_a_stale_request_arrives_while_the_next_owner_is_at_work() -> None:
    result = told("stale-request", 0)
    first = {event.job: event for event in reversed(events(result, "rejected"))}
    assert {event.detail for event in first.values()} == {
        "start",
        "heartbeat",
        "finish (retry)",
        "finish (succeeded)",
    }
    for job, late in first.items():
        began = next(iter(events(result, "executing", job=job, token=2)))
        ended = next(iter(events(result, "executed", job=job, token=2)))
        assert began.time_us < late.time_us < ended.time_us


# The mistakes themselves.


def test_a_rewriting_fails_loudly_when_the_statement_has_changed() -> None:
    with pytest.raises(AssertionError, match="0 times"):
        rewritten("SELECT 1", ("SELECT 2", ""))
    with pytest.raises(AssertionError, match="2 times"):
        rewritten_everywhere("a AND a", "a", "b", times=3)
    assert rewritten_everywhere("a AND a", "a", "b", times=2) == "b AND b"


def test_every_mistake_in_sql_changes_a_statement_that_exists() -> None:
    queries = Queries.load()
    for name, mistake in VARIANTS:
        variant = SCENARIOS[name].variant(mistake)
        assert variant is not None
        if variant.rewrite is not None:
            for statement, text in variant.rewrite(queries).items():
                assert text != getattr(queries, statement)
