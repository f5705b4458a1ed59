"""Pictures: a tidy frame in, Axes out, nothing left behind, and bounded however large the run."""

from __future__ import annotations

import base64
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simlab.experiment import simulate
from simlab.history import History
from simlab.plots import (
    MAX_BARS,
    MAX_MARKS,
    blank_axes,
    plot_lateness,
    plot_side_by_side,
    plot_states,
    plot_timeline,
    timeline_size,
)
from simlab.plots.claims import Lanes, claims_of
from simlab.plots.time_axis import TimeAxis
from simlab.results import Result


@pytest.fixture(scope="module", autouse=True)
def _no_display() -> None:
    mpl.use("Agg")


@pytest.fixture(scope="module")
def real() -> Result:
    return simulate("crash-after-execution", seed=7)


@pytest.fixture(scope="module")
def naive() -> Result:
    return simulate("crash-after-execution", seed=7, variant="no-idempotency")


@pytest.fixture(scope="module")
def large() -> Result:
    return simulate("crash-after-execution", seed=1, n_jobs=1500, n_workers=4, variant="no-idempotency")


@pytest.fixture(scope="module")
def empty(real: Result) -> Result:
    return replace(real, history=History(), table=(), effects=())


def _texts(axes: Axes) -> str:
    return "\n".join(text.get_text() for text in axes.texts)


def _legend(axes: Axes) -> set[str]:
    legend = axes.get_legend()
    assert legend is not None
    return {text.get_text() for text in legend.get_texts()}


def _marks(axes: Axes) -> int:
    points = sum(len(np.atleast_1d(line.get_xdata())) for line in axes.get_lines())
    bands = sum(len(path.vertices) for band in axes.collections for path in band.get_paths())
    return points + bands + len(axes.patches) + len(axes.texts)


def test_the_axes_given_are_drawn_on_and_returned(real: Result) -> None:
    for draw in (
        lambda ax: plot_timeline(real, ax=ax),
        lambda ax: plot_states(real, ax=ax),
        lambda ax: plot_lateness(real.lateness, ax=ax),
    ):
        ax = Figure().subplots()
        assert draw(ax) is ax
        assert ax.has_data()


def test_nothing_stays_in_rcparams_or_on_pyplots_list(real: Result, naive: Result) -> None:
    before = mpl.rcParams.copy()
    real.plot_timeline()
    real.plot_lateness()
    plot_states(real)
    plot_side_by_side(real, naive)
    blank_axes(*timeline_size(real))
    assert mpl.rcParams == before
    assert plt.get_fignums() == []


def test_a_figure_whose_drawing_fails_is_not_left_on_pyplots_list() -> None:
    with pytest.raises(KeyError):
        plot_lateness(pd.DataFrame({"wrong": [1.0]}))
    assert plt.get_fignums() == []


def test_the_timeline_names_hosts_jobs_and_the_verdict_in_words(real: Result) -> None:
    axes = real.plot_timeline()
    labels = [tick.get_text() for tick in axes.get_yticklabels()]
    assert labels == ["w1", "w2", "the world"]
    assert "VALID" in axes.get_title(loc="left")
    assert axes.get_xlabel() == "virtual time [s]"
    for job in real.attempts["job"].unique():
        assert f"{job[:4]} t" in _texts(axes)


def test_a_second_change_of_the_world_is_told_in_words(real: Result, naive: Result) -> None:
    axes = naive.plot_timeline()
    assert "2nd effect: c184, d030" in _texts(axes)
    assert "the same job changed it again" in _legend(axes)
    assert "2nd effect" not in _texts(real.plot_timeline())


def test_what_a_failed_check_found_is_named(real: Result) -> None:
    axes = simulate("crash-after-execution", seed=7, variant="unguarded-finish").plot_timeline()
    assert "no-stale-write" in _texts(axes)
    assert "no-stale-write" in axes.get_title(loc="left")
    assert "what a failed check found" in _legend(axes)
    assert "what a failed check found" not in _legend(real.plot_timeline())


def test_the_legend_has_what_the_picture_has(real: Result) -> None:
    labels = _legend(real.plot_timeline())
    assert {"power lost", "stands still", "write refused", "second change refused"} <= labels
    healthy = simulate("crash-after-execution", seed=7, faults=()).plot_timeline()
    assert "world changed" in _legend(healthy)
    assert not {"power lost", "down", "write refused", "second change refused"} & _legend(healthy)


def test_a_lease_is_drawn_to_its_end_though_its_worker_is_dead(real: Result) -> None:
    lost = real.attempts[real.attempts["end"] == "swept"]
    ends = {round(bar.get_x() + bar.get_width(), 6) for bar in real.plot_timeline().patches}
    assert not lost.empty
    assert set(lost["lease_until_s"].round(6)) <= ends


def test_a_handler_is_drawn_no_longer_than_its_host_had_power(real: Result) -> None:
    events = real.events
    crash = events[(events["kind"] == "fault") & (events["detail"] == "crash")].iloc[0]
    running = [
        claim
        for claim in claims_of(real)
        if claim.host == crash["host"] and claim.began_s is not None and claim.began_s < crash["time_s"]
    ]
    assert running
    assert all(claim.stopped_s is not None and claim.stopped_s <= crash["time_s"] for claim in running)


def test_overlapping_claims_of_a_host_have_rows_of_their_own(naive: Result) -> None:
    claims = claims_of(naive)
    lanes = Lanes({claim.host for claim in claims}, claims)
    for one in claims:
        for other in claims:
            if one is not other and one.claimed_s <= other.claimed_s < one.free_s:
                assert lanes.row_of(one) != lanes.row_of(other)


def test_a_token_that_is_given_twice_names_two_claims_by_host_and_time() -> None:
    result = simulate("dead-letter-replay", seed=0, variant="replay-resets-token")
    twice = result.attempts[result.attempts.duplicated(["job_id", "token"], keep=False)]
    assert len(twice) == 4
    claims = claims_of(result)
    lanes = Lanes({claim.host for claim in claims}, claims)
    job_id = twice["job_id"].iloc[0]
    mine, theirs = (claim for claim in claims if claim.job_id == job_id)
    assert (mine.host, theirs.host) == ("w1", "w2")
    assert lanes.row(mine.job_id, 1, "w2", at_s=theirs.claimed_s - 1) == lanes.row_of(mine)
    assert lanes.row(mine.job_id, 1, "w2", at_s=theirs.claimed_s + 1) == lanes.row_of(theirs)
    assert lanes.row(mine.job_id, 1, "w1", at_s=theirs.claimed_s + 1) == lanes.row_of(mine)
    assert lanes.row(mine.job_id, 2, "w1", at_s=theirs.claimed_s) is None


def test_hosts_are_in_the_order_of_their_numbers() -> None:
    assert list(Lanes(["w10", "w2", "a"], []).spans) == ["a", "w2", "w10"]


def test_quiet_stretches_are_squeezed_and_marked(real: Result) -> None:
    axis = TimeAxis.of([real.events])
    assert axis.quiet
    busy = float(axis.at(62.0) - axis.at(61.0))
    assert busy > 2 / axis.end_s, "a busy second takes more room than on a plain axis"
    times_s = np.linspace(-10, 120, 500)
    assert (np.diff(axis.at(times_s)) > 0).all()
    assert axis.time_s(axis.at(times_s)) == pytest.approx(times_s)
    assert _texts(real.plot_timeline()).count("//") == len(axis.quiet)
    assert "quiet stretch, squeezed" in _legend(real.plot_timeline())


def test_a_run_that_is_busy_throughout_has_a_plain_axis(large: Result) -> None:
    assert TimeAxis.of([large.events]).quiet == ()
    assert plot_timeline(large).get_xscale() == "linear"


def test_a_large_run_is_drawn_with_bounded_marks_that_keep_faults_and_violations(large: Result) -> None:
    assert len(large.attempts) > MAX_BARS
    axes = large.plot_timeline()
    assert _marks(axes) < MAX_MARKS
    assert "at once" in _texts(axes)
    assert "2nd effect" in _texts(axes)
    assert {"power lost", "write refused", "the same job changed it again"} <= _legend(axes)
    for other in (plot_states(large), plot_lateness(large.lateness)):
        assert _marks(other) < MAX_MARKS


def test_an_empty_run_says_so(empty: Result) -> None:
    assert "no job was ever claimed" in _texts(plot_timeline(empty))
    assert "no job was ever enqueued" in _texts(plot_states(empty))
    assert "nothing was executed" in _texts(plot_lateness(empty.lateness))
    assert len(plot_side_by_side(empty, empty).axes) == 2


def test_two_distributions_lie_over_each_other(real: Result, naive: Result) -> None:
    axes = plot_lateness(real.lateness, label="real")
    first = len(axes.get_lines())
    plot_lateness(naive.lateness, ax=axes, label="naive")
    colours = {line.get_color() for line in axes.get_lines()}
    assert len(axes.get_lines()) == 2 * first
    assert len(colours) == 2
    plot_lateness(naive.lateness.iloc[:0], ax=axes, label="nothing")
    assert "nothing was executed" not in _texts(axes)


def test_first_attempts_and_reruns_differ_in_their_dashes_and_say_how_many(real: Result) -> None:
    axes = plot_lateness(real.lateness)
    curves = {
        line.get_label(): line.get_linestyle() for line in axes.get_lines() if "p50" in str(line.get_label())
    }
    assert sorted(curves.values()) == ["-", "--"]
    assert any(str(label).startswith("first attempts (4)") for label in curves)
    assert "p50" in _texts(axes)
    assert "p99" in _texts(axes)


@pytest.mark.parametrize(
    ("late_ms", "scale"),
    [
        ([2.0, 3.0, 4.0], "linear"),
        ([1.0, 50.0, 5e4], "log"),
        ([0.0, 1.0, 5e4], "symlog"),
        ([-5.0, 1.0, 5e4], "symlog"),
    ],
)
def test_the_scale_suits_the_range(late_ms: list[float], scale: str) -> None:
    frame = pd.DataFrame({"lateness_ms": late_ms, "attempt": [1] * len(late_ms)})
    axes = plot_lateness(frame)
    assert axes.get_xscale() == scale
    low, high = axes.get_xlim()
    assert low <= min(late_ms)
    assert max(late_ms) <= high


def test_executions_that_were_all_equally_late_can_be_drawn() -> None:
    for late_ms in (0.0, 3.0):
        frame = pd.DataFrame({"lateness_ms": [late_ms] * 3, "attempt": [1] * 3})
        plot_lateness(frame).figure.savefig(BytesIO())


def test_states_add_up_to_the_jobs_enqueued(real: Result) -> None:
    axes = plot_states(real)
    top = max(float(path.vertices[:, 1].max()) for band in axes.collections for path in band.get_paths())
    assert top == len(real.table)


def test_two_runs_share_one_time_axis(real: Result, naive: Result) -> None:
    figure = plot_side_by_side(real, naive)
    above, below = figure.axes
    assert above.get_xlim() == below.get_xlim()
    assert "the real scheduler: VALID" in above.get_title(loc="left")
    assert "no-idempotency: INVALID" in below.get_title(loc="left")
    (legend,) = figure.legends
    says = {text.get_text() for text in legend.get_texts()}
    assert {"second change refused", "the same job changed it again"} <= says


@pytest.mark.parametrize(
    "cell", ["result.plot_timeline()", "axes = result.plot_timeline()", "plot_side_by_side(result, result)"]
)
def test_a_notebook_shows_a_picture_once(cell: str, tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    new = nbformat.v4
    setup = (
        "from simlab.experiment import simulate\nfrom simlab.plots import plot_side_by_side\n"
        "result = simulate('crash-after-execution', seed=7)"
    )
    sources = [setup, cell, "import matplotlib.pyplot as plt\nprint(plt.get_fignums())"]
    notebook = new.new_notebook(cells=[new.new_code_cell(source) for source in sources])
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute(cwd=str(Path.cwd()))
    shown = [
        output["data"]["image/png"]
        for output in notebook.cells[1].outputs
        if "image/png" in output.get("data", {})
    ]
    assert len(shown) == 1
    assert len(base64.b64decode(shown[0])) > 10_000
    assert notebook.cells[2].outputs[0]["text"].strip() == "[]"
