"""simulate(): what it refuses, what it leaves behind, and where it may be called."""

import asyncio
import gc

import pytest

from simlab import experiment, simulate
from simlab.checks import Verdict
from simlab.errors import InvalidExperiment, SimulationError, UnknownScenario
from simlab.faults import At, Crash, HandlerRaises, LockHeld, RequestLost
from simlab.history import History
from simlab.scenarios import find_scenario

CRASH = "crash-after-execution"


def test_a_run_says_what_it_ran_and_is_valid():
    result = simulate(CRASH, seed=7, n_jobs=4, n_workers=3)
    assert (result.scenario, result.seed, result.variant, result.store) == (CRASH, 7, None, "model")
    assert dict(result.params) == {**find_scenario(CRASH).sizes, "n_jobs": 4, "n_workers": 3}
    assert len(result.table) == 4
    assert result.verdict is Verdict.VALID
    assert result.virtual_s > 100


@pytest.mark.parametrize("variant", find_scenario(CRASH).variants, ids=lambda variant: variant.name)
def test_each_variant_is_caught_by_the_checks_it_names(variant):
    result = simulate(CRASH, seed=7, variant=variant.name)
    caught = {check.name for check in result.checks if check.verdict is Verdict.INVALID}
    assert set(variant.caught_by) <= caught
    assert result.verdict is Verdict.INVALID
    assert variant.name in repr(result)


def test_without_faults_nothing_runs_twice():
    result = simulate(CRASH, seed=7, faults=())
    assert result.faults == ()
    assert set(result.jobs["executions"]) == {1}
    assert result.verdict is Verdict.VALID


def test_a_plan_of_ones_own_takes_the_place_of_the_scenarios():
    plan = [RequestLost(host="w1", verb="claim"), Crash(host="w2", when=At(5_000_000))]
    result = simulate(CRASH, seed=7, faults=plan)
    assert result.faults == tuple(plan)
    faults = result.events[result.events["kind"] == "fault"]
    assert len(faults) == 2
    assert result.verdict is Verdict.VALID


@pytest.mark.parametrize("seed", [1.0, "7", None, True])
def test_a_seed_that_is_no_whole_number_is_refused(seed):
    with pytest.raises(InvalidExperiment, match=r"seed=.*: a seed is a whole number"):
        simulate(CRASH, seed=seed)


@pytest.mark.parametrize("seed", [0, -1, 2**200])
def test_any_whole_number_is_a_seed(seed):
    assert simulate(CRASH, seed=seed, n_jobs=1).verdict is Verdict.VALID


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (
            {"scenario": "crash"},
            UnknownScenario,
            "unknown scenario 'crash'; there are: .*crash-after-execution",
        ),
        (
            {"variant": "worse"},
            UnknownScenario,
            "unknown variant of crash-after-execution 'worse'; there are: no-",
        ),
        ({"n_cats": 3}, UnknownScenario, "unknown size of crash-after-execution 'n_cats'; there are: n_jobs"),
        ({"n_jobs": 0}, InvalidExperiment, "n_jobs=0: a size is a whole number of at least 1"),
        ({"n_jobs": 2.0}, InvalidExperiment, "n_jobs=2.0"),
        ({"n_jobs": True}, InvalidExperiment, "n_jobs=True"),
        ({"store": "mysql"}, InvalidExperiment, "store='mysql': there are model and postgres"),
        (
            {"faults": [Crash(host="w9", when=At(1))]},
            InvalidExperiment,
            "no host 'w9'; there are w1, w2, client",
        ),
    ],
)
def test_what_does_not_exist_is_refused_in_one_line(arguments, error, says):
    with pytest.raises(error, match=says) as told:
        simulate(**{"scenario": CRASH, "seed": 7, **arguments})
    assert "\n" not in str(told.value)
    assert told.value.exit_code == 2


def test_a_refusal_leaves_the_next_run_as_it_was():
    before = simulate(CRASH, seed=7).digest
    with pytest.raises(InvalidExperiment):
        simulate(CRASH, seed=7, faults=[Crash(host="w9", when=At(1))])
    assert simulate(CRASH, seed=7).digest == before


# Garbage collection.


def test_garbage_that_was_there_is_frozen_during_a_run_and_unfrozen_after():
    frozen = []
    before = gc.get_freeze_count()
    assert gc.isenabled()
    simulate(CRASH, seed=7, n_jobs=1, progress=lambda done, total: frozen.append(gc.get_freeze_count()))
    assert min(frozen) > before
    assert gc.get_freeze_count() == 0
    assert gc.isenabled()


def test_garbage_is_unfrozen_after_a_run_that_broke():
    class Stop(Exception):
        pass

    def progress(done: int, total: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        simulate(CRASH, seed=7, progress=progress)
    assert gc.get_freeze_count() == 0
    gc.collect()


# Progress.


def test_progress_rises_to_the_whole_in_about_a_hundred_steps():
    seen = []
    simulate(CRASH, seed=7, n_jobs=1, progress=lambda done, total: seen.append((done, total)))
    done = [now for now, _ in seen]
    assert done == sorted(done)
    assert 1 <= len(seen) <= 110
    assert {total for _, total in seen} == {seen[-1][0]}


def test_progress_changes_nothing():
    assert simulate(CRASH, seed=7, progress=lambda *_: None).digest == simulate(CRASH, seed=7).digest


# Notebooks.


def test_it_may_be_called_where_a_loop_is_running_and_leaves_that_loop_alone():
    expected = simulate(CRASH, seed=7).digest
    ticks = []

    async def ticking() -> None:
        while True:
            ticks.append(1)
            await asyncio.sleep(0)

    async def cell() -> None:
        task = asyncio.create_task(ticking())
        await asyncio.sleep(0)
        before = len(ticks)
        assert simulate(CRASH, seed=7).digest == expected
        assert len(ticks) == before, "the run itself let the loop turn"
        with pytest.raises(SimulationError):
            simulate(CRASH, seed=7, progress=_boom)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(ticks) > before
        task.cancel()

    asyncio.run(cell())


def _boom(done: int, total: int) -> None:
    raise SimulationError("boom")


def test_the_stores_are_named():
    assert experiment.STORES == ("model", "postgres")


# What a plan came to, and what is kept.


def test_faults_that_never_struck_are_told():
    struck = Crash(host="w1", when=At(5_000_000), restart_after_us=1)
    idle = (HandlerRaises(job=77), LockHeld(when=At(1), for_us=10, job=99))
    result = simulate(CRASH, seed=0, faults=(struck, *idle))
    assert result.never_struck == idle
    assert "never came about, of 3 faults: job 77's handler raises; an open transaction" in result.story()
    own = simulate(CRASH, seed=0)
    assert own.never_struck == ()
    assert "never came about" not in own.story()


def test_the_history_is_on_disk_before_a_check_reads_it(tmp_path, monkeypatch):
    def breaks(evidence, names=()):
        assert list(History.load(tmp_path / "kept" / "history.npz")) == list(evidence.history)
        raise ZeroDivisionError("in a check")

    monkeypatch.setitem(simulate.__globals__, "judge", breaks)
    with pytest.raises(ZeroDivisionError):
        simulate(CRASH, seed=0, keep=tmp_path / "kept")


def test_a_folder_that_cannot_be_made_is_refused_before_the_run(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidExperiment, match=r"file/kept cannot be made: Not a directory"):
        simulate(CRASH, seed=0, keep=tmp_path / "file" / "kept")
