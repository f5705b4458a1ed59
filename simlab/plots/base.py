"""What every picture shares: the style, the palette, where a figure comes from, and what a title says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import TYPE_CHECKING

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from simlab.checks import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from simlab.results import Result

__all__ = [
    "HALO",
    "MAX_BARS",
    "MAX_MARKS",
    "PALETTE",
    "RED",
    "Picture",
    "axes_or_new",
    "blank_axes",
    "draw_empty",
    "new_figure",
    "styled",
    "title_of",
]

MAX_BARS = 200
"""The most claims the timeline draws one by one."""

MAX_MARKS = 50_000
"""The most marks in one picture."""

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
"""Okabe and Ito's colours, which colour-blind readers can tell apart; grey stands in for their black."""

RED = "#B00020"
"""What is wrong; always with a shape or words of its own."""

HALO = {"boxstyle": "square,pad=0.08", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}
"""The background of a text that may stand on hatching."""


class Picture(Figure):
    """A figure that shows once in a notebook, even as the last line of a cell.

    A notebook shows a cell's value, and then, at the end of the cell, whatever is on pyplot's list. A figure that is
    both would be shown twice; so whichever comes first takes it off the list.
    """

    def _ipython_display_(self) -> None:
        plt.close(self)
        raise NotImplementedError  # IPython's word for: show it the usual way.


@contextmanager
def styled() -> Iterator[None]:
    """Apply the laboratory's style inside the context only."""
    with mpl.style.context(str(resources.files("simlab") / "simlab.mplstyle")):
        yield


@contextmanager
def new_figure(width: float, height: float) -> Iterator[Figure]:
    """Give a figure to draw on in the laboratory's style; once drawn, only a notebook keeps it on pyplot's list."""
    # Loads the backend. In a notebook that switches interactive mode on, which the style's context would take back.
    plt.draw_if_interactive()  # type: ignore[no-untyped-call]  # matplotlib has no type for it
    with styled():
        figure = plt.figure(figsize=(width, height), layout="constrained", FigureClass=Picture)
        try:
            yield figure
        except BaseException:
            plt.close(figure)
            raise
    if not mpl.is_interactive():
        plt.close(figure)


@contextmanager
def axes_or_new(ax: Axes | None, *, width: float, height: float) -> Iterator[Axes]:
    """Give the Axes to draw on, in the laboratory's style: the caller's, or one of a new figure."""
    if ax is not None:
        with styled():
            yield ax
    else:
        with new_figure(width, height) as figure:
            yield figure.subplots()


def blank_axes(width: float, height: float) -> Axes:
    """Return Axes on a figure that pyplot never hears of, for writing to a file."""
    with styled():
        axes: Axes = Figure(figsize=(width, height), layout="constrained").subplots()
        return axes


def draw_empty(ax: Axes, why: str) -> Axes:
    """Say why there is nothing to see."""
    ax.text(0.5, 0.5, why, transform=ax.transAxes, ha="center", va="center", color="0.3")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.grid(visible=False)
    return ax


def title_of(result: Result) -> str:
    """Return the run and its verdict in words, with the checks that failed."""
    who = result.variant or "the real scheduler"
    failed = [check.name for check in result.checks if check.verdict is Verdict.INVALID]
    more = f" and {len(failed) - 2} more" if len(failed) > 2 else ""
    why = f" ({', '.join(failed[:2])}{more})" if failed else ""
    return f"{result.scenario}, seed {result.seed}, {who}: {result.verdict}{why}"
