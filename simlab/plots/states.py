"""How many jobs stood in each state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from simlab.plots.base import axes_or_new, draw_empty, title_of
from simlab.plots.time_axis import TimeAxis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from simlab.results import Result

__all__ = ["plot_states"]

_STATE_STYLES = (
    ("PENDING", "#999999", ""), ("CLAIMED", "#56B4E9", "//"), ("RUNNING", "#0072B2", ""),
    ("SUCCEEDED", "#009E73", ""), ("CANCELLED", "#F0E442", "\\\\"), ("FAILED", "#D55E00", "xx"),
)  # fmt: skip

MAX_STEPS = 2000
"""The most instants at which jobs are counted."""


def plot_states(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw how many jobs stood in each state over time, stacked.

    Parameters
    ----------
    ax
        Where to draw; by default a figure of its own.

    Returns
    -------
    matplotlib.axes.Axes
        Time in virtual seconds across, jobs up.
    """
    with axes_or_new(ax, width=11.0, height=3.4) as axes:
        changes = _state_changes(result)
        if changes.empty:
            return draw_empty(axes, "no job was ever enqueued")
        time_axis = TimeAxis.of([result.events])
        at_s = np.unique(np.append(changes["time_s"].to_numpy(), time_axis.end_s))
        if len(at_s) > MAX_STEPS:
            at_s = time_axis.bins(MAX_STEPS)
        base = np.zeros(len(at_s))
        for state, colour, hatch in _STATE_STYLES:
            entered = np.sort(changes[changes["after"] == state]["time_s"].to_numpy())
            left = np.sort(changes[changes["before"] == state]["time_s"].to_numpy())
            count = np.searchsorted(entered, at_s, "right") - np.searchsorted(left, at_s, "right")
            if count.max() > 0:
                axes.fill_between(
                    at_s, base, base + count, step="post", facecolor=colour, hatch=hatch, edgecolor="white",
                    linewidth=0, label=state,
                )  # fmt: skip
            base = base + count
        time_axis.put_on(axes)
        axes.set_ylim(0, None)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel("jobs")
        axes.set_title(f"{title_of(result)}: jobs by state")
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return axes


def _state_changes(result: Result) -> pd.DataFrame:
    """Return each change of state: when, from what (None at first), to what."""
    rows: list[tuple[float, str | None, str]] = []
    state: dict[Any, str] = {}
    for event in result.history:
        after = {"claimed": "CLAIMED", "started": "RUNNING", "replayed": "PENDING"}.get(event.kind)
        if event.kind == "enqueued" and event.detail != "already there":
            after = "PENDING"
        elif event.kind in {"finished", "swept"}:
            after = event.detail.rpartition(" to ")[2]
        elif event.kind == "cancelled" and event.detail == "cancelled":
            after = "CANCELLED"
        if after is not None and after != state.get(event.job):
            rows.append((event.time_us / 1e6, state.get(event.job), after))
            state[event.job] = after
    return pd.DataFrame(rows, columns=["time_s", "before", "after"])
