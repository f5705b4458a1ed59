"""The time axis of a picture: virtual seconds, with long quiet stretches squeezed and marked.

A crash at 7 s and its mending at 60 s are what a reader wants to see; the lease that runs out in between is long
and empty. Where most of a run is quiet, the stretches without events get a smaller share of the axis, the busy
ones a larger. Positions stay in seconds, so whatever else is drawn on the Axes lands where it should.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["TimeAxis"]

# Events that leave no mark in a picture.
_UNSEEN = ("renewed", "unavailable", "enqueued", "fired")

QUIET = 0.03
"""A stretch without events is quiet when it is longer than this share of the run."""

MOSTLY_QUIET = 0.5
"""Only a run that is quiet for more than this share is squeezed."""

QUIET_WIDTH = 0.38
"""The share of the axis that quiet stretches get together, the longer ones more, by the square root."""

MAX_STRETCH = 25.0
"""How many times wider than on a plain axis a busy stretch may become."""


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Where on the axis, from 0 to 1, a time stands.

    Attributes
    ----------
    end_s
        The end of the run.
    quiet
        The squeezed stretches, in seconds.
    """

    end_s: float
    quiet: tuple[tuple[float, float], ...]
    _at_s: Any
    _at: Any

    @classmethod
    def of(cls, events: Iterable[pd.DataFrame]) -> Self:
        """Return the axis for the events of one run, or of several that share it."""
        seen = [frame.loc[~frame["kind"].isin(_UNSEEN), "time_s"].to_numpy(dtype=float) for frame in events]
        times = np.unique(np.concatenate([[0.0], *seen]))
        end_s = max(float(times[-1]), 1e-6)
        gaps = np.diff(times)
        long = gaps > QUIET * end_s
        quiet_s = float(gaps[long].sum())
        if quiet_s <= MOSTLY_QUIET * end_s:
            edges = np.array([0.0, end_s])
            return cls(end_s, (), *_beyond(edges, edges / end_s))
        busy_s = max(end_s - quiet_s, 0.0)
        busy_width = min(1 - QUIET_WIDTH, MAX_STRETCH * busy_s / end_s)
        widths = np.where(long, np.sqrt(gaps), 0.0)
        widths = (1 - busy_width) * widths / widths.sum()
        if busy_s > 0:
            widths = np.where(long, widths, busy_width * gaps / busy_s)
        at = np.concatenate([[0.0], np.cumsum(widths)])
        quiet = tuple(zip(times[:-1][long].tolist(), times[1:][long].tolist(), strict=True))
        return cls(end_s, quiet, *_beyond(times, at / at[-1]))

    def at(self, time_s: Any) -> Any:
        """Return the share of the axis to the left of a time, or of each of several."""
        return np.interp(time_s, self._at_s, self._at)

    def time_s(self, at: Any) -> Any:
        """Return the time at a share of the axis."""
        return np.interp(at, self._at, self._at_s)

    def bins(self, count: int) -> Any:
        """Return the `count + 1` edges of bins that are equally wide on the axis."""
        return self.time_s(np.linspace(0, 1, count + 1))

    def thinned(self, times_s: Any, *, most: int = 400) -> Any:
        """Return the positions of at most one time in each of `most` equal parts of the axis."""
        times = np.asarray(times_s, dtype=float)
        if len(times) <= most:
            return np.arange(len(times))
        return np.unique(np.floor(self.at(times) * most), return_index=True)[1]

    def put_on(self, ax: Axes) -> None:
        """Make this the horizontal axis, and mark what is squeezed."""
        if self.quiet:
            ax.set_xscale("function", functions=(self.at, self.time_s))
        ax.set_xlim(self.time_s(-0.004), self.time_s(1.008))
        ax.set_xlabel("virtual time [s]")
        if not self.quiet:
            return
        ax.set_xticks(self._ticks())
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        for begin_s, end_s in self.quiet:
            middle = self.time_s((self.at(begin_s) + self.at(end_s)) / 2)
            ax.text(
                middle, 0, "//", transform=ax.get_xaxis_transform(), ha="center", va="center", fontsize=8,
                bbox={"boxstyle": "square,pad=0", "facecolor": "white", "edgecolor": "none"}, zorder=9,
            )  # fmt: skip

    def _ticks(self) -> list[float]:
        """Return round times, the roundest first wherever there is not room for all; fine ones where it is busy."""
        chosen: list[float] = []
        decade = 10.0 ** np.floor(np.log10(self.end_s))
        for factor in (2, 1, 0.5, 0.2, 0.1, 0.05, 0.02):
            step = decade * factor
            for time_s in (np.arange(0, int(self.end_s / step) + 1) * step).tolist():
                if factor < 1 and any(begin_s < time_s < end_s for begin_s, end_s in self.quiet):
                    continue
                if all(abs(self.at(time_s) - self.at(other)) > 0.045 for other in chosen):
                    chosen.append(round(time_s, 9))
        return sorted(chosen)


def _beyond(at_s: Any, at: Any) -> tuple[Any, Any]:
    """Continue the axis to both sides, as wide as a plain one, for what others may draw there."""
    end_s = float(at_s[-1])
    return (
        np.concatenate([[-100 * end_s], at_s, [101 * end_s]]),
        np.concatenate([[-100.0], at, [101.0]]),
    )
