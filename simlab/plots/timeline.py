"""Who held which job when, what struck the hosts, and when the outside world was changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from simlab.plots.base import MAX_BARS, axes_or_new, draw_empty, new_figure, title_of
from simlab.plots.canvas import Canvas
from simlab.plots.claims import Claim, Lanes, claims_of, lanes_of
from simlab.plots.drawing import (
    draw_claims,
    draw_faults,
    draw_load,
    draw_marks,
    draw_violations,
    draw_world,
)
from simlab.plots.time_axis import TimeAxis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from simlab.results import Result

__all__ = ["plot_side_by_side", "plot_timeline", "timeline_size"]

WIDTH = 12.0
"""Inches, the legend included."""

MAX_HEIGHT = 15.0
"""Inches of one run's lanes."""

MAX_ROWS = 48
"""The most rows in which claims can still be told apart."""


def plot_timeline(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw hosts down, virtual time across: claims, leases, executions, faults, and changes of the world.

    A claim is a row: pale for its lease as the database sees it, a line while the worker has it, a block while its
    handler runs, dotted when the worker has lost it and does not know. Where most of a run is quiet, quiet stretches
    are squeezed, and marked ``//``.

    Parameters
    ----------
    result
        A run. With more than `MAX_BARS` claims the picture shows how many handlers ran on each host instead.
    ax
        Where to draw; by default a figure of its own. The legend stands to the right of the Axes.

    Returns
    -------
    matplotlib.axes.Axes
        Time in virtual seconds from the start.
    """
    plan = _Plan(result)
    with axes_or_new(ax, width=WIDTH, height=plan.height) as axes:
        canvas = plan.draw(axes, TimeAxis.of([result.events]))
        if canvas is not None:
            axes.legend(handles=canvas.legend(), loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return axes


def timeline_size(result: Result) -> tuple[float, float]:
    """Return the inches across and down that the timeline of a run wants."""
    return WIDTH, _Plan(result).height


def plot_side_by_side(left: Result, right: Result) -> Figure:
    """Draw two runs of a scenario above each other on one time axis: the real and a naive one, say.

    Returns
    -------
    matplotlib.figure.Figure
        `left` above, `right` below, each under its variant and verdict.
    """
    plans = (_Plan(left), _Plan(right))
    with new_figure(WIDTH, sum(plan.height for plan in plans)) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[plan.height for plan in plans])
        time_axis = TimeAxis.of([left.events, right.events])
        drawn = [plan.draw(ax, time_axis) for plan, ax in zip(plans, (above, below), strict=True)]
        above.set_xlabel("")
        above.tick_params(labelbottom=True)
        handles = {str(h.get_label()): h for canvas in drawn if canvas is not None for h in canvas.legend()}
        if handles:
            figure.legend(handles=list(handles.values()), loc="outside right upper")
        return figure


class _Plan:
    """What is to be drawn of a run, and how much room it takes."""

    def __init__(self, result: Result) -> None:
        self._result = result
        self._claims: Sequence[Claim] = claims_of(result)
        one_by_one = len(self._claims) <= MAX_BARS
        self._lanes = lanes_of(result, self._claims if one_by_one else [])
        self._one_by_one = one_by_one and self._lanes.rows <= MAX_ROWS
        if not self._one_by_one:
            hosts = {claim.host for claim in self._claims} | set(self._lanes.spans)
            self._lanes = Lanes(hosts, [])

    @property
    def height(self) -> float:
        if not self._claims:
            return 2.5
        row = (0.36 if self._lanes.rows <= 16 else 0.28) if self._one_by_one else 0.62
        return min(2.2 + row * self._lanes.rows, MAX_HEIGHT)

    def draw(self, ax: Axes, time_axis: TimeAxis) -> Canvas | None:
        ax.set_title(title_of(self._result))
        if not self._claims:
            draw_empty(ax, "no job was ever claimed")
            return None
        canvas = Canvas(ax, time_axis, self._lanes, self._result.events, self._claims)
        time_axis.put_on(ax)
        # In the order of the legend: the everyday first. What lies above what is said by each mark.
        if self._one_by_one:
            draw_claims(canvas)
        else:
            draw_load(canvas)
        draw_world(canvas)
        draw_faults(canvas)
        draw_marks(canvas)
        draw_violations(canvas, self._result.checks)
        canvas.finish()
        return canvas
