"""Pictures: a tidy frame in, Axes out, nothing left behind, and bounded however large the run."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from simlab.experiment import simulate
from simlab.plots import MAX_BARS, MAX_MARKS, plot_lateness, plot_side_by_side, plot_states, plot_timeline
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


def _texts(axes: mpl.axes.Axes) -> str:
    return "\n".join(text.get_text() for text in axes.texts)


def test_the_axes_given_are_drawn_on_and_returned(real: Result) -> None:
    for draw in (
        lambda ax: plot_timeline(real, ax=ax),
        lambda ax: plot_states(real, ax=ax),
        lambda ax: plot_lateness(real.lateness, ax=ax),
    ):
        figure, ax = plt.subplots()
        assert draw(ax) is ax
        assert ax.has_data()
        plt.close(figure)


def test_nothing_stays_in_rcparams_or_on_pyplots_list(real: Result, naive: Result) -> None:
    before = mpl.rcParams.copy()
    real.plot_timeline()
    real.plot_lateness()
    plot_states(real)
    plot_side_by_side(real, naive)
    assert mpl.rcParams == before
    assert plt.get_fignums() == []


def test_the_timeline_names_hosts_jobs_and_the_verdict_in_words(real: Result) -> None:
    axes = real.plot_timeline()
    labels = [tick.get_text() for tick in axes.get_yticklabels()]
    assert labels == ["w1", "w2", "the world"]
    assert "VALID" in axes.get_title(loc="left")
    for job in real.attempts["job"].unique():
        assert f"{job[:4]} t" in _texts(axes)


def test_a_second_change_of_the_world_is_told_in_words(real: Result, naive: Result) -> None:
    again = "changed the world again"
    assert again in _texts(naive.plot_timeline())
    assert again not in _texts(real.plot_timeline())


def test_the_legend_has_what_the_picture_has(real: Result) -> None:
    legend = real.plot_timeline().get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert {"power lost", "stands still", "write refused", "second change refused"} <= set(labels)
    healthy = simulate("crash-after-execution", seed=7, faults=()).plot_timeline().get_legend()
    assert healthy is not None
    assert "power lost" not in [text.get_text() for text in healthy.get_texts()]


def test_a_large_run_is_drawn_with_bounded_marks() -> None:
    result = simulate("crash-after-execution", seed=1, n_jobs=1500, n_workers=4)
    assert len(result.attempts) > MAX_BARS
    axes = result.plot_timeline()
    marks = sum(len(line.get_xdata()) for line in axes.get_lines()) + len(axes.patches)
    assert marks < MAX_MARKS
    assert "at once" in _texts(axes)


def test_an_empty_run_says_so() -> None:
    nobody = simulate("crash-after-execution", seed=1)
    assert "nothing was executed" in _texts(plot_lateness(nobody.lateness.iloc[:0]))


def test_two_distributions_lie_over_each_other(real: Result, naive: Result) -> None:
    axes = plot_lateness(real.lateness, label="real")
    first = len(axes.get_lines())
    plot_lateness(naive.lateness, ax=axes, label="naive")
    colours = {line.get_color() for line in axes.get_lines()}
    assert len(axes.get_lines()) == 2 * first
    assert len(colours) == 2


def test_states_add_up_to_the_jobs_enqueued(real: Result) -> None:
    axes = plot_states(real)
    top = max(float(path.vertices[:, 1].max()) for band in axes.collections for path in band.get_paths())
    assert top == len(real.table)


def test_two_runs_share_one_time_axis(real: Result, naive: Result) -> None:
    above, below = plot_side_by_side(real, naive).axes
    assert above.get_xlim() == below.get_xlim()
    assert "no-idempotency: INVALID" in below.get_title(loc="left")
