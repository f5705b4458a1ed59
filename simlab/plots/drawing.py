"""The parts of a timeline: claims one by one or as load, faults, marks, and the outside world.

Each part draws on a :class:`simlab.plots.canvas.Canvas` and tells it what the legend has to explain, so that the legend has what the
picture has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simlab.checks import CheckResult, Verdict
from simlab.hosts import EPOCH_US
from simlab.plots.base import HALO, MAX_BARS, PALETTE, RED
from simlab.plots.canvas import Canvas
from simlab.plots.claims import Claim

__all__ = ["draw_claims", "draw_faults", "draw_load", "draw_marks", "draw_violations", "draw_world"]

_BLOCK = 0.16  # Where in its row a block stands, below the label.
_ABSENCES = {"crash": ("restart", "xxx", "down"), "pause": ("resume", "///", "stands still")}
_MARKS = {
    # Marker, colour, size, how far above its row's block, and what the legend says.
    "swept": ("|", "black", 12, 0.0, "lease swept: free for others"),
    "raised": ("v", RED, 5, 0.0, "handler raised"),
    "aborted": ("s", RED, 5, 0.32, "job taken from its handler"),
    "rejected": ("P", RED, 7, 0.0, "write refused"),
}
_STORE = "database"


# Faults.


def draw_faults(canvas: Canvas) -> None:
    """Draw when hosts were down, stood still, were cut off or asked to stop, and what else the laboratory did."""
    faults = canvas.events[canvas.events["kind"] == "fault"]
    other: dict[str, list[tuple[str, float]]] = {}
    for host, rows in faults.groupby("host", observed=True):
        began: dict[str, float] = {}
        for detail, time_s, until_us in zip(rows["detail"], rows["time_s"], rows["until_us"], strict=True):
            ended = next((name for name, (end, _, _) in _ABSENCES.items() if end == detail), None)
            until_s = None if pd.isna(until_us) else (int(until_us) - EPOCH_US) / 1e6
            if host in canvas.lanes.spans and detail in _ABSENCES:
                began[detail] = time_s
            elif ended is not None:
                _draw_absence(canvas, str(host), ended, began.pop(ended, time_s), time_s)
            elif host in canvas.lanes.spans and detail.startswith("cut off") and until_s is not None:
                _draw_cut(canvas, str(host), time_s, until_s)
            elif not detail.startswith("reconnected"):
                other.setdefault(str(host), []).append((detail, time_s))
        for detail, since_s in began.items():
            _draw_absence(canvas, str(host), detail, since_s, canvas.time.end_s)
    for host, struck in other.items():
        _draw_strikes(canvas, host, struck)
    stopping = canvas.events[canvas.events["kind"] == "stopping"]
    for host, time_s in zip(stopping["host"], stopping["time_s"], strict=True):
        if host in canvas.lanes.spans:
            _draw_stopping(canvas, str(host), time_s)


def _draw_stopping(canvas: Canvas, host: str, time_s: float) -> None:
    upper, lower = canvas.lanes.edges(host)
    style: dict[str, Any] = {"color": "0.25", "linestyle": "--", "linewidth": 1.2}
    canvas.ax.vlines([time_s], upper, lower, zorder=5, **style)
    canvas.explain("asked to stop", Line2D([], [], **style))


def _draw_absence(canvas: Canvas, host: str, kind: str, since_s: float, until_s: float) -> None:
    upper, lower = canvas.lanes.edges(host)
    _, hatch, says = _ABSENCES[kind]
    style: dict[str, Any] = {"edgecolor": "0.65", "hatch": hatch, "linewidth": 0}
    # Grey below, hatched above: a handler's block in it stands still too.
    canvas.ax.fill_betweenx([upper, lower], since_s, until_s, zorder=0.5, facecolor="0.93", linewidth=0)
    canvas.ax.fill_betweenx([upper, lower], since_s, until_s, zorder=4.6, facecolor="none", **style)
    canvas.ax.vlines([since_s, until_s], upper, lower, color="0.25", linewidth=1, zorder=5)
    if kind == "crash":
        # White around it, so that it is seen on a block too.
        canvas.mark(
            [since_s], [(upper + lower) / 2], "power lost", "X", "black", 11,
            markeredgecolor="white", markeredgewidth=1.2, zorder=9,
        )  # fmt: skip
    canvas.explain(says, Patch(facecolor="0.93", **style))


def _draw_cut(canvas: Canvas, host: str, since_s: float, until_s: float) -> None:
    upper, lower = canvas.lanes.edges(host)
    style: dict[str, Any] = {"facecolor": "none", "edgecolor": "0.55", "hatch": "..", "linewidth": 0}
    canvas.ax.fill_betweenx([upper, lower], since_s, min(until_s, canvas.time.end_s), zorder=0.6, **style)
    canvas.explain("cut off from the store", Patch(**style))


def _draw_strikes(canvas: Canvas, host: str, struck: Sequence[tuple[str, float]]) -> None:
    times_s = np.array([time_s for _, time_s in struck])
    keep = canvas.time.thinned(times_s)
    if host in canvas.lanes.spans:
        y = canvas.lanes.edges(host)[0] + 0.12
        canvas.mark(times_s[keep], [y] * len(keep), "another fault", "v", "0.3", 6)
        return
    style: dict[str, Any] = {"color": "0.25", "linestyle": (0, (1, 2)), "linewidth": 1.2}
    for time_s in times_s[keep]:
        canvas.ax.axvline(time_s, zorder=1.5, **style)
    says = list(dict.fromkeys(detail for detail, _ in struck))
    more = f" (and {len(says) - 1} more)" if len(says) > 1 else ""
    canvas.explain(f"{says[0]}{more}", Line2D([], [], **style))


# Claims, one by one.


def draw_claims(canvas: Canvas) -> None:
    """Draw each claim in its row: the lease pale, the wait a line, the handler a block."""
    written: dict[int, float] = {}
    canvas.explain("handler runs", Patch(color="0.35"))
    canvas.explain("held by the worker (job, t = lease token)", Line2D([], [], color="0.35", linewidth=1.5))
    canvas.explain("lease, by the database", Patch(color="0.35", alpha=0.22))
    for claim in canvas.claims:
        row = canvas.lanes.row_of(claim)
        colour = canvas.colours[claim.job_id]
        lease_s = min(claim.lease_s, canvas.time.end_s)
        until_s = lease_s if claim.swept else min(claim.ended_s, lease_s)
        canvas.ax.barh(
            row, until_s - claim.claimed_s, left=claim.claimed_s, height=0.88, color=colour, alpha=0.22,
            linewidth=0, zorder=2,
        )  # fmt: skip
        held = [claim.claimed_s, claim.ended_s if claim.swept else max(claim.ended_s, claim.claimed_s)]
        canvas.ax.plot(held, [row + _BLOCK] * 2, color=colour, linewidth=1.5, zorder=3)
        if claim.last_s > claim.ended_s + 1e-3:
            style: dict[str, Any] = {"linestyle": ":", "linewidth": 1.8}
            canvas.ax.plot([claim.ended_s, claim.last_s], [row + _BLOCK] * 2, color=colour, zorder=3, **style)
            canvas.explain("lost, but the worker has yet to learn it", Line2D([], [], color="0.35", **style))
        labelled = _draw_label(canvas, claim, row, written)
        if claim.began_s is not None and claim.stopped_s is not None:
            _draw_block(canvas, claim, claim.began_s, claim.stopped_s, whole=not labelled)


def _draw_label(canvas: Canvas, claim: Claim, row: int, written: dict[int, float]) -> bool:
    """Write a claim's label where it begins, or after its neighbour's if it lasts that long, or not at all."""
    begin, room = float(canvas.time.at(claim.claimed_s)), canvas.room(claim.label)
    at = max(min(begin, 1 - room), written.get(row, -1.0))
    if at > begin and at + room > float(canvas.time.at(claim.free_s)):
        return False
    written[row] = at + room
    canvas.write(float(canvas.time.time_s(at + 0.002)), row - 0.27, claim.label, bbox=HALO)
    return True


def _draw_block(canvas: Canvas, claim: Claim, began_s: float, stopped_s: float, *, whole: bool) -> None:
    """Draw a running handler, with the token on it; and the job too where its row had no room for its label."""
    row, colour = canvas.lanes.row_of(claim), canvas.colours[claim.job_id]
    canvas.ax.barh(
        row + _BLOCK, stopped_s - began_s, left=began_s, height=0.46, color=colour, edgecolor="0.15",
        linewidth=0.6, zorder=4,
    )  # fmt: skip
    left, right = float(canvas.time.at(began_s)), float(canvas.time.at(stopped_s))
    fits = [text for text in (claim.label, f"t{claim.token}") if right - left > canvas.room(text)]
    if fits:
        text = fits[0] if whole else fits[-1]
        red, green, blue = to_rgb(colour)
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        middle = float(canvas.time.time_s((left + right) / 2))
        canvas.write(middle, row + _BLOCK, text, ha="center", color="white" if dark else "black")


# Claims, too many to tell apart.


def draw_load(canvas: Canvas) -> None:
    """Draw how many handlers ran on each host."""
    edges = canvas.time.bins(600)
    spans = {host: _handlers(canvas.claims, host) for host in canvas.lanes.spans}
    peaks = {host: _peak(began, stopped) for host, (began, stopped) in spans.items()}
    highest = max(1, *peaks.values())
    for host, (began, stopped) in spans.items():
        # The mean over each bin, from how much handler time had passed at its edges.
        passed = _time_since(began, edges) - _time_since(stopped, edges)
        running = np.diff(passed) / np.diff(edges)
        lower = canvas.lanes.edges(host)[1]
        canvas.ax.fill_between(
            edges, lower, lower - 0.68 * np.append(running, running[-1]) / highest, step="post",
            color=PALETTE[0], alpha=0.55, linewidth=0, zorder=2,
        )  # fmt: skip
        canvas.write(
            float(canvas.time.time_s(0.004)), lower - 0.84, f"at most {peaks[host]} at once", bbox=HALO
        )
    canvas.explain("handlers running, on average", Patch(color=PALETTE[0], alpha=0.55))


def _handlers(claims: Sequence[Claim], host: str) -> tuple[Any, Any]:
    mine = [claim for claim in claims if claim.host == host and claim.began_s is not None]
    return np.sort([claim.began_s or 0.0 for claim in mine]), np.sort(
        [claim.stopped_s or 0.0 for claim in mine]
    )


def _peak(began: Any, stopped: Any) -> int:
    return int((np.arange(1, len(began) + 1) - np.searchsorted(stopped, began, "right")).max(initial=0))


def _time_since(moments: Any, at: Any) -> Any:
    """Return, for each time, the sum of the times since the moments before it."""
    before = np.searchsorted(moments, at, "right")
    return before * at - np.concatenate([[0.0], np.cumsum(moments)])[before]


# Marks.


def draw_marks(canvas: Canvas) -> None:
    """Mark what ended a claim badly: swept leases, refused writes, handlers stopped or raising."""
    lanes, events = canvas.lanes, canvas.events
    for kind, (marker, colour, size, above, says) in _MARKS.items():
        rows = events[(events["kind"] == kind) & events["host"].isin(list(lanes.spans))]
        y = np.array([place[1] for event in rows.to_dict("records") if (place := _place(canvas, event))])
        times_s = rows["time_s"].to_numpy(dtype=float)
        # One by one there are few; as load each lane has one height, and is thinned for itself.
        for height in np.unique(y):
            at_s = times_s[y == height]
            keep = canvas.time.thinned(at_s)
            canvas.mark(at_s[keep], np.full(len(keep), height - above), says, marker, colour, size)


def draw_violations(canvas: Canvas, checks: Sequence[CheckResult]) -> None:
    """Ring the events that a failed check found, and name the check at the last of them."""
    again = _again(canvas.events)
    named: dict[tuple[float, float], list[str]] = {}
    for check in checks:
        found = canvas.events.iloc[[] if check.verdict is not Verdict.INVALID else list(check.offending)]
        # A change that happened again is ringed already, and says so.
        found = found[~(found["kind"].isin(["effect", "duplicate"]) & found["job_id"].isin(again["job_id"]))]
        rings = [
            ring for ring in (_place(canvas, row) for row in found.to_dict("records")) if ring is not None
        ]
        if not rings:
            continue
        at_s, y = np.array(rings).T
        keep = canvas.time.thinned(at_s)
        canvas.mark(
            at_s[keep], y[keep], "what a failed check found", "o", RED, 14, markerfacecolor="none", markeredgewidth=1.8,
            zorder=8,
        )  # fmt: skip
        named.setdefault(max(rings), []).append(check.name)
    for (time_s, y), names in named.items():
        at = float(canvas.time.at(time_s))
        side, shift = ("right", -0.012) if at > 0.5 else ("left", 0.012)
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        canvas.write(
            float(canvas.time.time_s(at + shift)), y, ", ".join(names[:2]) + more, ha=side, color=RED, fontsize=8.5,
            fontweight="bold", bbox=HALO,
        )  # fmt: skip


def _place(canvas: Canvas, event: Mapping[Any, Any]) -> tuple[float, float] | None:
    """Return where on the picture an event stands, if it does."""
    lanes, time_s, host = canvas.lanes, float(event["time_s"]), str(event["host"])
    if event["kind"] in {"effect", "duplicate"}:
        return time_s, canvas.world
    row = None if pd.isna(event["token"]) else lanes.row(event["job_id"], event["token"], host, time_s)
    if row is not None:
        return time_s, row + _BLOCK
    return (time_s, lanes.middle(host)) if host in lanes.spans else None


# The outside world.


def _again(events: pd.DataFrame) -> pd.DataFrame:
    """Return every change of the world after the first for the same job."""
    changed = events[events["kind"] == "effect"]
    return changed[changed.duplicated("job_id")]


def draw_world(canvas: Canvas) -> None:
    """Draw each change of the outside world, each that it refused, and each that happened again."""
    events, y = canvas.events, canvas.world
    changed = events[events["kind"] == "effect"]
    again = _again(events)
    refused = events[events["kind"] == "duplicate"]
    style: dict[str, Any] = {"markeredgecolor": "black", "markeredgewidth": 1.0}
    if len(changed) > MAX_BARS:
        _draw_rate(canvas, changed)
    for time_s, job_id in _pairs(changed if len(changed) <= MAX_BARS else changed.iloc[:0]):
        colour = canvas.colours.get(job_id, "0.5")
        canvas.mark([time_s], [y], "world changed", "D", "black", 7, markerfacecolor=colour, **style)
    if not refused.empty:
        at_s = refused["time_s"].to_numpy(dtype=float)
        at_s = at_s[canvas.time.thinned(at_s, most=MAX_BARS)]
        says = "second change refused"
        canvas.mark(
            at_s, [y] * len(at_s), says, "D", "black", 7, markerfacecolor="white", zorder=7.5, **style
        )
    if not again.empty:
        _draw_again(canvas, again)
    if len(changed) <= MAX_BARS:
        _draw_names(canvas, pd.concat([again, refused.iloc[:MAX_BARS], changed]))


def _pairs(events: pd.DataFrame) -> Iterator[tuple[float, str]]:
    return zip(events["time_s"].astype(float), events["job_id"].astype(str), strict=True)


def _draw_names(canvas: Canvas, events: pd.DataFrame) -> None:
    """Name the job of each change, the noteworthy first, in two lines; what has no room is left out."""
    taken: tuple[list[tuple[float, float]], ...] = ([], [])
    for time_s, job_id in _pairs(events[~events.index.duplicated()]):
        name = job_id[:4]
        at, half = float(canvas.time.at(time_s)), canvas.room(name) / 2
        for line, spans in enumerate(taken):
            if all(at + half <= left or at - half >= right for left, right in spans):
                spans.append((at - half, at + half))
                canvas.write(time_s, canvas.world + 0.58 + 0.36 * line, name, ha="center")
                break


def _draw_rate(canvas: Canvas, changed: pd.DataFrame) -> None:
    counts, edges = np.histogram(changed["time_s"].to_numpy(dtype=float), canvas.time.bins(200))
    lower = canvas.world + 0.55
    canvas.ax.set_ylim(canvas.world + 0.7, -0.65)  # No names below.
    canvas.ax.fill_between(
        edges, lower, lower - 0.8 * np.append(counts, 0) / counts.max(), step="post", color="0.25", linewidth=0,
        zorder=3,
    )  # fmt: skip
    canvas.explain(f"world changed ({len(changed):,} times)", Patch(color="0.25"))


def _draw_again(canvas: Canvas, again: pd.DataFrame) -> None:
    """Ring every further change for the same job, and say so where there is room for words."""
    one_by_one = again if (canvas.events["kind"] == "effect").sum() <= MAX_BARS else again.iloc[:0]
    for time_s, job_id in _pairs(one_by_one):
        style = {
            "markeredgecolor": "black",
            "markerfacecolor": canvas.colours.get(job_id, "0.5"),
            "zorder": 7.8,
        }
        canvas.mark([time_s], [canvas.world], "world changed", "D", "black", 7, **style)
    at_s = again["time_s"].to_numpy(dtype=float)
    keep = canvas.time.thinned(at_s)
    canvas.mark(
        at_s[keep], [canvas.world] * len(keep), "the same job changed it again", "o", RED, 15, markerfacecolor="none",
        markeredgewidth=1.8, zorder=8,
    )  # fmt: skip
    jobs = list(dict.fromkeys(again["job"].astype(str)))
    words = f"2nd effect: {', '.join(job[:4] for job in jobs[:4])}"
    if len(jobs) > 4:
        words = f"2nd effect of {len(jobs)} jobs"
    middle = (float(canvas.time.at(at_s.min())) + float(canvas.time.at(at_s.max()))) / 2
    half = 0.6 * canvas.room(words)
    canvas.write(
        float(canvas.time.time_s(min(max(middle, half), 1 - half))), canvas.world - 0.72, words, ha="center",
        color=RED, fontsize=8.5, fontweight="bold", bbox=HALO,
    )  # fmt: skip
