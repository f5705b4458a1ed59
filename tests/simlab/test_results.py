"""Results: one line, safe HTML, tidy frames, a story, and a folder that cannot be passed off as another's."""

import html.parser
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from simlab import simulate
from simlab.checks import CheckResult, Verdict
from simlab.errors import InvalidExperiment
from simlab.results import Result

CRASH = "crash-after-execution"


@pytest.fixture(scope="module")
def healthy() -> Result:
    return simulate(CRASH, seed=7, n_jobs=3)


@pytest.fixture(scope="module")
def broken() -> Result:
    return simulate(CRASH, seed=7, variant="unguarded-finish")


def test_a_result_is_one_line_that_says_what_when_and_how_it_ended(healthy, broken):
    for result in (healthy, broken):
        text = repr(result)
        assert "\n" not in text
        for part in (
            CRASH,
            "seed=7",
            "on model",
            result.verdict.value,
            result.digest[:12],
            "jobs",
            "virtual s",
        ):
            assert part in text
    assert "variant" not in repr(healthy)
    assert "variant='unguarded-finish'" in repr(broken)


class Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.add(tag)


def test_html_escapes_whatever_came_from_outside(healthy):
    evil = "<script>alert('x')</script>"
    result = replace(
        healthy,
        scenario=evil,
        variant=evil,
        store=evil,
        checks=(CheckResult(name=evil, verdict=Verdict.INVALID, says=evil),),
    )
    tags = Tags()
    tags.feed(result._repr_html_())
    assert "script" not in tags.tags
    assert {"table", "code"} <= tags.tags
    assert result._repr_html_().count("&lt;script&gt;") == 5


def test_html_shows_every_check_and_its_verdict(broken):
    shown = broken._repr_html_()
    assert len(shown) < 20_000
    for check in broken.checks:
        assert check.name in shown
    assert "INVALID" in shown


def test_the_summary_is_json_and_has_what_a_command_prints(broken):
    data = json.loads(json.dumps(broken.summary()))
    for name in (
        "scenario",
        "seed",
        "variant",
        "store",
        "verdict",
        "digest",
        "checks",
        "jobs",
        "virtual_s",
        "wall_s",
    ):
        assert name in data
    assert data["checks"]["no-stale-write"] == "INVALID"
    assert data["problems"]["no-stale-write"]
    assert data["verdict"] == "INVALID"


# The story.


def test_the_story_of_a_healthy_run_is_its_one_line(healthy):
    assert healthy.story() == repr(healthy)


def test_the_story_of_a_failure_tells_the_checks_and_marks_the_events_they_found(broken, capsys):
    story = broken.story()
    first = next(check for check in broken.checks if check.verdict is Verdict.INVALID)
    assert f"INVALID {first.name}: {first.says}" in story
    marked = [line for line in story.splitlines() if line.lstrip().startswith(">")]
    assert len(marked) == len(first.offending)
    for line, index in zip(marked, first.offending, strict=True):
        event = broken.history.event(index)
        assert event.host in line
        assert f"{event.time_us / 1e6:.6f}" in line
    broken.show()
    assert capsys.readouterr().out == story + "\n"


# Frames.


def test_the_frames_have_one_row_an_event_a_job_a_claim_and_an_execution(healthy):
    kinds = healthy.events["kind"].value_counts()
    assert len(healthy.events) == len(healthy.history)
    assert len(healthy.jobs) == len(healthy.table) == 3
    assert len(healthy.attempts) == kinds["claimed"]
    assert len(healthy.lateness) == kinds["executing"]


def test_the_columns_are_these(healthy):
    assert list(healthy.jobs.columns)[:9] == [
        "job", "job_id", "task", "state", "due_s", "attempts", "executions", "effects", "lateness_s",
    ]  # fmt: skip
    assert list(healthy.attempts.columns)[:8] == [
        "job", "job_id", "token", "attempt", "host", "claimed_s", "lease_until_s", "executing_s",
    ]  # fmt: skip
    assert list(healthy.lateness.columns) == ["job", "attempt", "host", "due_s", "began_s", "lateness_ms"]


def test_the_frames_tell_the_crash(healthy):
    """Some jobs ran again and changed the world once; every claim but the last was swept."""
    again = healthy.jobs[healthy.jobs["executions"] >= 2]
    assert len(again) >= 1
    assert set(healthy.jobs["effects"]) == {1}
    assert set(healthy.jobs["state"]) == {"SUCCEEDED"}
    for _, job in again.iterrows():
        claims = healthy.attempts[healthy.attempts["job"] == job["job"]]
        assert list(claims["end"]) == ["swept"] * (len(claims) - 1) + ["succeeded"]
        assert list(claims["token"]) == list(range(1, len(claims) + 1))
        assert (claims["ended_s"] > claims["claimed_s"]).all()
        assert claims["executing_s"].notna().sum() == job["executions"]
        late = healthy.lateness[healthy.lateness["job"] == job["job"]]
        assert late["lateness_ms"].iloc[-1] > 30_000
        assert job["lateness_s"] == pytest.approx(late["lateness_ms"].iloc[0] / 1000)
    assert (healthy.lateness["lateness_ms"] >= 0).all()
    assert healthy.lateness["lateness_ms"].min() < 50


# Saving.


def test_a_saved_result_comes_back_equal(tmp_path, broken):
    folder = broken.save(tmp_path / "new" / "folder")
    loaded = Result.load(folder)
    assert loaded.digest == broken.digest
    assert repr(loaded) == repr(broken)
    assert loaded.story() == broken.story()
    assert loaded.checks == broken.checks
    assert loaded.faults == broken.faults
    assert loaded.table == broken.table
    assert loaded.effects == broken.effects
    for name in ("events", "jobs", "attempts", "lateness"):
        pd.testing.assert_frame_equal(getattr(loaded, name), getattr(broken, name))


def test_saving_twice_overwrites(tmp_path, healthy, broken):
    broken.save(tmp_path)
    healthy.save(tmp_path)
    assert Result.load(str(tmp_path)).digest == healthy.digest


def change(folder: Path, **fields: object) -> None:
    path = folder / "result.json"
    data = json.loads(path.read_text())
    for name, value in fields.items():
        if value is None:
            del data[name]
        else:
            data[name] = value
    path.write_text(json.dumps(data))


def cheat(folder: Path) -> None:
    table = json.loads((folder / "result.json").read_text())["table"]
    table[0]["state"] = "FAILED"
    change(folder, table=table)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: (folder / "result.json").unlink(), "holds no saved result"),
        (lambda folder: (folder / "result.json").write_text("{"), "holds no saved result"),
        (lambda folder: (folder / "result.json").write_bytes(b"\xff\xfe"), "holds no saved result"),
        (lambda folder: (folder / "result.json").write_text("[]"), "holds no saved result"),
        (lambda folder: (folder / "result.json").write_text('"hello"'), "holds no saved result"),
        (lambda folder: (folder / "history.npz").unlink(), "history.npz is not a saved history"),
        (lambda folder: (folder / "history.npz").write_bytes(b"PK"), "history.npz is not a saved history"),
        (lambda folder: change(folder, format=99), "was saved in format 99; this version reads format"),
        (lambda folder: change(folder, table=None), "holds no saved result"),
        (lambda folder: change(folder, verdict="SPLENDID"), "holds no saved result"),
        (lambda folder: change(folder, faults=[{"fault": "Meteor"}]), "unknown kind of fault 'Meteor'"),
        (lambda folder: change(folder, table=[{"job_id": "x"}]), "holds no saved result"),
        (lambda folder: change(folder, digest="0" * 64), "was changed: its digest is"),
        (lambda folder: change(folder, effects=[]), "was changed: its digest is"),
        (cheat, "was changed: its digest is"),
    ],
)  # fmt: skip
def test_a_tampered_or_foreign_folder_is_refused_in_one_line(tmp_path, healthy, spoil, says):
    healthy.save(tmp_path)
    spoil(tmp_path)
    with pytest.raises(InvalidExperiment, match=says) as told:
        Result.load(tmp_path)
    assert "\n" not in str(told.value)


def test_another_runs_history_in_the_folder_is_noticed(tmp_path, healthy, broken):
    healthy.save(tmp_path)
    broken.history.save(tmp_path / "history.npz")
    with pytest.raises(InvalidExperiment, match="was changed"):
        Result.load(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidExperiment, match="holds no saved result"):
        Result.load(tmp_path / "nowhere")
