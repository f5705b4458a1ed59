"""Pictures of a run: who held what when, how late things began, and how many jobs stood where.

Each takes a tidy frame or a result, accepts ``ax=``, and returns the Axes. Styles apply inside a context; nothing
is changed at import. Colour never stands alone: jobs carry labels, verdicts are words, marks have shapes. At most
about `MAX_MARKS` marks are drawn; above `MAX_BARS` claims the timeline shows how busy each host was instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from simlab.results import Result

__all__ = ["MAX_BARS", "MAX_MARKS", "plot_lateness", "plot_side_by_side", "plot_states", "plot_timeline"]

MAX_BARS = 200
"""The most claims the timeline draws one by one."""

MAX_MARKS = 50_000
"""The most marks in one picture."""

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999")
RED = "#B00020"

_LANE = 0.8


@contextmanager
def _styled() -> Iterator[None]:
    # Chosen here, outside the context, which would take back what choosing a backend switches on.
    plt.get_backend()
    style = str(resources.files("simlab") / "simlab.mplstyle")
    with mpl.style.context(style):
        yield


@contextmanager
def _axes(ax: Axes | None, *, width: float = 10.0, height: float = 4.0) -> Iterator[Axes]:
    """Give the Axes to draw on; a new figure is taken off pyplot's list, and still shows itself in a notebook."""
    with _styled():
        if ax is not None:
            yield ax
            return
        figure, new = plt.subplots(figsize=(width, height), layout="constrained")
        yield new
        # In a notebook pyplot shows what is on its list at the end of the cell, and forgets it. Elsewhere
        # nothing would ever take the figure off the list.
        if not mpl.is_interactive():
            plt.close(figure)


def _empty(ax: Axes, why: str) -> Axes:
    ax.text(0.5, 0.5, why, transform=ax.transAxes, ha="center", va="center", color="0.4")
    ax.set_yticks([])
    return ax


# The timeline.


def plot_timeline(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw hosts down, virtual time across: claims, leases, executions, faults, and changes of the world.

    Parameters
    ----------
    result
        A run. With more than `MAX_BARS` claims the picture shows how many handlers ran on each host.
    ax
        Where to draw; by default a figure of its own.

    Returns
    -------
    matplotlib.axes.Axes
        Time in seconds from the start.
    """
    attempts, events = result.attempts, result.events
    hosts = sorted(set(attempts["host"].astype(str)) | set(_fault_hosts(events)))
    lanes = _Lanes(hosts, attempts if len(attempts) <= MAX_BARS else attempts.iloc[:0])
    with _axes(ax, height=min(1.6 + 0.42 * lanes.rows, 14.0)) as axes:
        if attempts.empty:
            return _empty(axes, "no job was ever claimed")
        end_s = float(events["time_s"].max())
        _draw_faults(axes, events, lanes, end_s)
        if len(attempts) <= MAX_BARS:
            _draw_claims(axes, attempts, events, lanes, end_s)
            _draw_marks(axes, attempts, events, lanes)
        else:
            _draw_load(axes, events, lanes, end_s)
        _draw_effects(axes, events, lanes)
        _finish_timeline(axes, result, lanes, end_s, legend=ax is None)
        return axes


def _fault_hosts(events: pd.DataFrame) -> Iterable[str]:
    faults = events[events["kind"] == "fault"]
    return (host for host in faults["host"].astype(str).unique() if host not in {"database", "client"})


class _Lanes:
    """Which row of the picture a claim is drawn in: overlapping claims of a host lie above each other."""

    def __init__(self, hosts: Sequence[str], attempts: pd.DataFrame) -> None:
        self.rows = 0
        self.spans: dict[str, tuple[int, int]] = {}
        self.row_of: dict[int, int] = {}
        for host in hosts:
            mine = attempts[attempts["host"] == host].sort_values("claimed_s")
            free: list[float] = []
            for index, claim in mine.iterrows():
                ends = claim["ended_s"] if pd.notna(claim["ended_s"]) else claim["lease_until_s"]
                ends = max(float(ends), float(claim["claimed_s"]))
                row = next((n for n, at in enumerate(free) if at <= claim["claimed_s"]), len(free))
                free[row : row + 1] = [ends]
                self.row_of[index] = self.rows + row  # type: ignore[index]  # the frame's index is of integers
            self.spans[host] = (self.rows, self.rows + max(1, len(free)))
            self.rows = self.spans[host][1]
        self.effects = self.rows
        self.rows += 1

    def y(self, host: str) -> tuple[float, float]:
        first, last = self.spans[host]
        return first - 0.5, last - 0.5

    def middle(self, host: str) -> float:
        low, high = self.y(host)
        return (low + high) / 2


def _draw_faults(ax: Axes, events: pd.DataFrame, lanes: _Lanes, end_s: float) -> None:
    faults = events[events["kind"] == "fault"]
    for host in lanes.spans:
        low, high = lanes.y(host)
        began: dict[str, float] = {}
        for fault in faults[faults["host"] == host].itertuples():
            detail, at_s = str(fault.detail), float(fault.time_s)  # type: ignore[arg-type]
            if detail in {"crash", "pause"}:
                began[detail] = at_s
            elif detail in {"restart", "resume"}:
                since = began.pop({"restart": "crash", "resume": "pause"}[detail], at_s)
                _draw_absence(ax, detail == "restart", since, at_s, low, high)
            else:
                ax.plot([at_s], [low + 0.12], marker="v", color="0.35", markersize=5, zorder=6, clip_on=False)
        for detail, since in began.items():
            _draw_absence(ax, detail == "crash", since, end_s, low, high)
    for fault in faults[~faults["host"].isin(list(lanes.spans))].itertuples():
        ax.axvline(float(fault.time_s), color="0.35", linestyle=":", linewidth=1, zorder=1)  # type: ignore[arg-type]


def _draw_absence(ax: Axes, crashed: bool, since: float, until: float, low: float, high: float) -> None:  # noqa: FBT001
    hatch, colour = ("xxx", "0.75") if crashed else ("///", "0.85")
    ax.fill_betweenx(
        [low, high], since, until, facecolor="0.95", edgecolor=colour, hatch=hatch, linewidth=0, zorder=0
    )
    if crashed:
        ax.plot([since], [(low + high) / 2], marker="X", color="black", markersize=9, zorder=7)


def _draw_claims(ax: Axes, attempts: pd.DataFrame, events: pd.DataFrame, lanes: _Lanes, end_s: float) -> None:
    names = list(dict.fromkeys(attempts["job"].astype(str)))
    colours = {name: PALETTE[n % len(PALETTE)] for n, name in enumerate(names)}
    crashes = events[(events["kind"] == "fault") & (events["detail"] == "crash")]
    last_label: dict[int, float] = {}
    for index, claim in attempts.iterrows():
        y = lanes.row_of[index]  # type: ignore[index]  # as above
        begin = float(claim["claimed_s"])
        lease = min(float(claim["lease_until_s"]), end_s)
        ended = float(claim["ended_s"]) if pd.notna(claim["ended_s"]) else lease
        colour = colours[str(claim["job"])]
        shown = lease if claim["end"] == "swept" else min(ended, lease) if ended > begin else lease
        ax.barh(y, shown - begin, left=begin, height=_LANE, color=colour, alpha=0.18, linewidth=0, zorder=2)
        ax.plot([begin, ended], [y, y], color=colour, linewidth=1.2, zorder=3)
        if pd.notna(claim["executing_s"]):
            start = float(claim["executing_s"])
            mine = crashes[(crashes["host"] == claim["host"]) & (crashes["time_s"] >= start)]["time_s"]
            stops = (
                [float(claim["executed_s"])]
                if pd.notna(claim["executed_s"])
                else [ended, *mine.astype(float)]
            )
            ax.barh(y, min(stops) - start, left=start, height=0.5, color=colour, linewidth=0, zorder=4)
        # A label where there is room for it: about a twelfth of the width is what one takes.
        if begin - last_label.get(y, -1e9) > end_s / 12:
            last_label[y] = begin
            ax.text(
                begin,
                y - 0.3,
                f" {str(claim['job'])[:4]} t{claim['token']}",
                fontsize=7,
                va="center",
                zorder=8,
            )


def _draw_marks(ax: Axes, attempts: pd.DataFrame, events: pd.DataFrame, lanes: _Lanes) -> None:
    row_of = {
        (claim.job_id, claim.token): lanes.row_of[claim.Index]  # type: ignore[index]  # as above
        for claim in attempts.itertuples()
    }
    shown = {"rejected": ("P", RED, 7), "aborted": ("s", RED, 5), "swept": ("|", "black", 12)}
    for kind, (marker, colour, size) in shown.items():
        rows = events[(events["kind"] == kind) & events["host"].isin(list(lanes.spans))]
        y = [
            row_of.get((row.job_id, row.token), lanes.middle(str(row.host)))
            if kind != "swept"
            else lanes.middle(str(row.host))
            for row in rows.itertuples()
        ]
        ax.plot(rows["time_s"], y, linestyle="", marker=marker, color=colour, markersize=size, zorder=7)


def _draw_load(ax: Axes, events: pd.DataFrame, lanes: _Lanes, end_s: float) -> None:
    edges = np.linspace(0, end_s, 600)
    for host in lanes.spans:
        at_s, running = _running(events[events["host"] == host])
        shown = running[np.searchsorted(at_s, edges, "right") - 1]
        low, _ = lanes.y(host)
        peak = max(int(running.max()), 1)
        ax.fill_between(
            edges, low + 1, low + 1 - 0.75 * shown / peak, step="post", color=PALETTE[0], alpha=0.5
        )
        ax.text(0, low + 0.12, f" at most {peak} at once", fontsize=7, va="center", zorder=8)


def _running(events: pd.DataFrame) -> tuple[Any, Any]:
    """Return, for one host, the times at which the number of its running handlers changed, and the numbers."""
    at_s, counts = [-1.0], [0]
    for kind, detail, time_s in zip(events["kind"], events["detail"], events["time_s"], strict=True):
        count = counts[-1]
        if kind == "executing":
            count += 1
        elif kind in {"executed", "raised", "aborted"}:
            count = max(0, count - 1)
        elif kind == "fault" and detail == "crash":
            count = 0
        if count != counts[-1]:
            at_s.append(float(time_s))
            counts.append(count)
    return np.array(at_s), np.array(counts)


def _draw_effects(ax: Axes, events: pd.DataFrame, lanes: _Lanes) -> None:
    y = lanes.effects
    changed, refused = events[events["kind"] == "effect"], events[events["kind"] == "duplicate"]
    many = len(changed) > MAX_BARS
    ax.plot(
        changed["time_s"], [y] * len(changed), linestyle="", marker="|" if many else "D", color="black",
        markersize=8 if many else 6, zorder=6,
    )  # fmt: skip
    ax.plot(
        refused["time_s"], [y] * len(refused), linestyle="", marker="D", markerfacecolor="white", color="black",
        markersize=6, zorder=6,
    )  # fmt: skip
    again = changed[changed.duplicated("job_id")]
    ax.plot(
        again["time_s"], [y] * len(again), linestyle="", marker="o", markerfacecolor="none", color=RED,
        markersize=14, markeredgewidth=1.6, zorder=7,
    )  # fmt: skip
    if not again.empty:
        jobs = again["job_id"].nunique()
        ax.annotate(
            f"{jobs} job{'s' if jobs > 1 else ''} changed the world again", (again["time_s"].max(), y),
            xytext=(12, 0), textcoords="offset points", color=RED, fontsize=8, va="center",
        )  # fmt: skip


def _finish_timeline(ax: Axes, result: Result, lanes: _Lanes, end_s: float, *, legend: bool) -> None:
    ax.set_ylim(lanes.rows - 0.3, -0.6)
    ax.set_xlim(0, end_s * 1.01)
    ax.set_yticks([*(lanes.middle(host) for host in lanes.spans), lanes.effects], [*lanes.spans, "the world"])
    ax.grid(visible=False, axis="y")
    for host in lanes.spans:
        ax.axhline(lanes.y(host)[1], color="0.8", linewidth=0.6)
    ax.set_xlabel("virtual time [s]")
    ax.set_title(_title(result))
    if legend:
        ax.legend(handles=_legend(result), loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _title(result: Result) -> str:
    who = result.variant or "the real scheduler"
    return f"{result.scenario}, seed {result.seed}, {who}: {result.verdict}"


def _legend(result: Result) -> list[Any]:
    """Return an entry for each mark that is in the picture."""
    events = result.events
    kinds = set(events["kind"].astype(str))
    details = set(events[events["kind"] == "fault"]["detail"].astype(str))

    def mark(label: str, marker: str, colour: str = "black", face: str | None = None) -> Line2D:
        return Line2D(
            [], [], linestyle="", marker=marker, color=colour, markerfacecolor=face or colour, label=label
        )

    if len(result.attempts) > MAX_BARS:
        entries: list[Any] = [Patch(color=PALETTE[0], alpha=0.5, label="handlers running")]
        marks = []
    else:
        entries = [
            Patch(color=PALETTE[0], label="handler runs"),
            Line2D([], [], color=PALETTE[0], linewidth=1.2, label="claimed (t = token)"),
            Patch(color=PALETTE[0], alpha=0.18, label="lease"),
        ]
        marks = [
            ("swept", mark("sweep of expired leases", "|")),
            ("rejected", mark("write refused", "P", RED)),
            ("aborted", mark("handler stopped", "s", RED)),
        ]
    entries += [entry for kind, entry in marks if kind in kinds]
    if "crash" in details:
        entries += [
            mark("power lost", "X"),
            Patch(facecolor="0.95", edgecolor="0.75", hatch="xxx", label="down"),
        ]
    if "pause" in details:
        entries.append(Patch(facecolor="0.95", edgecolor="0.85", hatch="///", label="stands still"))
    if details - {"crash", "restart", "pause", "resume"}:
        entries.append(mark("another fault", "v", "0.35"))
    if "effect" in kinds:
        entries.append(mark("world changed", "D"))
    if "duplicate" in kinds:
        entries.append(mark("second change refused", "D", face="white"))
    return entries


# Lateness.


def plot_lateness(frame: pd.DataFrame, *, ax: Axes | None = None, label: str | None = None) -> Axes:
    """Draw how late executions began, as a cumulative distribution; several calls on one Axes lie over each other.

    Parameters
    ----------
    frame
        With the columns `lateness_ms` (milliseconds after the due time, by the database) and `attempt`.
    label
        What the legend calls it.
    """
    with _axes(ax, width=6.5, height=3.6) as axes:
        if frame.empty:
            return _empty(axes, "nothing was executed")
        groups = [
            ("first attempts", frame[frame["attempt"] == 1], "-"),
            ("re-runs", frame[frame["attempt"] > 1], "--"),
        ]
        colour = PALETTE[len({line.get_color() for line in axes.get_lines()}) % len(PALETTE)]
        for name, rows, style in groups:
            if rows.empty:
                continue
            late = np.sort(rows["lateness_ms"].to_numpy(dtype=float))
            share = np.arange(1, len(late) + 1) / len(late)
            keep = np.unique(np.linspace(0, len(late) - 1, min(len(late), 2000)).astype(int))
            p50, p99 = np.quantile(late, [0.5, 0.99])
            text = f"{label + ', ' if label else ''}{name} ({len(late):,}): p50 {_duration(p50)}, p99 {_duration(p99)}"
            axes.step(late[keep], share[keep], where="post", linestyle=style, color=colour, label=text)
        values = frame["lateness_ms"].to_numpy(dtype=float)
        if values.min() > 0 and values.max() / values.min() > 100:
            axes.set_xscale("log")
        elif values.max() > 1000:
            axes.set_xscale("symlog", linthresh=1.0)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("lateness [ms]")
        axes.set_ylabel("share of executions")
        axes.set_title("how late executions began, by the database's clock")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
        return axes


def _duration(milliseconds: float) -> str:
    """Write a duration in the unit that suits it."""
    if abs(milliseconds) >= 1000:
        return f"{milliseconds / 1000:,.1f} s"
    return f"{milliseconds:.3g} ms"


# States.

_STATE_STYLES = (
    ("PENDING", "#999999", ""), ("CLAIMED", "#56B4E9", "//"), ("RUNNING", "#0072B2", ""),
    ("SUCCEEDED", "#009E73", ""), ("CANCELLED", "#F0E442", "\\\\"), ("FAILED", "#D55E00", "xx"),
)  # fmt: skip


def plot_states(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw how many jobs stood in each state over time, stacked."""
    with _axes(ax, height=3.2) as axes:
        changes = _state_changes(result)
        if changes.empty:
            return _empty(axes, "no job was ever enqueued")
        end_s = float(result.events["time_s"].max())
        at_s = np.unique(np.append(changes["time_s"].to_numpy(), end_s))
        if len(at_s) > 2000:
            at_s = np.linspace(0, end_s, 2000)
        counts = []
        for state, _, _ in _STATE_STYLES:
            entered = np.sort(changes[changes["after"] == state]["time_s"].to_numpy())
            left = np.sort(changes[changes["before"] == state]["time_s"].to_numpy())
            counts.append(np.searchsorted(entered, at_s, "right") - np.searchsorted(left, at_s, "right"))
        base = np.zeros(len(at_s))
        for (state, colour, hatch), count in zip(_STATE_STYLES, counts, strict=True):
            if count.max() > 0:
                axes.fill_between(
                    at_s, base, base + count, step="post", facecolor=colour, hatch=hatch, edgecolor="white",
                    linewidth=0, label=state,
                )  # fmt: skip
            base = base + count
        axes.set_xlim(0, end_s)
        axes.set_ylim(0, None)
        axes.set_xlabel("virtual time [s]")
        axes.set_ylabel("jobs")
        axes.set_title(f"{_title(result)}: jobs by state")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
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


def plot_side_by_side(left: Result, right: Result) -> Figure:
    """Draw two runs of a scenario above each other on one time axis: the real and a naive one, say."""
    with _styled():
        heights = [
            _Lanes(sorted(set(r.attempts["host"].astype(str))), r.attempts).rows for r in (left, right)
        ]
        figure, (above, below) = plt.subplots(
            2, 1, sharex=True, figsize=(11, min(2.4 + 0.4 * sum(heights), 16)), height_ratios=heights,
            layout="constrained",
        )  # fmt: skip
        plot_timeline(left, ax=above)
        plot_timeline(right, ax=below)
        above.set_xlabel("")
        handles = {entry.get_label(): entry for result in (left, right) for entry in _legend(result)}
        above.legend(handles=list(handles.values()), loc="upper left", bbox_to_anchor=(1.0, 1.0))
        if not mpl.is_interactive():
            plt.close(figure)
        return figure
