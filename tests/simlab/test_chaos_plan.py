"""What a run of chaos does, and to what load, is decided by the seed alone."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from scheduler.postgres import Queries
from simlab.chaos import mistakes, run_chaos
from simlab.chaos.load import plan_load
from simlab.chaos.mistakes import write_statements
from simlab.chaos.plan import Act, ActKind, plan_acts
from simlab.errors import InvalidExperiment, UnknownScenario

LEASE_US = 3_000_000
MINUTE_US = 60_000_000
NETWORK = {ActKind.DELAY, ActKind.CUT, ActKind.SILENCE, ActKind.REPLY_LOSS}


def acts(seed: int = 0, *, workers: int = 4, until_us: int = MINUTE_US) -> tuple[Act, ...]:
    return plan_acts(seed=seed, workers=workers, until_us=until_us, lease_us=LEASE_US)


def test_the_same_seed_does_the_same_and_another_does_not() -> None:
    assert acts(7) == acts(7)
    assert acts(7) != acts(8)


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    short, long = acts(), acts(until_us=5 * MINUTE_US)
    assert long[: len(short)] == short
    assert len(long) > len(short)


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_comes_once_before_any_comes_twice(seed: int) -> None:
    planned = acts(seed)
    assert {act.kind for act in planned[: len(ActKind)]} == set(ActKind)
    assert planned[len(ActKind) - 1].at_us < 15_000_000, "a quarter of a minute is enough to try them all"


@pytest.mark.parametrize("seed", range(20))
def test_acts_come_in_order_within_the_run_and_outlast_what_they_must(seed: int) -> None:
    planned = acts(seed)
    instants = [act.at_us for act in planned]
    assert instants == sorted(instants)
    assert instants[0] > 0
    assert instants[-1] < MINUTE_US
    for act in planned:
        # The last number stands for the client, which has a network and no process.
        assert 0 <= act.worker <= (4 if act.kind in NETWORK else 3)
        if act.kind in {ActKind.STOP, ActKind.SILENCE}:
            assert act.for_us > LEASE_US


def test_the_load_is_decided_by_the_seed() -> None:
    load = plan_load(seed=3, jobs=500, until_us=MINUTE_US)
    assert load == plan_load(seed=3, jobs=500, until_us=MINUTE_US)
    assert load != plan_load(seed=4, jobs=500, until_us=MINUTE_US)
    assert len({job.request.idempotency_key for job in load}) == 500
    assert set(Counter(job.task for job in load)) == {"work", "doomed", "fleeting"}
    assert any(job.cancel_after_us is not None for job in load)
    assert {job.payload["idempotent"] for job in load if job.task == "work"} == {True, False}


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"minutes": 0}, "minutes=0"),
        ({"minutes": float("nan")}, "minutes=nan"),
        ({"minutes": 1000}, "at most 120"),
        ({"workers": 0}, "workers=0"),
        ({"workers": 33}, "from 1 to 32"),
        ({"jobs": 0}, "jobs=0"),
        ({"jobs": 10**9}, "from 1 to 200,000"),
    ],
)
def test_sizes_out_of_bounds_are_refused_before_anything_starts(sizes: dict[str, float], says: str) -> None:
    with pytest.raises(InvalidExperiment, match=says):
        run_chaos(**sizes)  # type: ignore[arg-type]


def test_an_unknown_mistake_is_refused_before_anything_starts() -> None:
    with pytest.raises(UnknownScenario, match="unguarded-finish"):
        run_chaos(mistake="no-such-mistake")


@pytest.mark.parametrize("name", mistakes())
def test_every_mistake_replaces_a_statement(name: str, tmp_path: Path) -> None:
    path = tmp_path / "statements.json"
    write_statements(name, path)
    replaced = json.loads(path.read_text())
    assert replaced
    assert all(getattr(Queries.load(), field) != statement for field, statement in replaced.items())
