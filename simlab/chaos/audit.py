"""From what a run of real processes left behind to a History, so that the same checks can judge it.

Three sources, each with this machine's clock: the audit that a trigger writes (what the database did), the journals
of the workers' handlers (what was executed), and what the laboratory itself did. They are put in the order of their
instants; per job the audit's own sequence has the say.

A trigger sees which row was changed, and by whom, but not which lease the writer named. That is told from what is
known of the writer: whoever writes to a row somebody else holds must have named an older lease of his own, or none;
and whoever records a success must have executed the job under the lease he names.

Instants are moved so that the run begins at the laboratory's epoch, as in every other world.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from scheduler.jobs import Job, instant_to_us
from simlab.effects import Effect
from simlab.history import History
from simlab.hosts import EPOCH_US

__all__ = [
    "AuditLine",
    "Incident",
    "JournalLine",
    "Story",
    "build_history",
    "install_audit",
    "read_audit",
    "read_effects",
    "read_journals",
    "rebased",
]

CLIENT = "client"
"""The writer that enqueues and cancels."""

_SWEPT = ("the lease expired: ", "the age limit passed ")
"""How the errors begin that a sweep writes, and nobody else."""

_HELD = frozenset({"CLAIMED", "RUNNING"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """One change of one row. `old` is empty for an insert, `new` for a deletion."""

    seq: int
    at_us: int
    now_us: int
    writer: str
    job: UUID
    old: Mapping[str, Any]
    new: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLine:
    """One step of a handler, as it noted it itself."""

    at_us: int
    writer: str
    kind: str
    job: UUID
    token: int
    attempt: int
    due_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something the laboratory did: at once, or for a while."""

    at_us: int
    host: str
    incarnation: int = 0
    detail: str
    for_us: int | None = None


@dataclass(frozen=True, kw_only=True)
class Story:
    """All that is known of a run, each part by this machine's clock in microseconds since the Unix epoch."""

    start_us: int
    audit: Sequence[AuditLine]
    journal: Sequence[JournalLine] = ()
    incidents: Sequence[Incident] = ()
    effects: Sequence[tuple[int, Effect]] = ()
    acknowledged: Mapping[UUID, int] = field(default_factory=dict)
    """The jobs a client was told are in the table, and when it was told."""


@dataclass(frozen=True, slots=True)
class _Lost:
    """A job that a client was told of and that never was in the table."""

    at_us: int
    job: UUID


def install_audit(connection: psycopg.Connection[Any]) -> None:
    """Make the audit's table and trigger beside the table of jobs."""
    text = (resources.files("simlab") / "chaos" / "audit.sql").read_text(encoding="utf-8")
    connection.execute(text.encode())


def read_audit(connection: psycopg.Connection[Any]) -> list[AuditLine]:
    """Return every line, in the order of the sequence."""
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute("SELECT * FROM audit ORDER BY seq").fetchall()
    return [
        AuditLine(
            seq=row["seq"],
            at_us=instant_to_us("at", row["at"]),
            now_us=instant_to_us("now_at", row["now_at"]),
            writer=row["writer"],
            job=row["job_id"],
            old=row["old_row"] or {},
            new=row["new_row"] or {},
        )
        for row in rows
    ]


def read_effects(connection: psycopg.Connection[Any], writers: Mapping[int, str]) -> list[tuple[int, Effect]]:
    """Return the changes of the world with their instants, in order; `writers` are processes by their ids."""
    rows = connection.execute("SELECT job_id, token, pid, at FROM effects ORDER BY at, key").fetchall()
    return [
        (
            instant_to_us("at", at),
            Effect(
                job_id=job_id,
                token=token,
                host=_life(writers.get(pid, f"process {pid}"))[0],
                at_us=instant_to_us("at", at),
            ),
        )
        for job_id, token, pid, at in rows
    ]


def read_journals(folder: Path) -> list[JournalLine]:
    """Return what all handlers noted, each worker's lines in order. A last line cut short is left out."""
    lines = []
    for path in sorted(folder.glob("*.journal")):
        for text in path.read_text(encoding="ascii").splitlines():
            words = text.split(" ")
            if len(words) != 6:
                continue
            at_us, kind, job, token, attempt, due_us = words
            lines.append(
                JournalLine(
                    at_us=int(at_us),
                    writer=path.stem,
                    kind=kind,
                    job=UUID(job),
                    token=int(token),
                    attempt=int(attempt),
                    due_us=int(due_us),
                )
            )
    return lines


def build_history(story: Story) -> History:
    """Put everything in order and name it as the simulation does."""
    teller = _Teller(story.start_us)
    in_order: list[tuple[int, int, int, Any]] = []
    # At one instant: what the laboratory did, then the database, then the handlers it allowed.
    in_order += [(incident.at_us, 0, n, incident) for n, incident in enumerate(story.incidents)]
    in_order += [(at_us, 1, line.seq, line) for at_us, line in _by_sequence(story.audit)]
    in_order += [(line.at_us, 2, n, line) for n, line in enumerate(story.journal)]
    in_order += [(at_us, 3, n, effect) for n, (at_us, effect) in enumerate(story.effects)]
    inserted = {line.job for line in story.audit if not line.old}
    lost = [_Lost(at_us, job) for job, at_us in story.acknowledged.items() if job not in inserted]
    in_order += [(one.at_us, 4, n, one) for n, one in enumerate(lost)]
    for _, _, _, item in sorted(in_order, key=lambda entry: entry[:3]):
        teller.tell(item)
    return teller.history


def _by_sequence(audit: Iterable[AuditLine]) -> Iterable[tuple[int, AuditLine]]:
    """Give each line an instant no earlier than that of the line before it of the same job."""
    latest: dict[UUID, int] = {}
    for line in audit:
        latest[line.job] = max(latest.get(line.job, 0), line.at_us)
        yield latest[line.job], line


def _life(writer: str) -> tuple[str, int]:
    """Tell a host and its incarnation from the name of a process, such as ``w1.3``."""
    host, _, number = writer.partition("/")[0].rpartition(".")
    return (host, int(number)) if host and number.isdecimal() else (writer.partition("/")[0], 0)


def _us(text: Any) -> int:
    """Read an instant as JSON has it; -1 when there is none."""
    return -1 if text is None else instant_to_us("an instant", datetime.fromisoformat(text))


class _Teller:
    """Knows what each writer was granted and has executed, while the events are told in order."""

    def __init__(self, start_us: int) -> None:
        self.history = History()
        self._start_us = start_us
        self._granted: dict[tuple[UUID, str], int] = {}
        self._executed: dict[tuple[UUID, str], int] = {}

    def tell(self, item: AuditLine | JournalLine | Incident | Effect | _Lost) -> None:
        if isinstance(item, AuditLine):
            self._tell_change(item)
        elif isinstance(item, JournalLine):
            self._tell_step(item)
        elif isinstance(item, Incident):
            until_us = -1 if item.for_us is None else self._epoch(item.at_us + item.for_us)
            self.history.record(
                "fault",
                time_us=item.at_us - self._start_us,
                db_us=self._epoch(item.at_us),
                host=item.host,
                incarnation=item.incarnation,
                until_us=until_us,
                detail=item.detail,
            )
        elif isinstance(item, Effect):
            self.history.record(
                "effect",
                time_us=item.at_us - self._start_us,
                db_us=self._epoch(item.at_us),
                host=item.host,
                job=item.job_id,
                token=item.token,
            )
        else:
            self.history.record(
                "enqueued",
                time_us=item.at_us - self._start_us,
                db_us=self._epoch(item.at_us),
                host=CLIENT,
                job=item.job,
                detail="acknowledged, and never seen in the table",
            )

    def _epoch(self, us: int) -> int:
        return us - self._start_us + EPOCH_US if us >= 0 else -1

    def _tell_step(self, line: JournalLine) -> None:
        host, incarnation = _life(line.writer)
        if line.kind in {"executed", "raised", "aborted"}:
            self._executed[line.job, line.writer] = line.token
        self.history.record(
            line.kind,
            time_us=line.at_us - self._start_us,
            db_us=self._epoch(line.at_us),
            host=host,
            incarnation=incarnation,
            job=line.job,
            token=line.token,
            attempt=line.attempt,
            due_us=self._epoch(line.due_us),
        )

    def _tell_change(self, line: AuditLine) -> None:
        kind, detail = _classify(line)
        if kind is None:
            return
        new = line.new
        due_us = until_us = -1
        if kind in {"enqueued", "claimed", "replayed"} or detail.startswith("retry"):
            due_us = self._epoch(_us(new.get("run_at")))
        if kind in {"claimed", "renewed"}:
            until_us = self._epoch(_us(new.get("lease_expires_at")))
        if kind == "claimed":
            self._granted[line.job, line.writer] = new["lease_token"]
        host, incarnation = _life(line.writer or "a stranger")
        self.history.record(
            kind,
            time_us=line.at_us - self._start_us,
            db_us=self._epoch(line.now_us),
            host=host,
            incarnation=incarnation,
            job=line.job,
            token=self._token(line, kind, detail),
            attempt=new.get("attempt", -1) if kind != "enqueued" else -1,
            due_us=due_us,
            until_us=until_us,
            detail=detail,
        )

    def _token(self, line: AuditLine, kind: str, detail: str) -> int:
        """Return the token that the writer must have named; 0 for one that was never granted any."""
        if kind in {"enqueued", "cancelled", "replayed"}:
            return -1
        if kind in {"claimed", "swept"}:
            token: int = line.new["lease_token"]
            return token
        writer = line.writer
        granted = self._granted.get((line.job, writer), 0)
        ran = kind == "finished" and not detail.startswith("released")
        return self._executed.get((line.job, writer), 0) if ran else granted


def _classify(line: AuditLine) -> tuple[str | None, str]:
    """Say which verb made a change, as a kind of event and its detail; None for a change that is no event."""
    old, new = line.old, line.new
    if not old:
        return "enqueued", str(new["task"])
    if not new:
        # Nothing in the scheduler deletes; that the job is not in the table at the end is told by a check.
        return None, ""
    was, now = old["state"], new["state"]
    if now == "CLAIMED" and (was != "CLAIMED" or old["lease_token"] != new["lease_token"]):
        return "claimed", ""
    if now == "CANCELLED" and new["cancel_requested"] and not old["cancel_requested"]:
        return "cancelled", "cancelled"
    if now == was == "RUNNING" and new["cancel_requested"] and not old["cancel_requested"]:
        return "cancelled", "requested"
    if now == was and now in _HELD:
        return "renewed", "cancel requested" if new["cancel_requested"] else ""
    if now == "RUNNING":
        return "started", ""
    if was == "FAILED" and now == "PENDING" and new["attempt"] == 0:
        return "replayed", ""
    return _classify_end(old, new)


def _classify_end(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, str]:
    """Tell a sweep from an outcome, and one outcome from another, where a lease ended."""
    was, now = old["state"], new["state"]
    released = was == "CLAIMED" and now == "PENDING" and new["attempt"] == old["attempt"] - 1
    # An outcome that is a retry moves the job; a sweep leaves it where it was, and says why in words of its own.
    moved = new["run_at"] != old["run_at"]
    error = new["last_error"] or ""
    if error.startswith(_SWEPT) and now in {"PENDING", "FAILED", "CANCELLED"} and not (released or moved):
        return "swept", f"{was} to {now}"
    if released:
        return "finished", "released to PENDING"
    words = {"SUCCEEDED": "succeeded", "CANCELLED": "cancelled", "PENDING": "retry"}
    aged = now == "FAILED" and new["attempt"] < new["max_attempts"]
    return "finished", f"{words.get(now, 'retry' if aged else 'failed')} to {now}"


def rebased(job: Job, start_us: int) -> Job:
    """Return a row with its instants moved as the history's are."""

    def move(us: int | None) -> int | None:
        return None if us is None else us - start_us + EPOCH_US

    return replace(
        job,
        run_at_us=job.run_at_us - start_us + EPOCH_US,
        created_at_us=job.created_at_us - start_us + EPOCH_US,
        expires_at_us=move(job.expires_at_us),
        lease_expires_at_us=move(job.lease_expires_at_us),
        finished_at_us=move(job.finished_at_us),
    )
