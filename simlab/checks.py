"""Checks: the invariants of the scheduler, judged over a history and the final tables.

Each check is a pure function from :class:`Evidence` to a :class:`CheckResult`: VALID, INVALID with the events
that show it, or UNKNOWN when the evidence cannot tell. Database time decides wherever it is compared.
"""

from __future__ import annotations

import enum
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from scheduler.jobs import TERMINAL, Job, JobState
from scheduler.policy import WorkerSettings
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
    """What a run left behind.

    Attributes
    ----------
    settings
        The workers' settings, for the checks that have a bound in them.
    lateness_bound_us
        How late a job may begin once the faults are over; None when nobody promised anything.
    """

    history: History
    table: Sequence[Job]
    effects: Sequence[Effect]
    settings: WorkerSettings = field(default_factory=WorkerSettings)
    lateness_bound_us: int | None = None
    events: Sequence[Event] = field(init=False)
    by_job: Mapping[UUID, Sequence[tuple[int, Event]]] = field(init=False)

    def __post_init__(self) -> None:
        # Spelled out once: each check that reads the columns anew costs as much as judging.
        events = tuple(self.history)
        by_job: dict[UUID, list[tuple[int, Event]]] = {}
        for index, event in enumerate(events):
            if event.job is not None:
                by_job.setdefault(event.job, []).append((index, event))
        object.__setattr__(self, "events", events)
        object.__setattr__(self, "by_job", by_job)

    @property
    def crashed(self) -> set[tuple[str, int]]:
        """The lives of hosts that ended by losing power: host and incarnation."""
        return {
            (event.host, event.incarnation)
            for event in self.events
            if event.kind == "fault" and event.detail == "crash"
        }


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
    """At most one live lease a job, by the database's time; and none is swept while it lives."""
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
            elif event.kind == "swept" and event.db_us < until_us:
                yield _Problem(
                    f"{event.host} swept job {_name(job)} from {holder}, whose lease had "
                    f"{(until_us - event.db_us) / 1e6:g} s to run",
                    (since, index),
                )
                until_us = -1
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
    """No handler begins before its job is due, by the database's time.

    A database whose clock is set back after it has allowed the start, and before the handler began, has had
    its word: it was due.
    """
    for job, events in evidence.by_job.items():
        allowed: dict[int, Event] = {}
        for index, event in events:
            if event.kind == "started":
                allowed[event.token] = event
            elif event.kind == "executing" and event.db_us < event.due_us:
                start = allowed.get(event.token)
                if start is None or start.db_us < event.due_us:
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
        would_be_us = [
            event.due_us
            for _, event in evidence.by_job.get(row.job_id, ())
            if event.kind == "finished" and event.detail == "retry to FAILED"
        ]
        aged = row.expires_at_us is not None and max(ended_us, *would_be_us, -1) >= row.expires_at_us
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


def too_old_never_claimed(evidence: Evidence) -> Problems:
    """No job is claimed once its age limit has passed, by the database's time."""
    for row in evidence.table:
        if row.expires_at_us is None:
            continue
        for index, event in evidence.by_job.get(row.job_id, ()):
            if event.kind == "claimed" and event.db_us >= row.expires_at_us:
                yield _Problem(
                    f"job {_name(row.job_id)} was claimed by {event.host} "
                    f"{(event.db_us - row.expires_at_us) / 1e6:g} s after its age limit",
                    (index,),
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


def one_job_per_request(evidence: Evidence) -> Problems:
    """A request with an idempotency key is one job, however often it is made: no two keyed jobs ask for the same.

    In a laboratory every request is numbered in its payload, so that two of the same task and payload are one.
    """
    asked: dict[tuple[str, str], Job] = {}
    for row in evidence.table:
        if row.idempotency_key is None:
            continue
        request = (row.task, json.dumps(dict(row.payload), sort_keys=True))
        first = asked.setdefault(request, row)
        if first is not row:
            shown = tuple(
                index
                for job in (first.job_id, row.job_id)
                for index, event in evidence.by_job.get(job, ())
                if event.kind == "enqueued"
            )
            yield _Problem(
                f"jobs {_name(first.job_id)} and {_name(row.job_id)} are the same request: {row.task} {request[1]}",
                shown,
            )


def fence_holds(evidence: Evidence) -> Problems:
    """A fenced resource never sees the token of a job fall."""
    largest: dict[UUID, Effect] = {}
    for effect in evidence.effects:
        before = largest.get(effect.job_id)
        if before is not None and effect.token < before.token:
            shown = tuple(
                index for index, event in evidence.by_job.get(effect.job_id, ()) if event.kind == "effect"
            )
            yield _Problem(
                f"job {_name(effect.job_id)} changed the world with token {effect.token} from {effect.host} after "
                f"token {before.token} from {before.host}",
                shown,
            )
        else:
            largest[effect.job_id] = effect


def lateness_bounded(evidence: Evidence) -> Problems:
    """No job begins later than the scenario allows, counted from when it could begin and the faults were over."""
    bound_us = evidence.lateness_bound_us
    if bound_us is None:
        return
    healed_us = max((_over_us(event) for event in evidence.events if event.kind == "fault"), default=-1)
    for job, events in evidence.by_job.items():
        enqueued_us = -1
        for index, event in events:
            if event.kind == "enqueued" and enqueued_us < 0:
                enqueued_us = event.time_us
            elif event.kind == "executing" and event.time_us > healed_us:
                # In virtual time: the database's clock may have been stepped since.
                due_us = event.time_us - (event.db_us - event.due_us)
                late_us = event.time_us - max(due_us, enqueued_us, healed_us)
                if late_us > bound_us:
                    yield _Problem(
                        f"job {_name(job)} began {late_us / 1e6:g} s late on {event.host}; "
                        f"{bound_us / 1e6:g} s are allowed",
                        (index,),
                    )


def _over_us(fault: Event) -> int:
    """Return when a fault is over, in virtual microseconds, as far as its event says."""
    return fault.time_us + (fault.until_us - fault.db_us if fault.until_us >= 0 else 0)


def healthy_keeps_lease(evidence: Evidence) -> Problems:
    """A worker that was well all along, with a store that was well, does not lose a lease by expiry."""
    unwell: dict[str, list[tuple[int, int]]] = {
        host: [*spans] for host, spans in _asleep(evidence.events).items()
    }
    for event in evidence.events:
        if event.kind == "fault":
            unwell.setdefault(event.host, []).append((event.time_us, _over_us(event)))
    for job, events in evidence.by_job.items():
        claim: tuple[int, Event] | None = None
        for index, event in events:
            if event.kind == "claimed":
                claim = (index, event)
            elif event.kind == "swept" and claim is not None and not event.detail.startswith("PENDING"):
                # A fault just before the claim may have swallowed its reply.
                since_us = claim[1].time_us - 2 * evidence.settings.request_timeout_us
                excused = any(
                    begin_us <= event.time_us and end_us >= since_us
                    for host in (claim[1].host, "database")
                    for begin_us, end_us in unwell.get(host, ())
                )
                if not excused:
                    yield _Problem(
                        f"{claim[1].host} was well and lost job {_name(job)} (token {claim[1].token}) by expiry",
                        (claim[0], index),
                    )


def loser_stops(evidence: Evidence) -> Problems:
    """A worker that lost a job stops running it within a heartbeat of the job's next claim.

    Time in which its machine stood still does not count. Where the database's clock was stepped meanwhile, a
    worker that cannot be told must be allowed to count its lease to the end by its own clock.
    """
    settings = evidence.settings
    grace_us = settings.heartbeat_interval_us + 2 * settings.request_timeout_us
    asleep = _asleep(evidence.events)
    steps_us = [event.time_us for event in evidence.events if _is_store_step(event)]
    crashed = evidence.crashed
    for job, events in evidence.by_job.items():
        for began, ended in _executions(evidence, events, crashed):
            taken = _taken_at(events, began[1].token)
            if taken is None:
                continue
            host, taken_us, ended_us = began[1].host, taken[1].time_us, ended[1].time_us
            awake_us = ended_us - taken_us - _slept_us(asleep, host, taken_us, ended_us)
            stepped = any(taken_us - settings.lease_us <= at_us <= ended_us for at_us in steps_us)
            if awake_us > grace_us + (settings.lease_us if stepped else 0):
                yield _Problem(
                    f"{host} went on with job {_name(job)} (token {began[1].token}) for "
                    f"{(ended_us - taken_us) / 1e6:g} s after it was given to {taken[1].host}",
                    (began[0], taken[0], ended[0]),
                )


def never_two_at_once(evidence: Evidence) -> Problems:
    """No two handlers of a job run at the same time, where no machine stood still and no clock ran wrong.

    This is what a worker's careful count of its lease is for: by that count the lease is over before the database
    gives the job to somebody else. A machine that stands still or whose clock is slow cannot count, and a database
    whose clock was stepped ends leases before their time.
    """
    asleep = _asleep(evidence.events)
    drifting = {
        event.host for event in evidence.events if event.kind == "fault" and "clocks drift" in event.detail
    }
    steps_us = [event.time_us for event in evidence.events if _is_store_step(event)]
    for job, events in evidence.by_job.items():
        claimed_us = {event.token: event.time_us for _, event in events if event.kind == "claimed"}
        runs = sorted(_executions(evidence, events, evidence.crashed), key=lambda run: run[0][1].token)
        for (old, old_end), (new, new_end) in itertools.pairwise(runs):
            # The older token is the one that was lost, whichever handler began first.
            host, token = old[1].host, old[1].token
            both_us = max(old[1].time_us, new[1].time_us)
            over_us = min(old_end[1].time_us, new_end[1].time_us)
            excused = (
                host in drifting
                or _slept_us(asleep, host, claimed_us.get(token, old[1].time_us), both_us) > 0
                or any(step_us <= both_us for step_us in steps_us)
            )
            if both_us < over_us and not excused:
                yield _Problem(
                    f"job {_name(job)} ran on {host} (token {token}) and on {new[1].host} (token {new[1].token}) "
                    f"at the same time, for {(over_us - both_us) / 1e6:g} s",
                    (old[0], new[0], old_end[0]),
                )


def _executions(
    evidence: Evidence, events: Sequence[tuple[int, Event]], crashed: set[tuple[str, int]]
) -> Iterator[tuple[tuple[int, Event], tuple[int, Event]]]:
    """Return each run of a job's handler, from its beginning to its end.

    A run that never ended lasts to the end of the history, unless its machine lost power.
    """
    running: dict[int, tuple[int, Event]] = {}
    for index, event in events:
        if event.kind == "executing":
            running[event.token] = (index, event)
        elif event.kind in {"executed", "raised", "aborted"} and event.token in running:
            yield running.pop(event.token), (index, event)
    for began in running.values():
        life = (began[1].host, began[1].incarnation)
        if life not in crashed:
            yield began, (len(evidence.events) - 1, evidence.events[-1])


def _is_store_step(event: Event) -> bool:
    return event.kind == "fault" and event.detail.startswith("the store's clock is stepped")


def _taken_at(events: Sequence[tuple[int, Event]], token: int) -> tuple[int, Event] | None:
    return next(((i, event) for i, event in events if event.kind == "claimed" and event.token > token), None)


def _asleep(events: Sequence[Event]) -> dict[str, list[tuple[int, int]]]:
    """Return when each host stood still: its pauses, from and to, in virtual microseconds."""
    spans: dict[str, list[tuple[int, int]]] = {}
    since: dict[str, int] = {}
    for event in events:
        if event.kind == "fault" and event.detail == "pause":
            since[event.host] = event.time_us
        elif event.kind == "fault" and event.detail in {"resume", "crash"} and event.host in since:
            spans.setdefault(event.host, []).append((since.pop(event.host), event.time_us))
    return spans


def _slept_us(asleep: Mapping[str, Sequence[tuple[int, int]]], host: str, from_us: int, to_us: int) -> int:
    """Return for how long of a span of virtual time a host stood still."""
    return sum(
        max(0, min(end_us, to_us) - max(begin_us, from_us)) for begin_us, end_us in asleep.get(host, ())
    )


def slots_bounded(evidence: Evidence) -> Problems:
    """No worker runs more handlers at once than it has slots."""
    running: dict[tuple[str, int], set[tuple[UUID | None, int]]] = {}
    for index, event in enumerate(evidence.events):
        life = (event.host, event.incarnation)
        if event.kind == "executing":
            running.setdefault(life, set()).add((event.job, event.token))
            if len(running[life]) > evidence.settings.concurrency:
                yield _Problem(
                    f"{event.host} runs {len(running[life])} handlers in {evidence.settings.concurrency} slots",
                    (index,),
                )
                return
        elif event.kind in {"executed", "raised", "aborted"} and life in running:
            running[life].discard((event.job, event.token))


RETRY_WINDOW_US = 50_000
RETRIES_TO_JUDGE = 20


def retries_spread(evidence: Evidence) -> Problems:
    """Jobs that failed together do not come back together: at most a quarter within any 50 ms."""
    due = sorted(
        (event.due_us, index)
        for index, event in enumerate(evidence.events)
        if event.kind == "finished" and event.due_us >= 0
    )
    if len(due) < RETRIES_TO_JUDGE:
        return
    first = 0
    for last, (at_us, index) in enumerate(due):
        while at_us - due[first][0] > RETRY_WINDOW_US:
            first += 1
        if last - first + 1 > len(due) // 4:
            yield _Problem(
                f"{last - first + 1} of {len(due)} retries come due within {RETRY_WINDOW_US / 1000:g} ms",
                (index,),
            )
            return


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
    "too-old-never-claimed": too_old_never_claimed,
    "one-effect": one_effect,
    "one-job-per-request": one_job_per_request,
    "fence-holds": fence_holds,
    "lateness-bounded": lateness_bounded,
    "healthy-keeps-lease": healthy_keeps_lease,
    "loser-stops": loser_stops,
    "never-two-at-once": never_two_at_once,
    "slots-bounded": slots_bounded,
    "retries-spread": retries_spread,
}
"""Every check, by name; the first line of its docstring is the invariant."""


def judge(evidence: Evidence, names: Iterable[str] = tuple(CHECKS)) -> list[CheckResult]:
    """Run checks. One that has nothing to look at says UNKNOWN: a green run that tried nothing must show."""
    results = []
    for name in names:
        if not evidence.table and not evidence.by_job:
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
