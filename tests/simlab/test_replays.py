"""Experiment files: written, read back, replayed bit for bit; and everything in them that cannot be is refused."""

import dataclasses
import json

import pytest

from simlab import simulate
from simlab.checks import Verdict
from simlab.errors import InvalidExperiment, ReplayDiffers
from simlab.faults import FAULTS, At, Crash, Reached, ReplyLost, fault_to_dict
from simlab.replays import FORMAT, ExperimentFile, _difference, replay, save_experiment, save_plan
from simlab.scenarios import find_scenario
from simlab.story import tell_job
from simlab.workloads import PlannedJob, PlannedStop, Workload

CRASH = "crash-after-execution"
PLAN = {"format": FORMAT, "scenario": CRASH, "seed": 3}


def written(tmp_path, **fields):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({**PLAN, **fields}))
    return file


def changed(file, **fields):
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    return file


# Bit for bit.


@pytest.mark.parametrize("variant", [None, "no-idempotency"])
@pytest.mark.parametrize("seed", [0, 6, 8])
def test_a_saved_run_of_what_the_seed_invents_replays_bit_for_bit(tmp_path, seed, variant):
    first = simulate("mixed", seed=seed, variant=variant)
    second = replay(save_experiment(first, tmp_path / "deep" / "run.json"))
    assert second.digest == first.digest
    assert list(second.history) == list(first.history)
    assert second.checks == first.checks
    assert (second.faults, second.decisions, second.workload) == (
        first.faults,
        first.decisions,
        first.workload,
    )


def test_faults_sizes_orders_and_the_variant_are_kept(tmp_path):
    plan = [
        Crash(host="w1", when=Reached("after_execute", 2), restart_after_us=5),
        ReplyLost(host="w2", verb="claim"),
    ]
    first = simulate(CRASH, seed=5, variant="unguarded-finish", faults=plan, decisions=[1, 0, 2], n_jobs=3)
    file = ExperimentFile.load(first.save_experiment(tmp_path / "run.json"))
    assert (file.scenario, file.seed, file.variant, file.store) == (CRASH, 5, "unguarded-finish", "model")
    assert file.faults == tuple(plan)
    assert file.decisions == (1, 0, 2)
    assert file.sizes["n_jobs"] == 3
    assert file.digest == first.digest
    assert file.verdict is first.verdict
    assert list(file.history) == list(first.history)


def test_a_plan_written_by_hand_needs_the_format_the_scenario_and_the_seed(tmp_path):
    assert replay(written(tmp_path)).digest == simulate(CRASH, seed=3).digest
    healthy = replay(written(tmp_path, faults=[]))
    assert healthy.faults == ()
    assert healthy.digest == simulate(CRASH, seed=3, faults=()).digest


@pytest.mark.postgres
def test_a_file_of_the_model_replays_on_postgres_with_the_same_digest(tmp_path, postgres_server):
    file = save_experiment(simulate(CRASH, seed=3), tmp_path / "run.json")
    there = replay(file, store="postgres", server=postgres_server)
    assert there.store == "postgres"
    assert there.digest == ExperimentFile.load(file).digest


# What comes out differently.


def saved(tmp_path, **arguments):
    return save_experiment(simulate(CRASH, seed=3, **arguments), tmp_path / "run.json")


def test_another_digest_names_the_first_event_that_differs(tmp_path):
    file = saved(tmp_path)
    # As if the code had changed since: the same file, and a fault the run of the time did not have.
    crash = fault_to_dict(Crash(host="w1", when=At(5_000_000), restart_after_us=1_000_000))
    changed(file, faults=[crash])
    now = replay(written(tmp_path, faults=[crash]))
    then = simulate(CRASH, seed=3)
    pairs = zip(then.history, now.history, strict=False)
    position = next(at for at, (before, after) in enumerate(pairs) if before != after)
    with pytest.raises(ReplayDiffers) as told:
        replay(file)
    said = str(told.value)
    event = list(now.history)[position]
    assert said.startswith(f"{file} does not replay: event {position} was ")
    assert f"and is '{event.kind}'" in said
    assert f"at {event.time_us / 1e6:.6f} s" in said
    assert "\n" not in said
    assert told.value.exit_code == 2


def test_an_event_that_is_there_no_more_is_told_as_one(tmp_path):
    # The file says a longer history than there is now: all of it, and one event more.
    result = simulate(CRASH, seed=3, n_jobs=1)
    events = list(result.history)
    told = _difference(
        dataclasses.replace(ExperimentFile.load(saved(tmp_path)), history=[*events, events[-1]]), result
    )
    assert told.startswith(f"event {len(events)} was '{events[-1].kind}'")
    assert told.endswith("and is not there")


def test_a_digest_without_a_history_is_compared_all_the_same(tmp_path):
    with pytest.raises(ReplayDiffers, match=r"its digest is .*, not abc; the file holds no history"):
        replay(written(tmp_path, digest="abc"))


def test_the_same_history_judged_differently_is_told(tmp_path):
    file = changed(saved(tmp_path), verdict="INVALID")
    with pytest.raises(ReplayDiffers, match="was judged INVALID then and VALID now"):
        replay(file)


def test_a_file_of_another_version_of_the_package_says_so_only_when_it_differs(tmp_path):
    file = changed(saved(tmp_path), package="0.0.1")
    assert replay(file).verdict is Verdict.VALID
    changed(file, digest="abc")
    with pytest.raises(ReplayDiffers, match=r"written by version 0\.0\.1"):
        replay(file)


# What is refused.

CRASHES = {"fault": "Crash", "host": "w1", "when": {"when": "At", "at_us": 1}, "restart_after_us": 1}
NAN = float("nan")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"format": 2}, r"is of format 2; this version reads format 1: run and save the experiment again"),
        ({"format": None}, "is of format None"),
        ({"scenario": None}, "scenario must be given"),
        ({"seed": None, "scenario": None}, "scenario and seed must be given"),
        ({"scenario": "crash"}, "unknown scenario 'crash'"),
        ({"variant": "worse"}, "unknown variant of crash-after-execution 'worse'"),
        ({"sizes": {"n_cats": 1}}, "unknown size of crash-after-execution 'n_cats'"),
        ({"sizes": {"n_jobs": 0}}, "n_jobs=0: a size is a whole number of at least 1"),
        ({"seed": "3"}, "seed='3': must be a whole number"),
        ({"seed": True}, "seed=True: must be a whole number"),
        ({"seed": NAN}, "seed=nan: must be a whole number"),
        ({"store": "mysql"}, "store='mysql': there are model and postgres"),
        ({"fautls": []}, "an experiment has no fautls; it has format, "),
        ({"faults": {}}, "faults={}: must be a list"),
        ({"faults": ["Crash"]}, "a fault must be an object, not 'Crash'"),
        ({"faults": [{"fault": "Crush"}]}, "unknown kind of fault 'Crush'; there are Crash, "),
        ({"faults": [{"fault": "Crash", "host": "w1"}]}, "Crash: .*missing"),
        ({"faults": [{**CRASHES, "hots": "w1"}]}, "Crash has no hots; it has "),
        ({"faults": [{**CRASHES, "host": "w9"}]}, "no host 'w9'; there are w1, w2, client"),
        ({"faults": [{**CRASHES, "restart_after_us": -1}]}, "restart_after_us=-1: must be a whole number"),
        ({"faults": [{**CRASHES, "restart_after_us": NAN}]}, "restart_after_us=nan: must be a whole number"),
        ({"faults": [{**CRASHES, "restart_after_us": 1.5}]}, r"restart_after_us=1\.5"),
        ({"faults": [{**CRASHES, "when": {"when": "At", "at_us": NAN}}]}, "at_us=nan"),
        (
            {"faults": [{**CRASHES, "when": {"when": "Reached", "failpoint": "nap"}}]},
            "no failpoint 'nap'; there are ",
        ),
        ({"faults": [{**CRASHES, "when": 5}]}, "when=5: must be At or Reached"),
        ({"decisions": [0, -1]}, "decision -1: must be a whole number of at least 0"),
        ({"decisions": [NAN]}, "decision nan"),
        ({"workload": {}}, "has a load of its own; only mixed takes a workload"),
        ({"scenario": "mixed", "workload": {"jobs": []}}, "no jobs; it needs at least one"),
        ({"scenario": "mixed", "workload": {"jobs": 3}}, "jobs=3: must be a list"),
        (
            {"scenario": "mixed", "workload": {"jobs": [{"at": 1}]}},
            "a job of the workload has no at; it has ",
        ),
        ({"scenario": "mixed", "workload": {"jobs": [{"delay_us": -1}]}}, "delay_us=-1"),
        ({"scenario": "mixed", "workload": {"stops": [{}]}}, "a stop of the workload: .*missing"),
        ({"scenario": "mixed", "workload": {"stops": [{"worker": 2}]}}, "there are 1 workers"),
        ({"scenario": "mixed", "workload": {"n_workers": 0}}, "n_workers=0"),
        ({"verdict": "GOOD"}, "verdict='GOOD': there are VALID"),
        ({"history": "???"}, "history: "),
        ({"history": "AAAA"}, "its history cannot be read"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line_that_names_the_file(tmp_path, fields, says):
    file = written(tmp_path, **fields)
    with pytest.raises(InvalidExperiment, match=says) as told:
        replay(file)
    assert str(told.value).startswith(str(file))
    assert "\n" not in str(told.value)
    assert told.value.exit_code == 2


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "null", "\x00", '{"format": 1} trailing', "[" * 100_000]
)
def test_what_is_no_json_object_is_refused(tmp_path, text):
    file = tmp_path / "plan.json"
    file.write_text(text)
    with pytest.raises(InvalidExperiment, match="experiment file") as told:
        replay(file)
    assert "\n" not in str(told.value)


def test_bytes_that_are_no_text_a_folder_and_a_missing_file_are_refused(tmp_path):
    file = tmp_path / "plan.json"
    file.write_bytes(b"\xff\xfe\x00")
    for path in (file, tmp_path, tmp_path / "none.json"):
        with pytest.raises(InvalidExperiment, match="cannot be read as an experiment file"):
            ExperimentFile.load(path)


def test_a_file_that_cannot_be_written_is_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "plan.json"):
        with pytest.raises(InvalidExperiment, match=r"cannot be written: .*; name another file"):
            save_plan(path, scenario=CRASH, seed=1)


# Workloads.


def test_a_workload_is_kept_whole(tmp_path):
    workload = Workload(
        jobs=(
            PlannedJob(at_us=1, delay_us=2, service_us=3, again_us=5, other_us=6, cancel_us=7, replay_us=8),
            PlannedJob(keyed=False, max_age_us=9, max_attempts=4),
        ),
        n_workers=2,
        concurrency=3,
        prefetch=0,
        latency_us=4,
        jitter_us=5,
        stops=(PlannedStop(worker=2, at_us=10, replace_after_us=0),),
    )
    file = save_plan(tmp_path / "plan.json", scenario="mixed", seed=1, workload=workload)
    assert ExperimentFile.load(file).workload == workload
    assert Workload.from_dict(workload.to_dict()) == workload


def test_another_request_under_a_taken_key_is_refused_and_changes_nothing():
    workload = Workload(jobs=(PlannedJob(other_us=2_000_000),))
    result = simulate("mixed", seed=1, workload=workload, faults=[])
    first, other = (event.detail for event in result.history if event.kind == "enqueued")
    assert first.startswith("work-")
    assert other.startswith("conflict")
    assert [row.state.value for row in result.table] == ["SUCCEEDED"]
    assert result.verdict is Verdict.VALID


def test_a_worker_that_is_asked_to_stop_drains_and_another_takes_its_place():
    long = PlannedJob(service_us=40_000_000)
    workload = Workload(
        jobs=(long,), stops=(PlannedStop(worker=1, at_us=5_000_000, replace_after_us=2_000_000),)
    )
    result = simulate("mixed", seed=1, workload=workload, faults=[])
    told = [
        (event.kind, event.incarnation, event.detail)
        for event in result.history
        if event.kind in {"stopping", "aborted", "executing", "executed"}
    ]
    # What its drain interrupts is told, is tried again, and ends on the machine's next life.
    assert told == [
        ("executing", 1, ""),
        ("stopping", 1, ""),
        ("aborted", 1, "drain"),
        ("executing", 2, ""),
        ("executed", 2, "succeeded"),
    ]
    assert "its drain has run out of time" in "\n".join(tell_job(result.history, result.table[0].job_id))
    assert result.verdict is Verdict.VALID


def test_a_key_can_be_taken_only_where_there_is_one():
    with pytest.raises(InvalidExperiment, match="only a job with a key"):
        PlannedJob(keyed=False, other_us=1)


def test_every_kind_of_fault_can_be_drawn_for_the_mixed_scenario():
    mixed = find_scenario("mixed")
    plans = [mixed.draw(seed, mixed.sizes).faults for seed in range(100)]
    assert {type(fault).__name__ for plan in plans for fault in plan} == set(FAULTS)
