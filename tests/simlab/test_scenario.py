"""Scenarios: named, sized, with variants that say what catches them."""

from dataclasses import FrozenInstanceError

import pytest

from simlab.checks import CHECKS
from simlab.errors import InvalidExperiment, UnknownScenario
from simlab.scenarios import SCENARIOS, find_scenario

ALL = list(SCENARIOS.values())


@pytest.mark.parametrize("scenario", ALL, ids=SCENARIOS)
def test_a_scenario_says_what_it_teaches_and_checks_what_exists(scenario):
    assert scenario.teaches
    assert "\n" not in scenario.teaches
    assert set(scenario.checks) <= set(CHECKS)
    assert all(type(size) is int and size >= 1 for size in scenario.sizes.values())
    with pytest.raises(FrozenInstanceError):
        scenario.name = "other"


@pytest.mark.parametrize("scenario", ALL, ids=SCENARIOS)
def test_each_variant_names_checks_that_its_scenario_runs(scenario):
    names = [variant.name for variant in scenario.variants]
    assert len(set(names)) == len(names)
    for variant in scenario.variants:
        assert scenario.variant(variant.name) is variant
        assert variant.caught_by
        assert set(variant.caught_by) <= set(scenario.checks)
        assert variant.says
    assert scenario.variant(None) is None


def test_every_check_has_a_famous_mistake_that_it_catches():
    named = {check for scenario in ALL for variant in scenario.variants for check in variant.caught_by}
    assert named == set(CHECKS)


def test_a_scenario_is_found_by_its_name_which_is_its_key():
    for name, scenario in SCENARIOS.items():
        assert find_scenario(name) is scenario
        assert scenario.name == name
    with pytest.raises(TypeError):
        SCENARIOS["new"] = ALL[0]


def test_what_is_unknown_is_refused_with_what_there_is():
    crash = find_scenario("crash-after-execution")
    with pytest.raises(UnknownScenario, match=r"unknown scenario 'x'; there are: .*crash-after-execution"):
        find_scenario("x")
    with pytest.raises(
        UnknownScenario, match=r"unknown variant of crash-after-execution 'x'; there are: .*unguarded"
    ):
        crash.variant("x")
    with pytest.raises(
        UnknownScenario, match="unknown size of crash-after-execution 'x'; there are: n_jobs, n_workers"
    ):
        crash.sized({"x": 1})


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "3", None])
def test_a_size_that_is_none_is_refused(value):
    with pytest.raises(InvalidExperiment, match=r"n_jobs=.*: a size is a whole number of at least 1"):
        find_scenario("crash-after-execution").sized({"n_jobs": value})


def test_sizes_given_take_the_place_of_the_defaults_and_leave_them_alone():
    crash = find_scenario("crash-after-execution")
    before = dict(crash.sizes)
    assert crash.sized({"n_jobs": 3}) == {**before, "n_jobs": 3}
    assert crash.sizes == before
