"""The Axes of a timeline, with what its parts share: time, lanes, colours, room for text, and the legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.lines import Line2D

from simlab.plots.base import PALETTE
from simlab.plots.claims import Claim, Lanes
from simlab.plots.time_axis import TimeAxis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Canvas"]

_FONT = 7.0


class Canvas:
    """The Axes of one timeline, with what its parts need to know."""

    def __init__(
        self, ax: Axes, time: TimeAxis, lanes: Lanes, events: pd.DataFrame, claims: Sequence[Claim]
    ) -> None:
        self.ax, self.time, self.lanes, self.events, self.claims = ax, time, lanes, events, claims
        jobs = dict.fromkeys(claim.job_id for claim in claims)
        self.colours = {job: PALETTE[n % len(PALETTE)] for n, job in enumerate(jobs)}
        self.world = lanes.rows + 0.6
        self._legend: dict[str, Any] = {}
        # Before the layout is made the Axes still have room that the legend will take.
        figure = ax.get_figure(root=True)
        dpi = 100.0 if figure is None else figure.dpi
        self._width_in = 0.85 * ax.get_window_extent().width / dpi
        ax.set_ylim(self.world + 1.25, -0.65)

    def room(self, text: str) -> float:
        """Return the share of the axis that a text takes, about."""
        return (0.072 * len(text) * _FONT / 7.0 + 0.05) / self._width_in

    def explain(self, label: str, handle: Any) -> None:
        """Have the legend explain a mark, once."""
        if label not in self._legend:
            handle.set_label(label)
            self._legend[label] = handle

    def mark(
        self, times_s: Any, y: Any, label: str, marker: str, colour: str, size: float, **style: Any
    ) -> None:
        """Draw marks of one kind, and explain them."""
        style = {"linestyle": "", "marker": marker, "color": colour, "markersize": size, "zorder": 7, **style}
        self.ax.plot(times_s, y, clip_on=False, **style)
        self.explain(label, Line2D([], [], **{**style, "markersize": min(size, 8)}))

    def write(self, time_s: float, y: float, text: str, **style: Any) -> None:
        """Write on the picture."""
        style = {"fontsize": _FONT, "va": "center", "zorder": 8, **style}
        self.ax.text(time_s, y, text, **style)

    def legend(self) -> list[Any]:
        """Return what the legend explains, in the order it was drawn."""
        if self.time.quiet:
            handle = Line2D([], [], linestyle="", marker="$//$", color="black", markersize=7)
            self.explain("quiet stretch, squeezed", handle)
        return list(self._legend.values())

    def finish(self) -> None:
        """Name the lanes."""
        lanes = self.lanes
        self.ax.set_yticks(
            [*(lanes.middle(host) for host in lanes.spans), self.world], [*lanes.spans, "the world"]
        )
        self.ax.tick_params(axis="y", length=0)
        self.ax.grid(visible=False, axis="y")
        for host in lanes.spans:
            self.ax.axhline(lanes.edges(host)[1], color="0.6", linewidth=0.8, zorder=1)
