"""Pictures of a run with real processes: what was done to them, what it came to, and how late a calm run was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simlab.hosts import EPOCH_US
from simlab.plots.base import HALO, MAX_MARKS, PALETTE, RED, axes_or_new, draw_empty, title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from simlab.results import Result

__all__ = ["acts_size", "plot_acts", "plot_effects", "plot_lateness_comparison"]

_CLIENT, _DATABASE = "client", "database"

_NETWORK = {
    # Colour and hatch: colour never stands alone.
    "delay": (PALETTE[1], ""),
    "cut": (PALETTE[5], "xxxx"),
    "silence": (PALETTE[3], "...."),
    "reply loss": (PALETTE[0], "////"),
}
_ENDS_OF_RUNS = ("executed", "raised", "aborted")
MAX_STEPS = 2000
"""The most steps of one worker's curve."""


# What was done.


def acts_size(result: Result) -> tuple[float, float]:
    """Return the inches across and down that the picture of the acts wants."""
    return 12.0, 2.0 + 0.75 * len(_rows(result.events))


def plot_acts(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw what was done to the workers, to the network and to the database, over what the workers did meanwhile.

    A worker is a row: white while no process of it lived, hatched while it stood still, filled as high as the share
    of its slots in which a handler ran. A band above tells what its network did.

    Parameters
    ----------
    result
        A run of chaos.
    ax
        Where to draw; by default a figure of its own. The legend stands to the right of the Axes.

    Returns
    -------
    matplotlib.axes.Axes
        Real time in seconds across, one row a worker, the client and the database.
    """
    width, height = acts_size(result)
    with axes_or_new(ax, width=width, height=height) as axes:
        events = result.events
        rows = _rows(events)
        if events.empty or not rows:
            return draw_empty(axes, "nothing happened")
        picture = _Acts(axes, events, rows)
        picture.draw()
        axes.set_title(f"{title_of(result)}: what was done, and what ran meanwhile")
        return axes


def _rows(events: pd.DataFrame) -> list[str]:
    hosts = set(events.loc[events["kind"].isin(["executing", "fault"]), "host"].astype(str))
    workers = sorted(hosts - {_CLIENT, _DATABASE}, key=lambda name: (len(name), name))
    return [*workers, *(name for name in (_CLIENT, _DATABASE) if name in hosts)]


class _Acts:
    """The picture of the acts while it is drawn, and what its legend has to explain."""

    def __init__(self, ax: Axes, events: pd.DataFrame, rows: Sequence[str]) -> None:
        self._ax = ax
        self._events = events
        self._faults = events[events["kind"] == "fault"]
        self._row_of = {name: n for n, name in enumerate(rows)}
        self._end_s = float(events["time_s"].iloc[-1])
        self._legend: dict[str, Any] = {}

    def draw(self) -> None:
        for host in self._row_of:
            if host not in {_CLIENT, _DATABASE}:
                self._draw_lives(host)
                self._draw_executions(host)
        self._draw_network()
        self._draw_database()
        ax = self._ax
        ax.set_yticks(list(self._row_of.values()), [*self._row_of])
        ax.set_ylim(len(self._row_of) - 0.5, -0.5)
        ax.set_xlim(-0.004 * self._end_s, 1.004 * self._end_s)
        ax.grid(visible=False, axis="y")
        ax.set_xlabel("real time [s]")
        ax.legend(handles=list(self._legend.values()), loc="upper left", bbox_to_anchor=(1.0, 1.0))

    def _explain(self, says: str, handle: Any) -> None:
        handle.set_label(says)
        self._legend.setdefault(says, handle)

    def _band(self, host: str, since_s: float, until_s: float, **style: Any) -> None:
        row = self._row_of[host]
        self._ax.fill_betweenx([row - 0.36, row + 0.42], since_s, until_s, linewidth=0, **style)

    def _draw_lives(self, host: str) -> None:
        alive: dict[str, Any] = {"facecolor": "0.93"}
        still: dict[str, Any] = {"facecolor": "0.8", "edgecolor": "0.5", "hatch": "////"}
        born_s: float | None = 0.0
        stopped_s: float | None = None
        killed_s = []
        faults = self._faults[self._faults["host"] == host]
        told = [*zip(faults["time_s"], faults["detail"].astype(str), strict=True), (self._end_s, "end")]
        for time_s, detail in told:
            if detail in {"resume", "crash", "end"} and stopped_s is not None:
                self._band(host, stopped_s, time_s, zorder=1.2, **still)
                self._explain("SIGSTOP to SIGCONT", Patch(linewidth=0, **still))
                stopped_s = None
            if detail in {"crash", "end"} and born_s is not None:
                self._band(host, born_s, time_s, zorder=1, **alive)
                self._explain("a process lives", Patch(linewidth=0, **alive))
                born_s = None
            if detail == "crash":
                killed_s.append(time_s)
            elif detail == "restart":
                # Where a process ended by itself and another took its place, no crash stands in between.
                born_s = time_s if born_s is None else born_s
            elif detail == "pause":
                stopped_s = time_s
        if killed_s:
            mark: dict[str, Any] = {
                "marker": "X",
                "color": "black",
                "markersize": 8,
                "markeredgecolor": "white",
            }
            self._ax.plot(killed_s, [self._row_of[host]] * len(killed_s), linestyle="", zorder=6, **mark)
            self._explain("SIGKILL", Line2D([], [], linestyle="", **mark))

    def _draw_executions(self, host: str) -> None:
        """Fill the row as high as handlers ran: all of it for as many as ever ran at once on any worker."""
        at_s, running = _running(self._events[self._events["host"] == host])
        if not len(at_s):
            return
        most = max(self._most, 1)
        row = self._row_of[host]
        self._ax.fill_between(
            at_s, row + 0.42, row + 0.42 - 0.6 * running / most, step="post", facecolor=PALETTE[2],
            alpha=0.85, linewidth=0, zorder=3,
        )  # fmt: skip
        self._explain(
            f"handlers that run; full height: {most}", Patch(facecolor=PALETTE[2], alpha=0.85, linewidth=0)
        )

    @property
    def _most(self) -> int:
        hosts = [host for host in self._row_of if host not in {_CLIENT, _DATABASE}]
        counts = [_running(self._events[self._events["host"] == host])[1] for host in hosts]
        return max((int(count.max()) for count in counts if len(count)), default=0)

    def _draw_network(self) -> None:
        spoilt = self._faults[self._faults["detail"].astype(str).str.startswith("its network: ")]
        for host, detail, time_s, until_us in zip(
            spoilt["host"], spoilt["detail"], spoilt["time_s"], spoilt["until_us"], strict=True
        ):
            kind = str(detail).removeprefix("its network: ").partition(" by ")[0]
            colour, hatch = _NETWORK[kind]
            row = self._row_of[str(host)]
            style: dict[str, Any] = {
                "facecolor": colour,
                "hatch": hatch,
                "edgecolor": "white",
                "linewidth": 0,
            }
            until_s = (int(until_us) - EPOCH_US) / 1e6
            self._ax.fill_betweenx([row - 0.42, row - 0.26], time_s, until_s, zorder=4, **style)
            self._explain(f"network: {kind}", Patch(**style))

    def _draw_database(self) -> None:
        ours = self._faults[self._faults["host"] == _DATABASE]
        down_s: float | None = None
        for time_s, detail in zip(ours["time_s"], ours["detail"].astype(str), strict=True):
            if detail == "an immediate stop":
                down_s = time_s
            elif detail == "runs again" and down_s is not None:
                # Everybody feels it: all rows, under everything else.
                style: dict[str, Any] = {"color": RED, "alpha": 0.25, "linewidth": 0}
                self._ax.axvspan(down_s, time_s, zorder=2, **style)
                self._explain("PostgreSQL is down: an immediate stop", Patch(**style))
            elif detail == "everything is healed":
                line: dict[str, Any] = {"color": "black", "linestyle": (0, (4, 2)), "linewidth": 1.2}
                self._ax.axvline(time_s, zorder=5, **line)
                self._explain("everything is healed", Line2D([], [], **line))
            elif "terminated" in detail:
                mark: dict[str, Any] = {"marker": "v", "color": PALETTE[5], "markersize": 6}
                self._ax.plot([time_s], [self._row_of[_DATABASE]], linestyle="", zorder=5, **mark)
                self._explain("pg_terminate_backend", Line2D([], [], linestyle="", **mark))


def _running(events: pd.DataFrame) -> tuple[Any, Any]:
    """Return instants in seconds, and how many handlers ran on one host from each on. A crash ends them all."""
    at_s: list[float] = []
    counts: list[int] = []
    running: set[tuple[str, int]] = set()
    columns = zip(
        events["time_s"], events["kind"].astype(str), events["detail"].astype(str), events["job_id"].astype(str),
        events["token"], strict=True,
    )  # fmt: skip
    for time_s, kind, detail, job, token in columns:
        if kind == "executing":
            running.add((job, int(token)))
        elif kind in _ENDS_OF_RUNS:
            running.discard((job, int(token)))
        elif kind == "fault" and detail == "crash":
            running.clear()
        else:
            continue
        at_s.append(time_s)
        counts.append(len(running))
    if not at_s:
        return np.array([]), np.array([])
    keep = np.unique(np.linspace(0, len(at_s) - 1, min(len(at_s), MAX_STEPS)).astype(int))
    return np.array(at_s)[keep], np.array(counts)[keep]


# What it came to.


def plot_effects(counts: Mapping[str, Mapping[str, int]], *, ax: Axes | None = None) -> Axes:
    """Draw how often the outside world was changed, one bar a kind of handler.

    Parameters
    ----------
    counts
        By kind of handler: how many changes there were of each sort. The sorts are stacked in their order.
    ax
        Where to draw; by default a figure of its own.

    Returns
    -------
    matplotlib.axes.Axes
        Changes across, one row a kind of handler.
    """
    looks = ((PALETTE[2], ""), (PALETTE[5], "xxx"), ("0.8", "..."))
    with axes_or_new(ax, width=8.0, height=2.4) as axes:
        sorts = list(dict.fromkeys(sort for by_sort in counts.values() for sort in by_sort))
        kinds = list(counts)
        left = np.zeros(len(kinds))
        for sort, (colour, hatch) in zip(sorts, looks, strict=False):
            width = np.array([counts[kind].get(sort, 0) for kind in kinds])
            bars = axes.barh(
                kinds, width, left=left, height=0.55, facecolor=colour, hatch=hatch, edgecolor="white",
                linewidth=0, label=sort,
            )  # fmt: skip
            numbers = [f"{value:,}" if value else "" for value in width]
            axes.bar_label(bars, numbers, label_type="center", fontsize=8, bbox=None if not hatch else HALO)
            left = left + width
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("changes of the outside world")
        axes.set_title("at-least-once, seen from outside")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return axes


# How late a calm run was.


def plot_lateness_comparison(
    frame: pd.DataFrame, *, tolerance: float, resolution_ms: float, ax: Axes | None = None
) -> Axes:
    """Draw two samples of lateness as cumulative distributions, with the largest distance between them.

    Parameters
    ----------
    frame
        With the columns `world` (two of them) and `lateness_ms` (milliseconds).
    tolerance
        The largest distance that counts as the same distribution.
    resolution_ms
        The steps, in milliseconds, in which lateness is compared.
    ax
        Where to draw; by default a figure of its own.

    Returns
    -------
    matplotlib.axes.Axes
        Lateness in milliseconds across, the share of executions up.
    """
    with axes_or_new(ax, width=8.0, height=4.2) as axes:
        samples = {
            str(world): np.sort(rows["lateness_ms"].to_numpy(dtype=float))
            for world, rows in frame.groupby("world", sort=True)
        }
        if len(samples) != 2:
            return draw_empty(axes, "there are no two samples to compare")
        for (world, late_ms), colour, dashes in zip(samples.items(), PALETTE, ("-", "--"), strict=False):
            keep = np.unique(np.linspace(0, len(late_ms) - 1, min(len(late_ms), MAX_MARKS // 10)).astype(int))
            share = (keep + 1) / len(late_ms)
            axes.step(
                late_ms[keep], share, where="post", color=colour, linestyle=dashes,
                label=f"{world} ({len(late_ms):,} executions): median {np.median(late_ms):.0f} ms",
            )  # fmt: skip
        at_ms, low, high = _farthest(*samples.values(), resolution_ms=resolution_ms)
        axes.annotate(
            "", (at_ms, low), xytext=(at_ms, high), arrowprops={"arrowstyle": "<->", "color": RED, "linewidth": 1.4}
        )  # fmt: skip
        axes.plot(
            [], [], color=RED, linewidth=1.4,
            label=f"largest distance: {high - low:.3f}; {tolerance:g} is allowed",
        )  # fmt: skip
        axes.set_ylim(0, 1.03)
        axes.set_xlabel("lateness [ms]")
        axes.set_ylabel("share of executions")
        axes.set_title("how late executions began in a calm run, and what the simulation predicts")
        axes.legend(loc="lower right")
        return axes


def _farthest(one: Any, other: Any, *, resolution_ms: float) -> tuple[float, float, float]:
    """Return where two samples are farthest apart at a resolution, in milliseconds, and the two shares there."""
    steps = [np.ceil(sample / resolution_ms) for sample in (one, other)]
    at = np.concatenate(steps)
    shares = [np.searchsorted(sample, at, side="right") / len(sample) for sample in steps]
    worst = int(np.argmax(np.abs(shares[0] - shares[1])))
    low, high = sorted((float(shares[0][worst]), float(shares[1][worst])))
    return float(at[worst] * resolution_ms), low, high
