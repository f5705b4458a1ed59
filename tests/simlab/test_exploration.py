"""The search: it finds planted mistakes from nothing, shrinks them, writes files that replay, and finds no others."""

import dataclasses
from pathlib import Path

import pytest

from simlab import simulate
from simlab.checks import Verdict
from simlab.errors import InvalidExperiment, UnknownScenario
from simlab.exploration import EXTRA_FAULTS, Exploration, explore
from simlab.faults import HandlerKills
from simlab.replays import ExperimentFile, replay
from simlab.scenarios import find_scenario

CRASH = "crash-after-execution"

MAX_FAULTS = 3
"""The most faults that the story of a planted mistake may be left with."""

RUNS = 120
"""So many runs find each planted mistake, and as many again shrink it."""


def search(tmp_path, **arguments) -> Exploration:
    # The budget is one of runs: a slow machine searches as much as a fast one.
    return explore(**{"scenario": "mixed", "max_runs": RUNS, "budget_s": 600.0, "out": tmp_path, **arguments})


# The canary: a search that finds nothing planted would find nothing real.


@pytest.mark.parametrize(
    ("variant", "check"), [("no-idempotency", "one-effect"), ("unguarded-finish", "no-stale-write")]
)
def test_a_planted_mistake_is_found_from_nothing_shrunk_and_replayed(tmp_path, variant, check):
    came = search(tmp_path, variant=variant)
    assert came.verdict is Verdict.INVALID
    found = came.found
    assert found.check.name == check
    assert len(found.faults) <= MAX_FAULTS
    assert found.result.verdict is Verdict.INVALID

    assert found.file.parent == tmp_path
    again = replay(found.file)
    assert again.digest == found.result.digest
    assert ExperimentFile.load(found.file).faults == found.faults
    # It is the mistake that fails, and not the experiment: the real scheduler survives the same.
    real = dataclasses.replace(ExperimentFile.load(found.file), variant=None).run()
    assert real.verdict is Verdict.VALID

    told = came.story()
    assert f"{came.runs} runs of mixed with the mistake {variant}" in told
    assert "FOUND" in told
    assert found.result.story().splitlines()[0] in told
    for fault in found.faults:
        assert f"fault: {fault}" in told
    assert f"replay it with: simlab replay {found.file}" in told


def test_the_real_scheduler_survives_a_budget_of_searching(tmp_path):
    shrinking = []
    came = search(tmp_path, progress=lambda _, found: shrinking.append(found))
    assert came.found is None, came.story()
    assert came.verdict is Verdict.VALID
    assert came.runs == RUNS
    assert shrinking == [False] * RUNS
    assert "nothing found" in came.story()
    assert came.summary()["found"] is None
    assert not list(tmp_path.glob("*.json"))


# The budget.


def test_a_budget_of_runs_is_kept(tmp_path):
    came = search(tmp_path, max_runs=7)
    assert came.runs == 7
    assert came.never


def test_a_budget_of_seconds_is_kept(tmp_path, monkeypatch):
    now_s = 0.0

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now_s

    def slow(runs: int, found: bool) -> None:
        nonlocal now_s
        now_s += 1.0

    monkeypatch.setitem(explore.__globals__, "time", Clock)
    came = explore("mixed", budget_s=5.0, out=tmp_path, progress=slow)
    assert (came.runs, came.wall_s, came.runs_per_s) == (5, 5.0, 1.0)


def find_quickly(out, **arguments) -> Exploration:
    """Search where the story itself shows the mistake."""
    return search(out, **{"scenario": CRASH, "variant": "no-idempotency", "max_runs": 8, **arguments})


def test_progress_counts_the_runs_and_says_when_shrinking_begins(tmp_path):
    seen = []
    came = find_quickly(tmp_path, progress=lambda *at: seen.append(at))
    assert [runs for runs, _ in seen] == list(range(1, came.runs + 1))
    shrinking = [found for _, found in seen]
    assert shrinking == sorted(shrinking)
    assert shrinking[-1] is True


# What it remembers.


def test_shrinking_is_bounded_and_the_next_search_begins_with_what_failed_before(tmp_path):
    first = search(tmp_path, variant="no-idempotency", max_runs=40)
    assert first.found is not None
    assert 40 < first.runs <= 80, "shrinking may take as long as searching"
    second = search(tmp_path, variant="no-idempotency", max_runs=1, seed=5)
    assert second.found is not None
    assert second.found.check.name == first.found.check.name
    # One run finds nothing where nothing is remembered.
    assert search(tmp_path / "fresh", variant="no-idempotency", max_runs=1, seed=5).found is None


def test_everything_it_writes_is_in_its_folder(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    came = find_quickly("there/deep")
    assert came.found.file.is_file()
    assert [path.name for path in here.iterdir()] == ["there"]
    assert Path("there/deep/.hypothesis", f"{CRASH}--no-idempotency").is_dir()


# Other scenarios.


def test_a_story_gets_more_faults_besides_its_own(tmp_path):
    seen = []

    def look(scenario: str, **options: object) -> object:
        seen.append(options["faults"])
        return simulate(scenario, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(explore.__globals__, "simulate", look)
        came = explore("slow-job", max_runs=25, budget_s=600.0, out=tmp_path)
    assert came.found is None, came.story()
    own = find_scenario("slow-job").faults(find_scenario("slow-job").sizes)
    tried = seen[1:]  # The first is the healthy run that shows what there is to strike.
    assert len(tried) == 25
    assert all(plan[: len(own)] == own and len(plan) <= len(own) + EXTRA_FAULTS for plan in tried)
    assert any(len(plan) > len(own) for plan in tried)


def test_a_story_is_told_for_as_long_as_faults_that_are_not_its_own_need():
    # Its worker dies and the lease would outlive the story.
    scenario = find_scenario("same-key-conflict")
    own = scenario.faults(scenario.sizes)
    result = simulate("same-key-conflict", seed=0, faults=(*own, HandlerKills(job=0)))
    assert result.verdict is Verdict.VALID, result.story()
    assert any(row.attempt > 1 for row in result.table)
    assert (
        result.virtual_s > simulate("same-key-conflict", seed=0).virtual_s + scenario.settings.lease_us / 1e6
    )


def test_a_mistake_is_found_in_its_own_story(tmp_path):
    came = find_quickly(tmp_path)
    assert came.found is not None
    assert came.found.workload is None
    assert replay(came.found.file).digest == came.found.result.digest


# A run that an exception ended.


def test_a_run_that_breaks_is_found_and_its_plan_written(tmp_path, monkeypatch):
    def breaks(scenario: str, *, faults: tuple, **options: object) -> object:
        if faults:
            raise ZeroDivisionError("in the scheduler")
        return simulate(scenario, faults=faults, **options)

    monkeypatch.setitem(explore.__globals__, "simulate", breaks)
    came = search(tmp_path, max_runs=60)
    assert came.found is not None
    assert came.found.result is None
    assert came.found.check.says == "the run ended with ZeroDivisionError: in the scheduler"
    assert len(came.found.faults) == 1
    assert ExperimentFile.load(came.found.file).faults == came.found.faults
    assert came.summary()["found"]["digest"] is None
    assert "ZeroDivisionError" in came.story()


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"budget_s": 0.0}, InvalidExperiment, "a budget of 0 s: must be more than 0 s"),
        ({"budget_s": -1.0}, InvalidExperiment, "a budget of -1 s"),
        ({"budget_s": float("nan")}, InvalidExperiment, "a budget of nan s"),
        ({"budget_s": float("inf")}, InvalidExperiment, "a budget of inf s"),
        ({"max_runs": 0}, InvalidExperiment, "max_runs=0: must be a whole number of at least 1"),
        ({"seed": -1}, InvalidExperiment, "seed=-1: must be a whole number of at least 0"),
        ({"scenario": "crash"}, UnknownScenario, "unknown scenario 'crash'"),
        ({"variant": "worse"}, UnknownScenario, "unknown variant of mixed 'worse'"),
        ({"n_cats": 1}, UnknownScenario, "unknown size of mixed 'n_cats'"),
    ],
)
def test_what_cannot_be_searched_is_refused(tmp_path, arguments, error, says):
    with pytest.raises(error, match=says):
        search(tmp_path, **arguments)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_refused_before_the_search(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidExperiment, match=r"cannot be made: .*; name another folder"):
        search(tmp_path / "file" / "out")
