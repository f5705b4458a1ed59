"""The hunt for mistakes: one that is caught, one that escapes, and the real scheduler in the same scenarios."""

from dataclasses import replace

import pytest

from simlab import mutants
from simlab.checks import Verdict
from simlab.errors import InvalidExperiment
from simlab.mutants import Hunt, Mutants, Proof, hunt_mutants
from simlab.scenario import Variant
from simlab.scenarios import SCENARIOS
from simlab.store import ModelStore

CRASH = "crash-after-execution"


def only(name: str = CRASH) -> dict:
    return {name: SCENARIOS[name]}


def hunt_here(**arguments) -> Mutants:
    return hunt_mutants(**{"seeds": 3, "real_seeds": 2, "jobs_parallel": 1, "scenarios": only(), **arguments})


def test_every_mistake_of_a_scenario_is_caught_by_a_check_it_names_and_the_real_scheduler_is_valid():
    came = hunt_here()
    assert came.ok
    assert {hunt.mistake for hunt in came.hunts} == {variant.name for variant in SCENARIOS[CRASH].variants}
    for hunt in came.hunts:
        assert hunt.caught_by in SCENARIOS[CRASH].variant(hunt.mistake).caught_by
        assert hunt.seed == hunt.tried - 1
    assert came.proofs == (Proof(scenario=CRASH, runs=2),)


def planted(monkeypatch, variant: Variant) -> dict:
    scenarios = {CRASH: replace(SCENARIOS[CRASH], variants=(variant,))}
    monkeypatch.setattr("simlab.experiment.find_scenario", scenarios.__getitem__)
    return scenarios


def test_a_mistake_that_is_none_escapes(monkeypatch):
    harmless = Variant(name="harmless", says="nothing is wrong", caught_by=("one-effect",))
    came = hunt_here(scenarios=planted(monkeypatch, harmless))
    assert not came.ok
    assert came.escaped == came.hunts
    assert came.hunts == (Hunt(mistake="harmless", scenario=CRASH, caught_by="", seed=None, tried=3),)
    assert "1 escaped (harmless)" in came.table()
    assert "ESCAPED (no check caught it)" in came.table()
    assert came.summary()["mistakes"][0]["escaped"] is True


def test_a_mistake_that_only_other_checks_catch_has_escaped(monkeypatch):
    real = SCENARIOS[CRASH].variant("no-idempotency")
    came = hunt_here(scenarios=planted(monkeypatch, replace(real, caught_by=("never-early",))))
    assert [hunt.others for hunt in came.escaped] == [("one-effect",)]
    assert "caught only by one-effect" in came.table()


def test_a_real_scheduler_that_fails_is_told_with_the_seed_and_the_check(monkeypatch):
    def broken(scenario: str, *, seed: int, variant: str | None = None, **options: object) -> object:
        # The mistakes run as ever; the real scheduler breaks with its second seed.
        if variant is None and seed == 1:
            raise ZeroDivisionError("planted")
        return simulate(scenario, seed=seed, variant=variant, **options)

    simulate = mutants.simulate
    monkeypatch.setattr(mutants, "simulate", broken)
    came = hunt_here()
    assert not came.ok
    assert not came.escaped
    (proof,) = came.proofs
    assert (proof.verdict, proof.seed, proof.check, proof.runs) == (Verdict.INVALID, 1, "broke", 2)
    assert f"the real scheduler is INVALID in {CRASH}, seed 1: broke: " in came.table()


def test_each_scenario_is_told_with_its_small_sizes(monkeypatch):
    seen = []

    def look(scenario: str, *, seed: int, **options: object) -> object:
        seen.append((scenario, options.get("n_jobs"), options.get("n_workers")))
        return simulate(scenario, seed=seed, **options)

    simulate = mutants.simulate
    monkeypatch.setattr(mutants, "simulate", look)
    stampede = SCENARIOS["midnight-stampede"]
    hunt_here(scenarios=only(stampede.name), seeds=1, real_seeds=1)
    small = (stampede.name, stampede.small["n_jobs"], stampede.small["n_workers"])
    assert seen == [small] * (1 + len(stampede.variants))


def test_the_hunt_is_the_same_with_two_processes():
    assert hunt_here(jobs_parallel=2) == hunt_here(jobs_parallel=1)


def test_progress_rises_to_the_whole():
    seen = []
    hunt_here(progress=lambda done, total: seen.append((done, total)))
    parts = len(SCENARIOS[CRASH].variants) + 1
    assert seen == [(done, parts) for done in range(1, parts + 1)]


def test_the_frame_has_one_row_a_mistake_and_scenario():
    came = hunt_here()
    frame = came.frame()
    assert list(frame.columns) == ["mistake", "scenario", "caught_by", "seed", "tried", "escaped", "others"]
    assert list(frame["mistake"]) == [hunt.mistake for hunt in came.hunts]
    assert not frame["escaped"].any()


def test_a_mistake_of_the_model_alone_is_not_hunted_on_postgres():
    class OnlyTheModel(ModelStore):
        pass

    on = mutants._runs_on
    alone = Variant(name="a", says="", caught_by=("one-effect",), model_store=OnlyTheModel)
    assert on(alone, "model")
    assert not on(alone, "postgres")
    assert on(replace(alone, rewrite=lambda queries: {}), "postgres")
    assert on(replace(alone, wrap=lambda store, locks: store), "postgres")
    assert on(replace(alone, model_store=ModelStore), "postgres")


@pytest.mark.postgres
def test_the_same_mistakes_are_caught_on_postgres_with_the_same_seeds(postgres_server):
    there = hunt_here(store="postgres", server=postgres_server)
    assert there.ok
    assert there.hunts == hunt_here().hunts
    assert "on the postgres store" in there.table()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"seeds": 0}, "seeds=0: must be a whole number of at least 1"),
        ({"real_seeds": True}, "real_seeds=True"),
        ({"store": "mysql"}, "store='mysql': there are model and postgres"),
        ({"store": "postgres"}, "mutants on PostgreSQL need a server"),
        ({"jobs_parallel": 0}, "jobs_parallel=0"),
    ],
)
def test_what_cannot_be_hunted_is_refused(arguments, says):
    with pytest.raises(InvalidExperiment, match=says):
        hunt_here(**arguments)


def test_every_listed_mistake_names_checks_that_its_scenario_makes():
    for scenario in SCENARIOS.values():
        for variant in scenario.variants:
            assert variant.caught_by, variant.name
            assert set(variant.caught_by) <= set(scenario.checks), (scenario.name, variant.name)
