"""How late executions began."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from simlab.plots.base import HALO, PALETTE, axes_or_new, draw_empty

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_lateness"]

MAX_STEPS = 2000
"""The most steps of one curve; between them the curve is straight enough."""

_MARKS = ((0.5, "o", "p50"), (0.99, "D", "p99"))
_GROUP = "simlab lateness "


def plot_lateness(frame: pd.DataFrame, *, ax: Axes | None = None, label: str | None = None) -> Axes:
    """Draw how late executions began, as a cumulative distribution; several calls on one Axes lie over each other.

    First attempts are drawn solid, re-runs dashed; the median and the 99th percentile are marked. The axis is
    logarithmic where the range spans more than two decades, symmetrically so where something began on time or early.

    Parameters
    ----------
    frame
        With the columns `lateness_ms` (milliseconds after the due time, by the database) and `attempt`.
    ax
        Where to draw; by default a figure of its own.
    label
        What the legend calls it.

    Returns
    -------
    matplotlib.axes.Axes
        Lateness in milliseconds across, the share of executions up.
    """
    with axes_or_new(ax, width=7.5, height=4.0) as axes:
        if frame.empty:
            return axes if _curves(axes) else draw_empty(axes, "nothing was executed")
        # Each call takes the next colour; its curves are told apart by their dashes.
        calls = {str(line.get_gid()) for line in _curves(axes)}
        for group, rows in (("first attempts", frame["attempt"] <= 1), ("re-runs", frame["attempt"] > 1)):
            late_ms = np.sort(frame.loc[rows, "lateness_ms"].to_numpy(dtype=float))
            if len(late_ms):
                name = group if label is None else f"{label}, {group}"
                _draw_curve(axes, late_ms, name, call=len(calls), dashed=group == "re-runs")
        _scale(axes)
        _place_texts(axes)
        axes.set_ylim(0, 1.03)
        axes.set_xlabel("lateness [ms]")
        axes.set_ylabel("share of executions")
        axes.set_title("how late executions began, by the database's clock")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18))
        return axes


def _curves(ax: Axes) -> list[Any]:
    return [line for line in ax.get_lines() if str(line.get_gid()).startswith(_GROUP)]


def _draw_curve(ax: Axes, late_ms: Any, name: str, *, call: int, dashed: bool) -> None:
    colour = PALETTE[call % len(PALETTE)]
    share = np.arange(1, len(late_ms) + 1) / len(late_ms)
    keep = np.unique(np.linspace(0, len(late_ms) - 1, min(len(late_ms), MAX_STEPS)).astype(int))
    # The lowest value that at least this share of the executions kept to: it lies on the curve.
    at_ms = [float(np.quantile(late_ms, part, method="inverted_cdf")) for part, _, _ in _MARKS]
    facts = ", ".join(f"{says} {_duration(at)}" for (_, _, says), at in zip(_MARKS, at_ms, strict=True))
    curve = ax.step(
        [late_ms[0], *late_ms[keep]], [0, *share[keep]], where="post", color=colour,
        linestyle="--" if dashed else "-", label=f"{name} ({len(late_ms):,}): {facts}",
    )  # fmt: skip
    curve[0].set_gid(f"{_GROUP}{call}")
    for (part, marker, says), at in zip(_MARKS, at_ms, strict=True):
        few = float(np.searchsorted(late_ms, at, "right")) / len(late_ms)
        height = part if len(late_ms) > 100 else few
        ax.plot([at], [height], marker=marker, color=colour, markersize=5, linestyle="", zorder=5)
        text = ax.annotate(
            f"{says} {_duration(at)}", (at, height), xytext=(7, -9), textcoords="offset points", fontsize=7.5,
            color="0.2", bbox=HALO, zorder=6,
        )  # fmt: skip
        text.set_gid(curve[0].get_gid())


def _place_texts(ax: Axes) -> None:
    """Keep the texts of two curves apart; with more curves they go, for the legend says it all."""
    texts: list[Any] = [text for text in ax.texts if str(text.get_gid()).startswith(_GROUP)]
    if len(_curves(ax)) > 2:
        for text in texts:
            text.remove()
        return
    quicker = min(curve.get_xdata().mean() for curve in _curves(ax))
    for text, curve in zip(texts, (curve for curve in _curves(ax) for _ in _MARKS), strict=True):
        across = ax.transAxes.inverted().transform(ax.transData.transform(text.xy))[0]
        if len(_curves(ax)) > 1 and curve.get_xdata().mean() == quicker and across > 0.3:
            text.set_position((-7, -9))
            text.set_horizontalalignment("right")


def _scale(ax: Axes) -> None:
    """Choose the axis for all that has been drawn, in this call and in earlier ones."""
    values = np.concatenate([np.asarray(line.get_xdata(), dtype=float) for line in _curves(ax)])
    lowest, highest = float(values.min()), float(values.max())
    smallest = float(np.abs(values[values != 0]).min()) if (values != 0).any() else 1.0
    if max(abs(lowest), abs(highest)) / smallest <= 100:
        ax.set_xscale("linear")
    elif lowest > 0:
        ax.set_xscale("log")
    else:
        ax.set_xscale("symlog", linthresh=max(smallest, 0.1))
    ax.margins(x=0.12)
    ax.autoscale(axis="x")


def _duration(milliseconds: float) -> str:
    """Write a duration in the unit that suits it."""
    if abs(milliseconds) >= 1000:
        return f"{milliseconds / 1000:,.1f} s"
    return f"{milliseconds:.3g} ms"
