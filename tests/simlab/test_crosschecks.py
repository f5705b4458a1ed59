"""The cross-check: equal histories on both stores, and a difference that names the first differing event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.jobs import JobState
from simlab.chaos import CrashStory
from simlab.checks import Verdict
from simlab.crosschecks import CrossCheck, crosscheck, crosscheck_many, first_difference
from simlab.errors import UnknownScenario
from simlab.experiment import simulate
from simlab.pgserver import PostgresServer
from simlab.results import Result
from simlab.scenarios import SCENARIOS


@pytest.fixture(scope="module")
def real() -> Result:
    return simulate("crash-after-execution", seed=7)


def test_a_result_does_not_differ_from_itself(real: Result) -> None:
    assert first_difference(real, simulate("crash-after-execution", seed=7)) is None


def test_the_first_differing_event_is_shown_with_its_surroundings(real: Result) -> None:
    other = simulate("crash-after-execution", seed=7, faults=())
    difference = first_difference(real, other)
    assert difference is not None
    assert difference.position is not None
    events, others = list(real.history), list(other.history)
    assert events[: difference.position] == others[: difference.position]
    assert events[difference.position] != others[difference.position]
    assert sum(line.startswith(">") for line in difference.model) == 1
    assert f"event {difference.position} differs" in str(difference)


def test_a_difference_in_the_final_rows_alone_is_shown(real: Result) -> None:
    row = replace(real.table[0], last_error="something else")
    difference = first_difference(real, replace(real, table=(row, *real.table[1:])))
    assert difference is not None
    assert difference.position is None
    assert "something else" in str(difference)


def _crosscheck(model: Result, postgres: Result, *stories: CrashStory) -> CrossCheck:
    return CrossCheck(
        model=model,
        postgres=postgres,
        difference=first_difference(model, postgres),
        real=stories,
        expected=Verdict.VALID,
        server="none",
    )


def test_the_verdict_needs_equal_digests_expected_verdicts_and_true_stories(real: Result) -> None:
    good = CrashStory(
        idempotent=True, killed_by="SIGKILL", state=JobState.SUCCEEDED, attempts=2, effects=1, seconds=1.0
    )
    assert _crosscheck(real, real, good).verdict is Verdict.VALID
    assert _crosscheck(real, real, replace(good, effects=2)).verdict is Verdict.INVALID
    other = simulate("crash-after-execution", seed=8)
    assert _crosscheck(real, other).verdict is Verdict.INVALID
    unknown = replace(real, verdict=Verdict.UNKNOWN)
    assert _crosscheck(real, unknown).verdict is Verdict.UNKNOWN


def test_an_unknown_scenario_is_told_before_a_server_is_started() -> None:
    with pytest.raises(UnknownScenario, match="no-such"):
        crosscheck("no-such", seed=1)


@pytest.mark.postgres
def test_every_scenario_and_mistake_gives_equal_digests_on_both_stores(
    postgres_server: PostgresServer,
) -> None:
    """Level 2 at the budget of a test; ``simlab crosscheck --all`` runs more seeds."""
    frame = crosscheck_many(
        list(SCENARIOS),
        seeds=range(2),
        server=postgres_server,
        sizes={name: scenario.small for name, scenario in SCENARIOS.items()},
    )
    assert frame["first_difference"].dropna().to_list() == []
    assert (frame["equal"] == frame["seeds"]).all()
    assert (frame["as_expected"] == frame["seeds"]).all()
    variants = sum(len(scenario.variants) for scenario in SCENARIOS.values())
    assert len(frame) == len(SCENARIOS) + variants


@pytest.mark.slow
@pytest.mark.postgres
def test_midnight_with_ten_thousand_jobs_gives_equal_digests(postgres_server: PostgresServer) -> None:
    checked = crosscheck("midnight-stampede", seed=0, server=postgres_server, n_jobs=10_000)
    assert checked.verdict is Verdict.VALID, checked.story()
    assert len(checked.model.table) == 10_000
