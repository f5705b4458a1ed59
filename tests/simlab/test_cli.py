"""The laboratory's command line: what it prints where, what it ends with, and one line for a user's mistake."""

import json
from pathlib import Path

import pandas as pd
import pytest
import typer

from simlab import simulate
from simlab.checks import Verdict
from simlab.cli import main
from simlab.cli.common import cli
from simlab.faults import At, Crash, fault_to_dict
from simlab.replays import FORMAT, ExperimentFile, save_experiment

CRASH = "crash-after-execution"
COMMANDS = {
    "crosscheck",
    "demo",
    "doctor",
    "explore",
    "gallery",
    "list",
    "mutants",
    "replay",
    "run",
    "sweep",
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Whatever a command writes by default must not end up in the checkout."""
    monkeypatch.chdir(tmp_path)


def told(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys, *arguments: str) -> str:
    """Return the one line on stderr, of a call that ended with 2 and printed nothing."""
    code, out, err = told(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    return err


def test_every_command_says_what_it_is_for(capsys):
    commands = typer.main.get_command(cli).commands
    assert set(commands) >= COMMANDS
    for name in sorted(COMMANDS):
        code, out, err = told(capsys, name, "--help")
        assert (code, err) == (0, "")
        assert f"Usage: simlab {name}" in out
        assert commands[name].help


# run.


def test_run_saves_a_plan_that_replays_with_the_same_digest(capsys):
    code, out, _ = told(
        capsys, "run", CRASH, "--seed", "5", "--size", "n_jobs=3", "--save-plan", "a/my plan.json"
    )
    assert code == 0
    assert "replay it with: simlab replay 'a/my plan.json'" in out
    code, out, err = told(capsys, "replay", "a/my plan.json", "--json")
    assert (code, err) == (0, "")
    digest = json.loads(out)["digest"]
    assert digest == simulate(CRASH, seed=5, n_jobs=3).digest == ExperimentFile.load("a/my plan.json").digest


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "crash"], "unknown scenario 'crash'; there are: "),
        (["run", CRASH, "--variant", "worse"], "unknown variant"),
        (["run", CRASH, "--size", "n_jobs=many"], "--size n_jobs=many: write it as NAME=N"),
        (["run", CRASH, "--size", "n_cats=1"], "unknown size"),
        (["run", CRASH, "--size", "n_jobs=-1"], "n_jobs=-1: a size is a whole number of at least 1"),
        (["run", CRASH, "--store", "mysql"], "store='mysql': there are model and postgres"),
        (["run", CRASH, "--seed", "nan"], "Invalid value for '--seed'"),
        (["run", CRASH, "--save-plan", "."], "--save-plan .: Is a directory; name another file"),
        (["run"], "Missing argument"),
        (["ruin"], "No such command"),
    ],
)
def test_run_refuses_in_one_line(capsys, arguments, says):
    assert says in refused(capsys, *arguments)


# sweep.


def test_sweep_prints_a_summary_and_writes_one_row_a_seed(capsys):
    code, out, err = told(
        capsys, "sweep", CRASH, "--seeds", "3:7", "--size", "n_jobs=2", "--out", "deep/rows.csv"
    )
    assert (code, err) == (0, "")
    assert out.startswith(f"4 runs of {CRASH} in ")
    assert "a second): 4 VALID" in out
    assert "lateness: p50 " in out
    assert "never happened: the store went down" in out
    assert out.endswith("written: deep/rows.csv\n")
    rows = pd.read_csv("deep/rows.csv")
    assert list(rows["seed"]) == [3, 4, 5, 6]
    assert list(rows["digest"]) == [simulate(CRASH, seed=seed, n_jobs=2).digest for seed in range(3, 7)]


def test_sweep_ends_with_1_for_a_mistake_and_names_the_seeds(capsys):
    code, out, err = told(capsys, "sweep", CRASH, "--seeds", "0:2", "--variant", "no-idempotency", "--json")
    assert (code, err) == (1, "")
    came = json.loads(out)
    assert (came["verdict"], came["verdicts"], came["runs"]) == ("INVALID", {"INVALID": 2}, 2)
    assert [(one["seed"], one["failed_check"]) for one in came["failed"]] == [
        (0, "one-effect"),
        (1, "one-effect"),
    ]
    assert came["lateness_ms"]["max"] > 0


def test_sweep_ends_with_2_when_nothing_was_proved(capsys, monkeypatch):
    monkeypatch.setattr("simlab.sweeps.verdict_of", lambda frame: Verdict.UNKNOWN)
    code, _, _ = told(capsys, "sweep", CRASH, "--seeds", "0:1", "--size", "n_jobs=1")
    assert code == 2


def test_sweep_takes_small_sizes_where_it_is_told_to(capsys):
    code, out, _ = told(
        capsys, "sweep", "midnight-stampede", "--small", "--seeds", "0:1", "--out", "rows.csv"
    )
    assert code == 0
    assert out
    assert list(pd.read_csv("rows.csv")["jobs"]) == [300]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--seeds", "5"], "--seeds 5: write it as A:B"),
        (["--seeds", "5:5"], "--seeds 5:5: write it as A:B"),
        (["--seeds", "-1:5"], "--seeds -1:5"),
        (["--jobs-parallel", "0"], "jobs_parallel=0: must be a whole number of at least 1"),
        (["--variant", "worse"], "unknown variant"),
        (["--dask", "nonsense://there", "--seeds", "0:2"], "no Dask scheduler at nonsense://there: "),
        (["--out", "."], "--out .: Is a directory; name another file"),
    ],
)
def test_sweep_refuses_in_one_line(capsys, arguments, says):
    assert says in refused(capsys, "sweep", CRASH, *arguments)


def test_sweep_refuses_an_unknown_scenario(capsys):
    assert "unknown scenario 'crash'" in refused(capsys, "sweep", "crash", "--small")


# mutants.


def test_mutants_tells_who_caught_what_and_the_real_schedulers_verdict(capsys):
    code, out, err = told(
        capsys, "mutants", CRASH, "reply-lost-finish", "--seeds", "2", "--jobs-parallel", "1"
    )
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert ["mistake", "scenario", "caught", "by", "seed", "after"] in lines
    assert ["no-idempotency", CRASH, "one-effect", "0", "1", "seed"] in lines
    assert ["unguarded-finish", "reply-lost-finish", "no-stale-write", "0", "1", "seed"] in lines
    assert [CRASH, "20", "VALID"] in lines
    assert "every one was caught" in out


def test_mutants_ends_with_1_when_a_mistake_escapes(capsys):
    # One seed is not enough for what the seed must first invent.
    code, out, err = told(capsys, "mutants", "mixed", "--seeds", "1", "--jobs-parallel", "1", "--json")
    assert (code, err) == (1, "")
    came = json.loads(out)
    assert came["ok"] is False
    assert all(mistake["escaped"] for mistake in came["mistakes"])
    assert [proof["verdict"] for proof in came["real"]] == ["VALID"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["crash"], "unknown scenario 'crash'"),
        (["--seeds", "0"], "seeds=0: must be a whole number of at least 1"),
        (["--store", "mysql"], "store='mysql': there are model and postgres"),
    ],
)
def test_mutants_refuses_in_one_line(capsys, arguments, says):
    assert says in refused(capsys, "mutants", *arguments)


# explore.


def test_explore_tells_the_story_and_how_to_replay_it(capsys):
    code, out, err = told(
        capsys, "explore", CRASH, "--variant", "no-idempotency", "--budget", "2", "--out", "found"
    )
    assert (code, err) == (1, "")
    file = f"found/{CRASH}-no-idempotency-one-effect.json"
    assert f"runs of {CRASH} with the mistake no-idempotency in " in out
    assert "a second): FOUND" in out
    assert "fault: w1 loses power" in out
    assert "the outside world is CHANGED for it" in out
    assert f"replay it with: simlab replay {file}" in out
    assert "never happened: the store went down" in out

    code, out, err = told(capsys, "replay", file)
    assert (code, err) == (1, "")
    assert f"replayed bit for bit: the digest is the one in {file}" in out


def test_explore_ends_with_0_when_nothing_is_found(capsys):
    code, out, err = told(capsys, "explore", "--budget", "1s", "--seed", "3", "--json")
    assert (code, err) == (0, "")
    came = json.loads(out)
    assert (came["scenario"], came["verdict"], came["found"]) == ("mixed", "VALID", None)
    assert came["runs"] > 0
    assert came["never"]


@pytest.mark.parametrize(
    "text", ["", "0", "0s", "-1", "1h", "60 s", "s", "1e3", "nan", "inf", "\u0661s", "1.5.5"]
)
def test_explore_refuses_a_budget_that_is_none_in_one_line(capsys, text):
    said = refused(capsys, "explore", f"--budget={text}")
    assert "write it as 60s, 2m, or a number of seconds, more than 0" in said


@pytest.mark.parametrize(("text", "budget_s"), [("60s", 60.0), ("2m", 120.0), ("1.5", 1.5), ("0.5m", 30.0)])
def test_explore_reads_budgets(capsys, monkeypatch, text, budget_s):
    asked = {}

    def explore(scenario: str, **arguments: object) -> None:
        asked.update(arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr("simlab.exploration.explore", explore)
    assert told(capsys, "explore", "--budget", text)[0] == 130
    assert asked["budget_s"] == budget_s


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["crash"], "unknown scenario 'crash'"),
        (["--variant", "worse"], "unknown variant of mixed 'worse'"),
        (["--seed", "-1"], "seed=-1: must be a whole number of at least 0"),
    ],
)
def test_explore_refuses_in_one_line(capsys, arguments, says):
    assert says in refused(capsys, "explore", *arguments)


# replay.


def plan(**fields) -> str:
    Path("plan.json").write_text(json.dumps({"format": FORMAT, "scenario": CRASH, "seed": 3, **fields}))
    return "plan.json"


STRUCK = fault_to_dict(Crash(host="w1", when=At(5_000_000), restart_after_us=1_000_000))


def test_replay_runs_a_plan_written_by_hand_and_saves_what_came_of_it(capsys):
    code, out, err = told(capsys, "replay", plan(faults=[STRUCK]), "--out", "came")
    assert (code, err) == (0, "")
    assert "VALID" in out
    assert "bit for bit" not in out
    saved = json.loads(Path("came/result.json").read_text())
    assert saved["faults"] == [STRUCK]
    assert (
        saved["digest"]
        == simulate(
            CRASH, seed=3, faults=[Crash(host="w1", when=At(5_000_000), restart_after_us=1_000_000)]
        ).digest
    )


def test_replay_names_the_first_event_that_differs(capsys):
    file = save_experiment(simulate(CRASH, seed=3), "run.json")
    data = json.loads(file.read_text())
    file.write_text(json.dumps({**data, "faults": [STRUCK]}))
    said = refused(capsys, "replay", "run.json")
    assert said.startswith("error: run.json does not replay: event ")
    assert " was '" in said
    assert " and is '" in said


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"faults": [{**STRUCK, "host": "w9"}]}, "no host 'w9'; there are w1, w2, client"),
        ({"faults": [{**STRUCK, "when": {"when": "Reached", "failpoint": "nap"}}]}, "no failpoint 'nap'"),
        ({"format": 2}, "is of format 2; this version reads format 1"),
        ({"faults": [{**STRUCK, "restart_after_us": -1}]}, "restart_after_us=-1: must be a whole number"),
        ({"faults": [{**STRUCK, "restart_after_us": float("nan")}]}, "restart_after_us=nan"),
        ({"faults": [{**STRUCK, "hots": 1}]}, "Crash has no hots; it has "),
        ({"fautls": []}, "an experiment has no fautls; it has "),
        ({"scenario": "crash"}, "unknown scenario 'crash'"),
    ],
)
def test_replay_refuses_a_plan_that_cannot_be(capsys, fields, says):
    said = refused(capsys, "replay", plan(**fields))
    assert said.startswith("error: plan.json")
    assert says in said


def test_replay_refuses_what_is_no_file_and_no_json(capsys, tmp_path):
    assert "none.json cannot be read as an experiment file" in refused(capsys, "replay", "none.json")
    (tmp_path / "text.json").write_text("once upon a time")
    assert "text.json cannot be read as an experiment file" in refused(capsys, "replay", "text.json")


def test_replay_refuses_a_store_there_is_not(capsys):
    assert "store='mysql': there are model and postgres" in refused(
        capsys, "replay", plan(), "--store", "mysql"
    )


@pytest.mark.postgres
def test_replay_on_postgres_gives_the_files_digest(capsys, postgres_server, monkeypatch):
    monkeypatch.setenv("SIMLAB_DSN", postgres_server.dsn)
    save_experiment(simulate(CRASH, seed=3, faults=[], n_jobs=2), "run.json")
    code, out, _ = told(capsys, "replay", "run.json", "--store", "postgres", "--postgres", "dsn", "--json")
    assert code == 0
    came = json.loads(out)
    assert came["store"] == "postgres"
    assert came["digest"] == ExperimentFile.load("run.json").digest
