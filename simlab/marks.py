"""Marks: the interesting things that may happen in a run, and how often they did.

A green run that tried nothing looks like a green run. A mark says that something worth trying came about; a
sweep or a search reports the marks that never did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from simlab.history import Event, History

__all__ = ["MARKS", "count_marks", "never"]


def _kind(kind: str, *details: str) -> Callable[[Event], bool]:
    return lambda event: event.kind == kind and (not details or event.detail.startswith(details))


MARKS: Mapping[str, Callable[[Event], bool]] = {
    "a lease expired": _kind("swept", "CLAIMED to", "RUNNING to"),
    "an exhausted job was swept": lambda event: event.kind == "swept" and event.detail.endswith("FAILED"),
    "a job aged out": _kind("swept", "PENDING to"),
    "a lease was renewed": _kind("renewed"),
    "a late outcome was refused": _kind("rejected", "finish"),
    "a late heartbeat was refused": _kind("rejected", "heartbeat"),
    "a start was refused": _kind("rejected", "start"),
    "a loser was aborted": _kind("aborted", "lost"),
    "a worker gave up by its own count": _kind("aborted", "expired"),
    "a lost reply was recovered": _kind("recovered"),
    "a repeated enqueue found its job": _kind("enqueued", "already there"),
    "an idempotency key was another request's": _kind("enqueued", "conflict"),
    "a job was not due yet by the database": _kind("early"),
    "a handler raised": _kind("raised", "retry"),
    "a retry was scheduled": _kind("finished", "retry to PENDING"),
    "a job became a dead letter": _kind("finished", "failed", "retry to FAILED"),
    "a dead letter was replayed": _kind("replayed"),
    "a cancellation won": _kind("cancelled", "cancelled"),
    "a cancellation was requested": _kind("cancelled", "requested"),
    "a cancellation came too late": _kind("cancelled", "too_late"),
    "a handler agreed to stop": _kind("finished", "cancelled"),
    "a job was given back": _kind("finished", "released"),
    "a worker was asked to stop": _kind("stopping"),
    "a second effect was refused": _kind("duplicate"),
    "the store did not answer": _kind("unavailable"),
    "a host lost power": _kind("fault", "crash"),
    "a host stood still": _kind("fault", "pause"),
    "a host was cut off": _kind("fault", "cut off"),
    "a message was held up": lambda event: event.kind == "fault" and " is held up by " in event.detail,
    "the store went down": _kind("fault", "the store is down"),
    "the store's clock was stepped": _kind("fault", "the store's clock is stepped"),
    "a row was locked by somebody else": _kind("fault", "an open transaction locks"),
}
"""Every mark, by what it says."""


def count_marks(history: History) -> Counter[str]:
    """Return how often each mark came about; a mark that did not is there with 0."""
    counts: Counter[str] = Counter(dict.fromkeys(MARKS, 0))
    for event in history:
        for mark, holds in MARKS.items():
            if holds(event):
                counts[mark] += 1
    return counts


def never(counts: Iterable[Mapping[str, int]]) -> list[str]:
    """Return the marks that came about in none of several runs."""
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return [mark for mark in MARKS if not total[mark]]
