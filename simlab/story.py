"""The story of one job: the events that concern it, as sentences, with who believed what.

Told from a history alone. What the holder of a lease believes is what the database last told it; the story
says so wherever the database has moved on without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from simlab.history import Event, History
from simlab.hosts import EPOCH_US

__all__ = ["tell_job"]

_UNTOLD = frozenset({"renewed", "fired"})
_HOST_FAULTS = {
    "crash": "{host} loses power",
    "restart": "{host} starts again, remembering nothing",
    "pause": "{host} stands still",
    "resume": "{host} goes on, as if no time had passed",
}

MAX_LINES = 60
"""The most lines of one story; the middle of a longer one is left out."""


def tell_job(history: History, job: UUID, *, marked: Sequence[int] = ()) -> list[str]:
    """Return the story of a job, one line an event, in order.

    Parameters
    ----------
    marked
        Positions in the history to mark with ``>``: what a check found.
    """
    teller = _Teller()
    involved = {event.host for event in history if event.job == job} | {"database"}
    lines = []
    for position, event in enumerate(history):
        concerns = event.job == job or (event.kind == "fault" and event.host in involved and teller.begun)
        if not concerns:
            continue
        sentence = teller.tell(event)
        if event.kind not in _UNTOLD or position in marked:
            lines.append(f"{'>' if position in marked else ' '} {event.time_us / 1e6:11.6f} s  {sentence}")
    if len(lines) > MAX_LINES:
        half = MAX_LINES // 2
        lines = [*lines[:half], f"  ... {len(lines) - MAX_LINES} more lines ...", *lines[-half:]]
    return lines


class _Teller:
    """Knows what each worker was last told of its lease, while a story is told."""

    def __init__(self) -> None:
        self.begun = False
        self._until_us: dict[tuple[str, int], int] = {}
        # The claims nobody has told their worker the end of, oldest first.
        self._believers: dict[tuple[str, int], None] = {}
        self._token = 0
        self._owner = ""

    def tell(self, event: Event) -> str:
        self.begun = True
        tell = getattr(self, f"_tell_{event.kind}", None)
        if tell is None:
            return f"{event.host}: {event.kind}{_in_brackets(event.detail)}"
        sentence: str = tell(event)
        return sentence

    def _tell_enqueued(self, event: Event) -> str:
        if event.detail == "already there":
            return f"{event.host} enqueues it again: the job is already there"
        if event.detail.startswith("conflict"):
            return f"{event.host} enqueues something else under its idempotency key, and is refused"
        return f"{event.host} enqueues it, due at {_at(event.due_us)}"

    def _tell_claimed(self, event: Event) -> str:
        others = self._beliefs(but=event.host)
        self._token, self._owner = event.token, event.host
        self._until_us[event.host, event.token] = event.until_us
        self._believers[event.host, event.token] = None
        return f"{event.host} claims it: token {event.token}, lease to {_at(event.until_us)}{others}"

    def _tell_renewed(self, event: Event) -> str:
        self._until_us[event.host, event.token] = event.until_us
        return f"{event.host} renews its lease (token {event.token}) to {_at(event.until_us)}{self._if_stale(event)}"

    def _tell_started(self, event: Event) -> str:
        return f"{event.host} marks it RUNNING with token {event.token}{self._if_stale(event)}"

    def _tell_executing(self, event: Event) -> str:
        return f"its handler begins on {event.host}, attempt {event.attempt}{self._if_stale(event)}"

    def _tell_executed(self, event: Event) -> str:
        return f"its handler returns on {event.host}"

    def _tell_raised(self, event: Event) -> str:
        return f"its handler raises on {event.host}{_in_brackets(event.detail)}"

    def _tell_effect(self, event: Event) -> str:
        return f"the outside world is CHANGED for it, by {event.host} with token {event.token}"

    def _tell_duplicate(self, event: Event) -> str:
        return f"the outside world refuses {event.host} (token {event.token}): it has seen this job"

    def _tell_swept(self, event: Event) -> str:
        was, _, now = event.detail.partition(" to ")
        until_us = self._until_us.get((self._owner, self._token), -1)
        why = "too old to run" if was == "PENDING" else "its lease has expired"
        if was != "PENDING" and event.db_us < until_us:
            why = f"it thinks that the lease has expired, but {self._owner} has it to {_at(until_us)}"
        return f"{event.host} sweeps it: {why}, {was} becomes {now}{self._beliefs(but='')}"

    def _tell_finished(self, event: Event) -> str:
        stale = self._if_stale(event)
        self._believers.pop((event.host, event.token), None)
        kind, _, now = event.detail.partition(" to ")
        return f"{event.host} writes '{kind}' with token {event.token}: it is {now}{stale}"

    def _tell_cancelled(self, event: Event) -> str:
        answer = {
            "cancelled": "and it is CANCELLED",
            "requested": "while it runs, so that its handler is asked to stop",
            "too_late": "but it has ended",
        }
        return f"{event.host} cancels it, {answer.get(event.detail, event.detail)}"

    def _tell_early(self, event: Event) -> str:
        return f"{event.host} is told that it is not due yet, and waits again"

    def _tell_replayed(self, event: Event) -> str:
        return f"{event.host} replays it: PENDING again, with all its attempts before it"

    def _tell_recovered(self, event: Event) -> str:
        self._believers.pop((event.host, event.token), None)
        return f"{event.host} writes '{event.detail}' again: the first time had counted, its reply was lost"

    def _tell_rejected(self, event: Event) -> str:
        self._believers.pop((event.host, event.token), None)
        held = f"the job is at token {self._token}" if self._token != event.token else "the lease is over"
        return f"{event.host}'s {event.detail} with token {event.token} is REFUSED: {held}"

    def _tell_aborted(self, event: Event) -> str:
        self._believers.pop((event.host, event.token), None)
        why = {
            "lost": "the database says it is lost",
            "expired": "its lease has run out by its own count",
            "drain": "it was asked to stop, and its drain has run out of time",
        }
        return f"{event.host} stops it: {why.get(event.detail, event.detail)}"

    def _tell_fault(self, event: Event) -> str:
        if event.detail in {"crash", "restart"}:
            for believer in [pair for pair in self._believers if pair[0] == event.host]:
                del self._believers[believer]
        if event.detail.startswith(("cut off", "reconnected")):
            return f"{event.host} is {event.detail}"
        return _HOST_FAULTS.get(event.detail, "{detail}").format(host=event.host, detail=event.detail)

    def _beliefs(self, *, but: str) -> str:
        """Say which other workers still count on a lease they were once given."""
        told = [
            f"{host} thinks it has it to {_at(self._until_us[host, token])} (token {token})"
            for host, token in self._believers
            if host != but
        ]
        return f"; {', '.join(told)}" if told else ""

    def _if_stale(self, event: Event) -> str:
        if event.token == self._token:
            return ""
        return f", though {self._owner} has it with token {self._token}"


def _at(db_us: int) -> str:
    return f"{(db_us - EPOCH_US) / 1e6:.6f} s"


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""
