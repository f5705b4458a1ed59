"""Checks: the invariants of the scheduler, judged over a history and the final tables.

Each check is a pure function from :class:`Evidence` to a :class:`CheckResult`: VALID, INVALID with the events
that show it, or UNKNOWN when the evidence cannot tell. Database time decides wherever it is compared.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from scheduler.jobs import TERMINAL, Job, JobState
from simlab.effects import Effect
from simlab.history import Event, History

__all__ = ["CHECKS", "CheckResult", "Evidence", "Verdict", "judge", "overall"]


class Verdict(enum.StrEnum):
    """What a check, or a run, came to."""

    VALID = "VALID"
    INVALID = "INVALID"
    UNKNOWN = "UNKNOWN"

    @property
    def exit_code(self) -> int:
        """What a command ends with: 0, 1, 2."""
        return ("VALID", "INVALID", "UNKNOWN").index(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check's verdict.

    `offending` are positions in the history, in order; `says` is one sentence of what went wrong.
    """

    name: str
    verdict: Verdict
    says: str = ""
    offending: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a run left behind."""

    history: History
    table: Sequence[Job]
    effects: Sequence[Effect]
    by_job: Mapping[UUID, Sequence[tuple[int, Event]]] = field(init=False)

    def __post_init__(self) -> None:
        by_job: dict[UUID, list[tuple[int, Event]]] = {}
        for index, event in enumerate(self.history):
            if event.job is not None:
                by_job.setdefault(event.job, []).append((index, event))
        object.__setattr__(self, "by_job", by_job)


@dataclass(frozen=True, slots=True)
class _Problem:
    says: str
    offending: tuple[int, ...] = ()


Problems = Iterable[_Problem]

_ENDS = frozenset({"finished", "swept", "cancelled"})
_WRITES = frozenset({"started", "renewed", "finished"})


def _name(job: UUID | None) -> str:
    return str(job)[:8]


def _leaves_row(event: Event) -> bool:
    """Say whether this event ended the lease it is about: a cancellation only when it won."""
    return event.kind in _ENDS and (event.kind != "cancelled" or event.detail == "cancelled")


def one_live_lease(evidence: Evidence) -> Problems:
    """At most one live lease a job, by the database's time."""
    for job, events in evidence.by_job.items():
        until_us, holder, since = -1, "", -1
        for index, event in events:
            if event.kind == "claimed":
                if event.db_us < until_us:
                    yield _Problem(
                        f"job {_name(job)} was leased to {event.host} (token {event.token}) while the lease of "
                        f"{holder} had {(until_us - event.db_us) / 1e6:g} s to run",
                        (since, index),
                    )
                until_us, holder, since = event.until_us, f"{event.host} (token {event.token})", index
            elif event.kind == "renewed":
                until_us = event.until_us
            elif _leaves_row(event):
                until_us = -1


def token_rises(evidence: Evidence) -> Problems:
    """The lease token of a job strictly rises from claim to claim."""
    for job, events in evidence.by_job.items():
        last, since = 0, -1
        for index, event in events:
            if event.kind == "claimed":
                if event.token <= last:
                    yield _Problem(
                        f"job {_name(job)} was claimed with token {event.token} after token {last}",
                        (index,) if since < 0 else (since, index),
                    )
                last, since = max(last, event.token), index


def no_stale_write(evidence: Evidence) -> Problems:
    """No write is accepted from anybody but the holder of the newest lease."""
    for job, events in evidence.by_job.items():
        newest, since, held = 0, -1, False
        for index, event in events:
            if event.kind == "claimed":
                newest, since, held = event.token, index, True
            elif event.kind in _WRITES and (event.token != newest or not held):
                owner = f"token {newest}" if held else "nobody"
                yield _Problem(
                    f"{event.host} wrote '{event.kind}' to job {_name(job)} with token {event.token}, "
                    f"though the job was held by {owner}",
                    (index,) if since < 0 else (since, index),
                )
            if _leaves_row(event):
                held = False


def all_end(evidence: Evidence) -> Problems:
    """Every acknowledged job ends: it is in a terminal state once the faults are over."""
    rows = {row.job_id: row for row in evidence.table}
    for job, events in evidence.by_job.items():
        first = next((index for index, event in events if event.kind == "enqueued"), None)
        if first is None:
            continue
        row = rows.get(job)
        if row is None:
            yield _Problem(f"job {_name(job)} was acknowledged and is not in the table", (first,))
        elif row.state not in TERMINAL:
            yield _Problem(f"job {_name(job)} is still {row.state} at the end", (first, events[-1][0]))


def _state_after(event: Event) -> JobState | None:
    if event.kind == "cancelled":
        return JobState.CANCELLED if event.detail == "cancelled" else None
    if event.kind in {"finished", "swept"}:
        return JobState(event.detail.rpartition(" to ")[2])
    return {"claimed": JobState.CLAIMED, "started": JobState.RUNNING}.get(event.kind)


def terminal_absorbs(evidence: Evidence) -> Problems:
    """Nothing happens to a job after it has ended, but an operator's replay."""
    for job, events in evidence.by_job.items():
        ended: tuple[int, JobState] | None = None
        for index, event in events:
            after = _state_after(event)
            if event.kind == "replayed":
                ended = None
            elif ended is not None and after is not None:
                yield _Problem(
                    f"job {_name(job)} was {ended[1]} and became {after} by '{event.kind}' from {event.host}",
                    (ended[0], index),
                )
            if after in TERMINAL:
                ended = (index, after)


def attempts_bounded(evidence: Evidence) -> Problems:
    """A job is executed at most as often as it was claimed, and claimed at most `max_attempts` times."""
    rows = {row.job_id: row for row in evidence.table}
    for job, events in evidence.by_job.items():
        claims: list[int] = []
        runs: list[int] = []
        for index, event in events:
            if event.kind == "replayed":
                claims, runs = [], []
            elif event.kind == "claimed":
                claims.append(index)
            elif event.kind == "finished" and event.detail.startswith("released") and claims:
                claims.pop()
            elif event.kind == "executing":
                runs.append(index)
                if len(runs) > len(claims):
                    yield _Problem(
                        f"job {_name(job)} ran {len(runs)} times on {len(claims)} claims", tuple(runs)
                    )
            limit = rows[job].max_attempts if job in rows else None
            if limit is not None and len(claims) > limit:
                yield _Problem(
                    f"job {_name(job)} was claimed {len(claims)} times, at most {limit} allowed",
                    tuple(claims),
                )


def never_early(evidence: Evidence) -> Problems:
    """No handler begins before its job is due, by the database's time."""
    for job, events in evidence.by_job.items():
        for index, event in events:
            if event.kind == "executing" and event.db_us < event.due_us:
                yield _Problem(
                    f"job {_name(job)} began on {event.host} {(event.due_us - event.db_us) / 1e6:g} s early",
                    (index,),
                )


def running_is_leased(evidence: Evidence) -> Problems:
    """No row is CLAIMED or RUNNING without an owner and an expiry, nor leased in any other state."""
    for row in evidence.table:
        leased = row.state in {JobState.CLAIMED, JobState.RUNNING}
        if leased != (row.lease_owner is not None) or leased != (row.lease_expires_at_us is not None):
            yield _Problem(f"job {_name(row.job_id)} is {row.state} with owner {row.lease_owner}")


def dead_letters_earned(evidence: Evidence) -> Problems:
    """A job is FAILED only when its attempts or its age are truly exhausted."""
    for row in evidence.table:
        if row.state is not JobState.FAILED:
            continue
        ended_us = row.finished_at_us if row.finished_at_us is not None else -1
        # A retry that would come after the age limit is refused before the limit itself has passed.
        aged = row.expires_at_us is not None and (ended_us >= row.expires_at_us or row.attempt > 0)
        if row.attempt < row.max_attempts and not aged:
            yield _Problem(
                f"job {_name(row.job_id)} is FAILED after {row.attempt} of {row.max_attempts} attempts"
            )


def cancelled_never_runs(evidence: Evidence) -> Problems:
    """A job whose cancellation won is never run."""
    for job, events in evidence.by_job.items():
        won: int | None = None
        for index, event in events:
            if event.kind == "cancelled" and event.detail == "cancelled":
                won = index
            elif event.kind == "executing" and won is not None:
                yield _Problem(
                    f"job {_name(job)} ran on {event.host} after its cancellation had won", (won, index)
                )


def one_effect(evidence: Evidence) -> Problems:
    """The outside world is changed once for each job that succeeded, and at most once for any other."""
    changes: dict[UUID, int] = {}
    for effect in evidence.effects:
        changes[effect.job_id] = changes.get(effect.job_id, 0) + 1
    for row in evidence.table:
        count = changes.get(row.job_id, 0)
        if count > 1 or (count == 0 and row.state is JobState.SUCCEEDED):
            shown = tuple(
                index for index, event in evidence.by_job.get(row.job_id, ()) if event.kind == "effect"
            )
            yield _Problem(
                f"job {_name(row.job_id)} is {row.state} and changed the world {count} times", shown
            )


CHECKS: Mapping[str, Callable[[Evidence], Problems]] = {
    "one-live-lease": one_live_lease,
    "token-rises": token_rises,
    "no-stale-write": no_stale_write,
    "all-end": all_end,
    "terminal-absorbs": terminal_absorbs,
    "attempts-bounded": attempts_bounded,
    "never-early": never_early,
    "running-is-leased": running_is_leased,
    "dead-letters-earned": dead_letters_earned,
    "cancelled-never-runs": cancelled_never_runs,
    "one-effect": one_effect,
}
"""Every check, by name; the first line of its docstring is the invariant."""


def judge(evidence: Evidence, names: Iterable[str] = tuple(CHECKS)) -> list[CheckResult]:
    """Run checks. One that has nothing to look at says UNKNOWN: a green run that tried nothing must show."""
    results = []
    for name in names:
        if not evidence.table:
            results.append(CheckResult(name=name, verdict=Verdict.UNKNOWN, says="no job was ever enqueued"))
            continue
        problems = list(CHECKS[name](evidence))
        results.append(
            CheckResult(
                name=name,
                verdict=Verdict.INVALID if problems else Verdict.VALID,
                says=_summary(problems),
                offending=problems[0].offending if problems else (),
            )
        )
    return results


def _summary(problems: Sequence[_Problem]) -> str:
    if not problems:
        return ""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return problems[0].says + more


def overall(results: Iterable[CheckResult]) -> Verdict:
    """Return INVALID if any check says so, else UNKNOWN if any does, else VALID."""
    verdicts = {result.verdict for result in results}
    for verdict in (Verdict.INVALID, Verdict.UNKNOWN):
        if verdict in verdicts:
            return verdict
    return Verdict.VALID if verdicts else Verdict.UNKNOWN
