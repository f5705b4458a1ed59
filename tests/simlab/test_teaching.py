"""What the notebooks call: tables that count right, ledgers, excerpts, and what stands in for a missing server."""

import json
import sys
from uuid import UUID

import pandas as pd
import pytest
from matplotlib import pyplot as plt

from simlab import InvalidExperiment, PostgresUnavailable, simulate, teaching
from simlab.teaching import (
    NotRun,
    crosscheck_table,
    crosscheck_variants,
    database_view,
    digest_elsewhere,
    effects_by_ledger,
    excerpt,
    failed_checks,
    if_postgres,
    job_story,
    left_aligned,
    machine_table,
    pause_run,
    pause_sweep,
    plot_pause_sweep,
    real_stories,
    recorded_digest,
    slider,
    sql,
    tally,
)

CRASH = "crash-after-execution"


@pytest.fixture(scope="module")
def crash():
    return simulate(CRASH, seed=7)


def unrecorded(result):
    """Claims whose work was done and whose end the database learned only by giving up, a worker each."""
    frame = result.attempts.query("executed_s.notna() and end == 'swept'").drop_duplicates("host")
    return dict(zip(frame["host"], frame["job_id"], strict=True))


# Missing servers.


def test_what_needs_postgres_says_why_it_was_not_run():
    def refused(*, seed):
        raise PostgresUnavailable(f"no server <for> {seed}", mend="install one")

    missing = if_postgres(refused, seed=7)
    assert not missing
    assert "no server <for> 7" in repr(missing)
    assert "install one" in repr(missing)
    assert "&lt;for&gt;" in missing._repr_html_()


def test_what_needs_postgres_gives_its_result_and_its_other_errors():
    assert if_postgres(lambda n, *, m: n + m, 1, m=2) == 3
    with pytest.raises(ZeroDivisionError):
        if_postgres(lambda: 1 / 0)


def test_a_result_that_was_not_run_is_false():
    assert not NotRun("why")


def test_the_machine_is_a_table_with_a_mend_wherever_one_is_needed():
    table = machine_table()
    assert list(table.columns) == ["what", "verdict", "found", "mend"]
    assert "python" in set(table["what"])
    assert set(table["verdict"]) <= {"ok", "can do without", "MEND"}
    assert (table.loc[table["verdict"] == "MEND", "mend"] != "").all()


# Digests.


def test_another_interpreter_gives_the_same_digest(crash):
    assert digest_elsewhere(CRASH, seed=7, hash_seed=12345) == crash.digest


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({CRASH: {"seed": 7}}), json.dumps({CRASH: 7})])
def test_a_file_without_the_digest_is_refused_with_the_mend(tmp_path, text):
    file = tmp_path / "golden.json"
    file.write_text(text)
    with pytest.raises(InvalidExperiment, match=r"data/README\.md"):
        recorded_digest(file, CRASH)


def test_a_missing_file_is_refused_with_the_mend(tmp_path):
    with pytest.raises(InvalidExperiment, match=r"data/README\.md"):
        recorded_digest(tmp_path / "golden.json", CRASH)


# Tables.


def test_the_tally_counts_what_the_frames_say(crash):
    plain = simulate(CRASH, seed=7, variant="no-idempotency")
    table = tally({"idempotent": crash, "plain": plain})
    assert list(table.index) == ["idempotent", "plain"]
    for label, result in (("idempotent", crash), ("plain", plain)):
        row = table.loc[label]
        assert row["verdict"] == result.verdict.value
        assert row["jobs"] == len(result.jobs)
        assert row["executions"] == result.jobs["executions"].sum()
        assert row["effects"] == result.jobs["effects"].sum()
    assert table.loc["idempotent", "duplicates refused"] == table.loc["plain", "effects"] - 8
    assert table.loc["plain", "duplicates refused"] == 0
    assert table.loc["idempotent", "failed checks"] == ""
    assert table.loc["plain", "failed checks"] == "one-effect"


def test_the_tally_counts_refused_outcomes_and_not_refused_heartbeats(crash):
    naive = simulate(CRASH, seed=7, variant="unguarded-finish")
    table = tally({"guarded": crash, "unguarded": naive})
    assert list(table["stale outcomes refused"]) == [1, 0]
    assert (naive.events["kind"] == "rejected").any(), "its heartbeats are still refused"


def test_the_story_of_a_job_is_told_a_line_an_event(crash):
    jobs = unrecorded(crash)
    lines = job_story(crash, jobs["w1"]).splitlines()
    assert "enqueues" in lines[0]
    assert any("w1 loses power" in line for line in lines)
    assert sum("handler begins" in line for line in lines) == 2
    assert not any("handler begins" in line for line in job_story(crash, str(UUID(int=0))).splitlines())


def test_failed_checks_are_those_that_say_invalid(crash):
    assert failed_checks(crash) == []
    assert failed_checks(simulate(CRASH, seed=7, variant="no-idempotency")) == ["one-effect"]


def test_words_are_aligned_to_the_left_without_an_index():
    html = left_aligned(pd.DataFrame({"what": ["python"]}, index=["the index"])).to_html()
    assert "text-align: left" in html
    assert "python" in html
    assert "the index" not in html


@pytest.mark.parametrize("seed", range(10))
def test_the_database_sees_the_same_of_a_dead_worker_and_of_a_slow_one(seed):
    result = simulate(CRASH, seed=seed)
    jobs = unrecorded(result)
    view = database_view(result, jobs["w1"])
    assert view == database_view(result, jobs["w2"])
    assert view == ["enqueued", "claimed (token 1)", "started (token 1)", "swept (token 1)"]


# The pause.


def test_a_short_pause_is_not_noticed_and_a_long_one_is():
    frame = pause_sweep([0, 30, 120], seed=7)
    assert list(frame["executions"]) == [8, 8, frame["executions"].iloc[2]]
    assert frame["executions"].iloc[2] > 8
    assert (frame["effects_idempotent"] == 8).all()
    assert (frame["effects_plain"] == frame["executions"]).all()
    assert list(frame["lease_s"]) == [60.0] * 3


def test_no_pause_is_a_healthy_run():
    assert pause_run(0, seed=7).digest == simulate(CRASH, seed=7, faults=()).digest


def test_the_pause_is_drawn_on_the_axes_given_and_on_its_own():
    plt.switch_backend("Agg")
    frame = pause_sweep([0, 120], seed=7)
    _, ax = plt.subplots()
    assert plot_pause_sweep(frame, ax=ax) is ax
    drawn = plot_pause_sweep(frame)
    assert drawn is not ax
    assert "virtual s" in drawn.get_xlabel()
    assert len(drawn.get_legend().get_texts()) == 3
    plt.close("all")


def test_a_slider_calls_the_function_with_its_value():
    pytest.importorskip("ipywidgets")
    called = []

    def note(pause_s):
        called.append(pause_s)

    widget = slider(note, low=0, high=10, step=1, start=3, label="pause (s)")
    knob = widget.children[0]
    assert (knob.min, knob.max, knob.value, knob.description) == (0, 10, 3, "pause (s)")
    knob.value = 5  # As a reader would move it.
    assert called[-1] == 5


def test_without_ipywidgets_the_slider_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert "ipywidgets" in slider(print, low=0, high=1, step=1, start=0, label="")


# Ledgers.


@pytest.mark.parametrize(
    ("tokens", "plain", "fenced", "idempotent"),
    [
        ([], 0, 0, 0),
        ([1], 1, 1, 1),
        ([1, 1], 2, 2, 1),
        ([1, 2], 2, 2, 1),
        ([2, 1], 2, 1, 1),
        ([3, 1, 2], 3, 1, 1),
    ],
)
def test_a_ledger_of_each_kind(tokens, plain, fenced, idempotent):
    assert effects_by_ledger(tokens) == {"plain": plain, "fenced": fenced, "idempotent": idempotent}


# The proof.


@pytest.mark.postgres
def test_variants_are_cross_checked_on_one_server():
    checked = if_postgres(crosscheck_variants, CRASH, ["no-idempotency"], seed=7)
    if not checked:
        pytest.skip(checked.why)
    assert [check.digests_equal for check in checked] == [True]
    assert checked[0].real == ()
    assert real_stories(checked).empty
    assert list(crosscheck_table(checked)["digests_equal"]) == [True]


def test_a_missing_server_is_the_callers_to_handle(monkeypatch):
    def none():
        raise PostgresUnavailable("no server", mend="install one")

    monkeypatch.setattr(teaching, "throwaway_postgres", none)
    assert not if_postgres(crosscheck_variants, CRASH, [None], seed=7)


def test_the_tables_of_the_proof_pass_on_why_there_is_none():
    missing = NotRun("no server")
    assert crosscheck_table(missing) is missing
    assert real_stories(missing) is missing


# The source.


def test_an_excerpt_is_the_lines_from_one_to_another():
    assert excerpt("a\nb 1\nc\nb 2\nd", "b", "b 2") == "b 1\nc\nb 2"
    assert excerpt("a\nb", "b", "b") == "b"


@pytest.mark.parametrize(("first", "last"), [("x", "b"), ("b", "a")])
def test_an_excerpt_that_is_no_longer_there_is_refused(first, last):
    with pytest.raises(InvalidExperiment, match="has changed"):
        excerpt("a\nb", first, last)


def test_a_statement_can_be_read():
    assert "job.lease_token = asked.token" in sql("finish")
