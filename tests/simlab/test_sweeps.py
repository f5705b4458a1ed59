"""Sweeps: one row a seed, the same frame however the work is spread, a broken run is a finding, not a crash."""

import os
import subprocess
import sys
from pathlib import Path

import joblib
import pandas as pd
import pytest

from simlab import simulate
from simlab.checks import CHECKS, Verdict
from simlab.errors import InvalidExperiment, UnknownScenario
from simlab.faults import At, Crash
from simlab.marks import MARKS, count_marks
from simlab.sweeps import BROKE, SHOWN, judged, run_batches, summary, sweep, table, verdict_of

CRASH = "crash-after-execution"


def without_time(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop(columns="wall_s")


# The fixed budget for the real scheduler.


def test_the_real_scheduler_survives_whatever_two_hundred_seeds_invent():
    frame = sweep("mixed", seeds=range(200))
    wrong = frame[frame["verdict"] != "VALID"]
    assert wrong.empty, wrong[["seed", "failed_check", "says"]].to_string()
    assert frame.attrs["never"] == []
    assert verdict_of(frame) is Verdict.VALID


# The frame.


def test_a_row_says_what_a_run_of_that_seed_came_to():
    frame = sweep("mixed", seeds=[5, 3], variant="no-idempotency")
    assert list(frame["seed"]) == [5, 3]
    for row in frame.to_dict("records"):
        result = simulate("mixed", seed=row["seed"], variant="no-idempotency")
        assert row["digest"] == result.digest
        assert row["verdict"] == result.verdict.value
        assert row["jobs"] == len(result.table)
        assert row["executions"] == len(result.lateness)
        assert row["events"] == len(result.history)
        assert row["lateness_ms_max"] == pytest.approx(result.lateness["lateness_ms"].max())
        assert {check.name: row[check.name] for check in result.checks} == {
            check.name: check.verdict.value for check in result.checks
        }
        assert {mark: row[mark] for mark in MARKS} == dict(count_marks(result.history))


def test_the_columns_are_the_same_for_every_seed_and_in_a_fixed_order():
    frame = sweep(CRASH, seeds=range(3))
    head = list(frame.columns[: -len(CHECKS) - len(MARKS)])
    assert head == [
        "seed",
        "verdict",
        "failed_check",
        "says",
        "digest",
        "jobs",
        "executions",
        "lateness_ms_p50",
        "lateness_ms_p99",
        "lateness_ms_max",
        "events",
        "virtual_s",
        "wall_s",
    ]
    assert list(frame.columns[len(head) :]) == [*CHECKS, *MARKS]
    assert not frame.isna().to_numpy().any()


def test_a_mistake_is_told_with_the_check_that_fails_and_its_sentence():
    frame = sweep(CRASH, seeds=range(2), variant="no-idempotency")
    assert set(frame["verdict"]) == {"INVALID"}
    assert set(frame["failed_check"]) == {"one-effect"}
    assert frame["says"].str.contains("changed the world 2 times").all()
    assert verdict_of(frame) is Verdict.INVALID
    assert frame.attrs["verdicts"] == {"INVALID": 2}


def test_sizes_and_faults_reach_the_runs():
    frame = sweep(CRASH, seeds=[1], faults=[Crash(host="w1", when=At(1), restart_after_us=1)], n_jobs=3)
    assert list(frame["jobs"]) == [3]
    plan = [Crash(host="w1", when=At(1), restart_after_us=1)]
    assert frame["digest"][0] == simulate(CRASH, seed=1, faults=plan, n_jobs=3).digest


def test_marks_that_never_came_about_are_named():
    frame = sweep(CRASH, seeds=range(2), faults=(), n_jobs=1)
    assert "a host lost power" in frame.attrs["never"]
    assert "a host lost power" not in sweep(CRASH, seeds=range(2)).attrs["never"]


def test_the_verdict_is_the_worst_of_all_runs():
    frame = sweep(CRASH, seeds=range(3), n_jobs=1)
    assert verdict_of(frame) is Verdict.VALID
    frame.loc[1, "verdict"] = "UNKNOWN"
    assert verdict_of(frame) is Verdict.UNKNOWN
    frame.loc[2, "verdict"] = "INVALID"
    assert verdict_of(frame) is Verdict.INVALID


# Ways of spreading the work.


def test_the_frame_is_the_same_with_one_process_and_with_two(monkeypatch):
    # Otherwise so few runs would start no process.
    monkeypatch.setitem(sweep.__globals__, "WORTH_PROCESSES_S", 0.0)
    monkeypatch.setitem(sweep.__globals__, "FIRST_S", 0.0)
    two = sweep("mixed", seeds=range(12), jobs_parallel=2)
    one = sweep("mixed", seeds=range(12), jobs_parallel=1)
    pd.testing.assert_frame_equal(without_time(one), without_time(two))
    assert one.attrs["never"] == two.attrs["never"]


def test_few_and_short_runs_start_no_process(monkeypatch):
    def refuse(*args: object, **options: object) -> object:
        raise AssertionError("started processes")

    monkeypatch.setattr(joblib, "Parallel", refuse)
    assert len(sweep(CRASH, seeds=range(4), n_jobs=1, jobs_parallel=2)) == 4


def test_batches_come_back_in_their_order():
    calls = [joblib.delayed(divmod)(number, 3) for number in range(7)]
    expected = [divmod(number, 3) for number in range(7)]
    assert list(run_batches(calls, jobs_parallel=1)) == expected
    assert list(run_batches(calls, jobs_parallel=2)) == expected


def test_progress_counts_every_run_once():
    seen = []
    sweep(CRASH, seeds=range(9), n_jobs=1, progress=seen.append)
    assert sum(seen) == 9
    assert min(seen) >= 1


_ON_A_CLUSTER = """
import sys

import pandas as pd
from distributed import Client, LocalCluster
from simlab.sweeps import sweep


def has_run_there():
    return "simlab.sweeps" in sys.modules


if __name__ == "__main__":
    local = sweep("mixed", seeds=range(10), jobs_parallel=1)
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        there = sweep("mixed", seeds=range(10), dask_address=cluster.scheduler_address)
        with Client(cluster) as client:
            assert any(client.run(has_run_there).values()), "no worker has run anything"
    pd.testing.assert_frame_equal(local.drop(columns="wall_s"), there.drop(columns="wall_s"))
    print("the same frame,", len(there), "rows")
"""


def test_a_dask_cluster_gives_the_same_frame(tmp_path):
    pytest.importorskip("distributed", reason="needs the extra `cluster`")
    # A file with a main guard, for the cluster's processes import it.
    script = tmp_path / "on_a_cluster.py"
    script.write_text(_ON_A_CLUSTER)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "the same frame, 10 rows"


def test_a_cluster_that_is_not_there_is_told_in_one_line():
    pytest.importorskip("distributed", reason="needs the extra `cluster`")
    with pytest.raises(
        InvalidExperiment, match=r"no Dask scheduler at nonsense.*it looks like tcp://"
    ) as told:
        sweep(CRASH, seeds=[0], n_jobs=1, dask_address="nonsense://there")
    assert "\n" not in str(told.value)


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"seeds": []}, InvalidExperiment, "no seeds: give at least one"),
        ({"seeds": [0], "jobs_parallel": 0}, InvalidExperiment, "jobs_parallel=0: must be a whole number"),
        ({"seeds": [0], "jobs_parallel": 1.5}, InvalidExperiment, r"jobs_parallel=1\.5"),
        ({"seeds": [0], "jobs_parallel": True}, InvalidExperiment, "jobs_parallel=True"),
        ({"seeds": ["a"]}, InvalidExperiment, "seed='a': a seed is a whole number"),
        ({"seeds": [0], "variant": "worse"}, UnknownScenario, "unknown variant"),
        ({"seeds": [0], "n_cats": 1}, UnknownScenario, "unknown size"),
        (
            {"seeds": [0], "faults": [Crash(host="w9", when=At(1))]},
            InvalidExperiment,
            "no host 'w9'",
        ),
    ],
)
def test_what_cannot_be_swept_is_refused(arguments, error, says):
    with pytest.raises(error, match=says):
        sweep(CRASH, **arguments)


# Runs that break.


def test_an_exception_of_the_code_under_test_is_a_finding(monkeypatch):
    def breaks(scenario: str, *, seed: int, **options: object) -> object:
        if seed == 1:
            raise ZeroDivisionError("in the scheduler")
        return simulate(scenario, seed=seed, **options)

    monkeypatch.setitem(sweep.__globals__, "simulate", breaks)
    frame = sweep(CRASH, seeds=range(3), n_jobs=1)
    assert list(frame["verdict"]) == ["VALID", "INVALID", "VALID"]
    assert frame["failed_check"][1] == BROKE
    assert frame["says"][1] == "the run ended with ZeroDivisionError: in the scheduler"
    assert verdict_of(frame) is Verdict.INVALID


def test_judged_raises_what_the_laboratory_refuses_and_keeps_what_the_scheduler_raises():
    def refused() -> object:
        raise InvalidExperiment("no")

    def broken() -> object:
        raise RuntimeError("a bug")

    with pytest.raises(InvalidExperiment):
        judged(refused)
    result, checks = judged(broken)
    assert result is None
    assert [(check.name, check.verdict) for check in checks] == [(BROKE, Verdict.INVALID)]


# The summary.


def test_a_summary_names_the_first_seeds_that_failed_and_counts_them_all():
    seeds = range(SHOWN + 3)
    frame = sweep(CRASH, seeds=seeds, variant="no-idempotency")
    came = summary(frame)
    assert came["verdict"] == "INVALID"
    assert [one["seed"] for one in came["failed"]] == list(seeds)[:SHOWN]
    assert came["failed_in_all"] == len(seeds)
    told = table(frame)
    assert f"{len(seeds)} INVALID" in told
    assert "one-effect" in told
    assert "and 3 more seeds" in told


def test_a_summary_of_runs_in_which_nothing_was_executed_has_no_lateness():
    frame = sweep(CRASH, seeds=range(2))
    late = frame[["lateness_ms_p50", "lateness_ms_p99", "lateness_ms_max"]]
    assert summary(frame)["lateness_ms"]["max"] == round(frame["lateness_ms_max"].max(), 3)
    frame[late.columns] = float("nan")
    assert summary(frame)["lateness_ms"] == {"p50": None, "p99": None, "max": None}
    assert "lateness" not in table(frame)
