"""ModelStore: an in-memory model of what PostgreSQL does with the scheduler's statements.

It models the outcomes, not the engine: the same verbs, the same guards, the same order of rows, the same
microsecond at each boundary, ``now()`` fixed for a whole verb. Each verb is one transaction and happens at
one instant, unless it has to wait for a lock. Then it is a generator that yields the locks it needs: it finds
its rows at its beginning, locks them one after the other by identity, looks at each again when it has them all,
and reports what it did not write as that stood at the beginning: its snapshot. Where the model and PostgreSQL
differ, the model is wrong.

The guards are methods of their own, so that a famous mistake can replace exactly one.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from scheduler.jobs import TERMINAL, Job, JobState, Lease, LeaseRef, NewJob
from scheduler.store import (
    Cancelled,
    CancelReply,
    CancelResult,
    ClaimReply,
    ClaimRequest,
    Early,
    Enqueued,
    EnqueueReply,
    Finished,
    FinishReply,
    HeartbeatReply,
    Outcome,
    OutcomeKind,
    Renewed,
    ReplayReply,
    StartReply,
    Stats,
    SweepReply,
    Swept,
    refuse_repeated_leases,
    refuse_wrong_jobs,
)
from simlab.locks import NoLocks, RowLocks, Statement

__all__ = ["ModelStore", "Row", "as_jsonb"]

_LEASED = frozenset({JobState.CLAIMED, JobState.RUNNING})
_LEASE_EXPIRED = "the lease expired: the worker died, or could not be heard"
_AGED_OUT = "the age limit passed before the job could run"


@dataclass(slots=True)
class Row:
    """One mutable row; the fields are the columns of the table."""

    job_id: UUID
    task: str
    payload: Mapping[str, Any]
    run_at_us: int
    state: JobState
    attempt: int
    max_attempts: int
    expires_at_us: int | None
    lease_owner: str | None
    lease_token: int
    lease_expires_at_us: int | None
    idempotency_key: str | None
    cancel_requested: bool
    last_error: str | None
    created_at_us: int
    finished_at_us: int | None

    def frozen(self) -> Job:
        return Job(**{name: getattr(self, name) for name in Job.__dataclass_fields__})


class ModelStore:
    """The Store port over a dict of rows.

    Parameters
    ----------
    now_us
        The database's clock, in microseconds since the Unix epoch.
    locks
        The row locks of other open transactions; by default there are none.
    """

    def __init__(self, now_us: Callable[[], int], *, locks: RowLocks | None = None) -> None:
        self._now_us = now_us
        self._locks = locks if locks is not None else NoLocks()
        self._rows: dict[UUID, Row] = {}
        self._by_key: dict[str, Row] = {}
        # The partial index on PENDING rows: entries that no longer match their row are skipped when met.
        self._due: list[tuple[int, UUID]] = []
        self._ageing: list[tuple[int, UUID]] = []
        # The partial index on leased rows.
        self._leased: dict[UUID, Row] = {}

    # The guards.

    def _holds(self, row: Row, ref: LeaseRef) -> bool:
        """Say whether a lease named is still the row's: by owner **and** token."""
        return row.state in _LEASED and row.lease_owner == ref.owner and row.lease_token == ref.token

    def _too_old(self, row: Row, now_us: int) -> bool:
        return _aged_out(row, now_us)

    def _may_start(self, row: Row, ref: LeaseRef, now_us: int) -> bool:
        return self._holds(row, ref) and (row.lease_expires_at_us or 0) > now_us

    def _is_due(self, row: Row, now_us: int) -> bool:
        return row.run_at_us <= now_us

    def _may_renew(self, row: Row, ref: LeaseRef) -> bool:
        return self._holds(row, ref)

    def _may_sweep(self, row: Row, now_us: int) -> bool:
        return (row.lease_expires_at_us or 0) <= now_us and not self._locks.locked(row.job_id)

    def _may_finish(self, row: Row, outcome: Outcome) -> bool:
        wanted = JobState.CLAIMED if outcome.kind is OutcomeKind.RELEASED else JobState.RUNNING
        return row.state is wanted and self._holds(row, outcome.ref)

    # The verbs.

    async def enqueue(self, jobs: Sequence[NewJob], /) -> EnqueueReply:
        refuse_wrong_jobs(jobs)
        now_us = self._now_us()
        answers = await self._locks.run(self._enqueue(jobs, now_us))
        # Jobs that stand in the way are looked up by a second statement, which has a time of its own.
        told_us = now_us if any(answer.created for answer in answers) else self._now_us()
        return EnqueueReply(told_us, answers)

    def _enqueue(self, jobs: Sequence[NewJob], now_us: int) -> Statement[tuple[Enqueued, ...]]:
        # Inserted in the order of their keys, so that two batches never wait for each other in a circle.
        for job in sorted(jobs, key=_by_key):
            # Another transaction may be inserting the same: whether it will have, only its end tells.
            if job.job_id not in self._rows:
                yield job.job_id
            key = job.idempotency_key
            if job.job_id not in self._rows and key is not None and key not in self._by_key:
                yield key
        return tuple(self._insert(job, now_us) for job in jobs)

    def _earlier(self, job: NewJob) -> Row | None:
        """Find the row that stands in the way of a new one."""
        earlier = self._rows.get(job.job_id)
        if earlier is None and job.idempotency_key is not None:
            earlier = self._by_key.get(job.idempotency_key)
        return earlier

    def _insert(self, job: NewJob, now_us: int) -> Enqueued:
        payload = as_jsonb(job.payload)
        earlier = self._earlier(job)
        if earlier is not None:
            same = earlier.task == job.task and _equal_json(earlier.payload, payload)
            return Enqueued(earlier.job_id, created=False, same=same)
        run_at_us = job.run_at_us if job.run_at_us is not None else now_us + (job.delay_us or 0)
        row = Row(
            job_id=job.job_id,
            task=job.task,
            payload=payload,
            run_at_us=run_at_us,
            state=JobState.PENDING,
            attempt=0,
            max_attempts=job.max_attempts,
            expires_at_us=None if job.max_age_us is None else run_at_us + job.max_age_us,
            lease_owner=None,
            lease_token=0,
            lease_expires_at_us=None,
            idempotency_key=job.idempotency_key,
            cancel_requested=False,
            last_error=None,
            created_at_us=now_us,
            finished_at_us=None,
        )
        self._rows[row.job_id] = row
        if row.idempotency_key is not None:
            self._by_key[row.idempotency_key] = row
        self._index_pending(row)
        return Enqueued(row.job_id, created=True)

    async def claim(self, request: ClaimRequest, /) -> ClaimReply:
        now_us = self._now_us()
        picked = self._pick_due(request, now_us)
        for row in picked:
            row.attempt += 1
            row.lease_token += 1
            self._lease(row, request.owner, now_us + request.lease_us)
        return ClaimReply(now_us, tuple(_granted(row, now_us) for row in picked))

    def _pick_due(self, request: ClaimRequest, now_us: int) -> list[Row]:
        horizon_us = now_us + request.lookahead_us
        picked: dict[UUID, Row] = {}
        passed_over: dict[UUID, tuple[int, UUID]] = {}
        while self._due and self._due[0][0] <= horizon_us and len(picked) < request.limit:
            entry = heapq.heappop(self._due)
            row = self._rows[entry[1]]
            if row.state is not JobState.PENDING or row.run_at_us != entry[0] or row.job_id in picked:
                continue
            claimable = row.task in request.tasks and not self._too_old(row, now_us)
            if claimable and not self._locks.locked(row.job_id):
                picked[row.job_id] = row
            else:
                passed_over[row.job_id] = entry
        for entry in passed_over.values():
            heapq.heappush(self._due, entry)
        return list(picked.values())

    async def sweep(self, *, limit: int) -> SweepReply:
        now_us = self._now_us()
        expired = sorted(
            (row for row in self._leased.values() if self._may_sweep(row, now_us)),
            key=lambda row: (row.lease_expires_at_us, row.job_id),
        )[:limit]
        moved = [self._sweep_lease(row, now_us) for row in expired]
        moved += [self._sweep_aged(row, now_us) for row in self._pick_aged(now_us, limit)]
        return SweepReply(now_us, tuple(sorted(moved, key=lambda swept: swept.job_id)))

    def _sweep_lease(self, row: Row, now_us: int) -> Swept:
        was, owner = row.state, row.lease_owner
        if row.cancel_requested:
            after = JobState.CANCELLED
        elif row.attempt >= row.max_attempts or _aged_out(row, now_us):
            after = JobState.FAILED
        else:
            after = JobState.PENDING
        row.last_error = _LEASE_EXPIRED
        self._unlease(row, after, now_us)
        return Swept(row.job_id, owner, row.lease_token, row.attempt, was, after)

    def _pick_aged(self, now_us: int, limit: int) -> list[Row]:
        picked: dict[UUID, Row] = {}
        passed_over = []
        while self._ageing and self._ageing[0][0] <= now_us and len(picked) < limit:
            entry = heapq.heappop(self._ageing)
            row = self._rows[entry[1]]
            if row.state is JobState.PENDING and row.expires_at_us == entry[0]:
                if self._locks.locked(row.job_id):
                    passed_over.append(entry)
                else:
                    picked[row.job_id] = row
        for entry in passed_over:
            heapq.heappush(self._ageing, entry)
        return list(picked.values())

    def _sweep_aged(self, row: Row, now_us: int) -> Swept:
        row.last_error = _AGED_OUT
        row.state = JobState.FAILED
        row.finished_at_us = now_us
        return Swept(row.job_id, None, row.lease_token, row.attempt, JobState.PENDING, JobState.FAILED)

    async def start(self, refs: Sequence[LeaseRef], /) -> StartReply:
        refuse_repeated_leases(refs)
        return await self._locks.run(self._start(refs, self._now_us()))

    def _start(self, refs: Sequence[LeaseRef], now_us: int) -> Statement[StartReply]:
        found = self._found(refs, lambda row, ref: self._may_start(row, ref, now_us))
        yield from sorted(row.job_id for row, _ in found)
        started, early = [], []
        for row, ref in found:
            if not self._may_start(row, ref, now_us):
                continue
            if not self._is_due(row, now_us):
                early.append(Early(ref.job_id, due_in_us=row.run_at_us - now_us))
            else:
                row.state = JobState.RUNNING
                started.append(ref.job_id)
        return StartReply(now_us, tuple(sorted(started)), tuple(sorted(early, key=lambda one: one.job_id)))

    def _found(
        self, refs: Sequence[LeaseRef], matches: Callable[[Row, LeaseRef], bool]
    ) -> list[tuple[Row, LeaseRef]]:
        """Find the rows that a statement will lock: those that match when it begins."""
        named = [(self._rows.get(ref.job_id), ref) for ref in refs]
        return [(row, ref) for row, ref in named if row is not None and matches(row, ref)]

    async def heartbeat(self, refs: Sequence[LeaseRef], /, *, lease_us: int) -> HeartbeatReply:
        refuse_repeated_leases(refs)
        now_us = self._now_us()
        held = []
        for ref in refs:
            row = self._rows.get(ref.job_id)
            if row is not None and self._may_renew(row, ref):
                # A locked row is skipped, not waited for: the others must not expire for its sake.
                extended = not self._locks.locked(row.job_id)
                if extended:
                    row.lease_expires_at_us = now_us + lease_us
                held.append(Renewed(ref.job_id, extended, row.cancel_requested))
        return HeartbeatReply(now_us, tuple(sorted(held, key=lambda renewed: renewed.job_id)))

    async def finish(self, outcomes: Sequence[Outcome], /) -> FinishReply:
        if not outcomes:
            raise ValueError("finish needs at least one outcome")
        refuse_repeated_leases([outcome.ref for outcome in outcomes])
        return await self._locks.run(self._finish(outcomes, self._now_us()))

    def _finish(self, outcomes: Sequence[Outcome], now_us: int) -> Statement[FinishReply]:
        refusals = [self._refusal(outcome) for outcome in outcomes]
        found = [
            (row := self._rows.get(outcome.ref.job_id)) is not None and self._may_finish(row, outcome)
            for outcome in outcomes
        ]
        yield from sorted({outcome.ref.job_id for outcome, mine in zip(outcomes, found, strict=True) if mine})
        results = []
        for outcome, mine, refusal in zip(outcomes, found, refusals, strict=True):
            written = self._finish_one(outcome, now_us) if mine else refusal
            results.append(written if written.accepted else refusal)
        return FinishReply(now_us, tuple(results))

    def _refusal(self, outcome: Outcome) -> Finished:
        """Say how a row stands that an outcome was not written to."""
        row = self._rows.get(outcome.ref.job_id)
        if row is None:
            return Finished(outcome.ref.job_id, accepted=False, recovered=False, state=None)
        recovered = row.lease_token == outcome.ref.token and row.state in _LEAVES[outcome.kind]
        return Finished(row.job_id, accepted=False, recovered=recovered, state=row.state)

    def _finish_one(self, outcome: Outcome, now_us: int) -> Finished:
        row = self._rows.get(outcome.ref.job_id)
        if row is None or not self._may_finish(row, outcome):
            return self._refusal(outcome)
        after = self._state_after(row, outcome, now_us)
        if outcome.error is not None:
            row.last_error = outcome.error
        if outcome.kind is OutcomeKind.RELEASED:
            row.attempt -= 1
        elif outcome.kind is OutcomeKind.RETRY and after is JobState.PENDING:
            row.run_at_us = now_us + outcome.delay_us
        self._unlease(row, after, now_us)
        return Finished(row.job_id, accepted=True, recovered=False, state=after)

    def _state_after(self, row: Row, outcome: Outcome, now_us: int) -> JobState:
        if outcome.kind is not OutcomeKind.RETRY:
            return _DECIDED[outcome.kind]
        if row.cancel_requested:
            return JobState.CANCELLED
        if row.attempt >= row.max_attempts or _aged_out(row, now_us + outcome.delay_us):
            return JobState.FAILED
        return JobState.PENDING

    async def cancel(self, job_ids: Sequence[UUID], /) -> CancelReply:
        if not job_ids:
            raise ValueError("cancel needs at least one job")
        return await self._locks.run(self._cancel(job_ids, self._now_us()))

    def _cancel(self, job_ids: Sequence[UUID], now_us: int) -> Statement[CancelReply]:
        known = {job_id for job_id in job_ids if job_id in self._rows}
        still_open = sorted({job_id for job_id in job_ids if self._is_open(job_id)})
        yield from still_open
        results = dict.fromkeys(job_ids, CancelResult.UNKNOWN) | dict.fromkeys(known, CancelResult.TOO_LATE)
        for job_id in still_open:
            results[job_id] = self._cancel_one(job_id, now_us)
        return CancelReply(now_us, tuple(Cancelled(job_id, results[job_id]) for job_id in job_ids))

    def _is_open(self, job_id: UUID) -> bool:
        row = self._rows.get(job_id)
        return row is not None and row.state not in TERMINAL

    def _cancel_one(self, job_id: UUID, now_us: int) -> CancelResult:
        row = self._rows[job_id]
        if row.state in TERMINAL:
            return CancelResult.TOO_LATE
        row.cancel_requested = True
        if row.state is JobState.RUNNING:
            return CancelResult.REQUESTED
        self._unlease(row, JobState.CANCELLED, now_us)
        return CancelResult.CANCELLED

    async def replay(self, job_ids: Sequence[UUID], /) -> ReplayReply:
        return await self._locks.run(self._replay(job_ids, self._now_us()))

    def _replay(self, job_ids: Sequence[UUID], now_us: int) -> Statement[ReplayReply]:
        dead = sorted({job_id for job_id in job_ids if self._is_dead(job_id)})
        yield from dead
        replayed = []
        for job_id in dead:
            if self._is_dead(job_id):
                row = self._rows[job_id]
                row.state = JobState.PENDING
                row.run_at_us = now_us
                row.attempt = 0
                row.expires_at_us = None
                row.cancel_requested = False
                row.finished_at_us = None
                self._index_pending(row)
                replayed.append(job_id)
        return ReplayReply(now_us, tuple(replayed))

    def _is_dead(self, job_id: UUID) -> bool:
        row = self._rows.get(job_id)
        return row is not None and row.state is JobState.FAILED

    async def get(self, job_id: UUID, /) -> Job | None:
        row = self._rows.get(job_id)
        return None if row is None else row.frozen()

    async def stats(self) -> Stats:
        now_us = self._now_us()
        counts = dict.fromkeys(JobState, 0)
        oldest_due_us = 0
        for row in self._rows.values():
            counts[row.state] += 1
            if row.state is JobState.PENDING and row.run_at_us <= now_us:
                oldest_due_us = max(oldest_due_us, now_us - row.run_at_us)
        return Stats(now_us, counts, oldest_due_us)

    # What the laboratory looks at.

    def knows(self, job_id: UUID) -> bool:
        """Say whether there is such a row."""
        return job_id in self._rows

    def table(self) -> list[Job]:
        """Return every row, ordered by identity."""
        return [self._rows[job_id].frozen() for job_id in sorted(self._rows)]

    # Keeping the indexes.

    def _index_pending(self, row: Row) -> None:
        heapq.heappush(self._due, (row.run_at_us, row.job_id))
        if row.expires_at_us is not None:
            heapq.heappush(self._ageing, (row.expires_at_us, row.job_id))

    def _lease(self, row: Row, owner: str, until_us: int) -> None:
        row.state = JobState.CLAIMED
        row.lease_owner = owner
        row.lease_expires_at_us = until_us
        self._leased[row.job_id] = row

    def _unlease(self, row: Row, after: JobState, now_us: int) -> None:
        row.state = after
        row.lease_owner = None
        row.lease_expires_at_us = None
        self._leased.pop(row.job_id, None)
        if after is JobState.PENDING:
            row.finished_at_us = None
            self._index_pending(row)
        else:
            row.finished_at_us = now_us


_DECIDED = {
    OutcomeKind.SUCCEEDED: JobState.SUCCEEDED,
    OutcomeKind.FAILED: JobState.FAILED,
    OutcomeKind.CANCELLED: JobState.CANCELLED,
    OutcomeKind.RELEASED: JobState.PENDING,
}

_LEAVES = {kind: frozenset({state}) for kind, state in _DECIDED.items()} | {
    OutcomeKind.RETRY: frozenset({JobState.PENDING, JobState.FAILED, JobState.CANCELLED})
}
"""The states in which each outcome may leave a row."""


def _by_key(job: NewJob) -> tuple[bool, str]:
    return job.idempotency_key is None, job.idempotency_key or ""


def _aged_out(row: Row, at_us: int) -> bool:
    return row.expires_at_us is not None and row.expires_at_us <= at_us


def _granted(row: Row, now_us: int) -> Lease:
    return Lease(
        ref=LeaseRef(row.job_id, row.lease_owner or "", row.lease_token),
        task=row.task,
        payload=row.payload,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        due_in_us=row.run_at_us - now_us,
        run_at_us=row.run_at_us,
    )


def as_jsonb(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a payload as it comes back from a JSONB column.

    JSONB orders keys by length and then by bytes, and keeps numbers as exact decimals, so that ``1e22`` comes
    back as an integer and ``-0.0`` as ``0.0``.
    """
    stored: dict[str, Any] = _stored(json.loads(json.dumps(dict(payload)), parse_float=_decimal))
    return stored


def _equal_json(one: Any, other: Any) -> bool:
    """Compare as JSONB does: 1 equals 1.0, and neither is true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal_json, one, other))
    return bool(one == other)


def _stored(value: Any) -> Any:
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        return {key: _stored(value[key]) for key in keys}
    if isinstance(value, list):
        return [_stored(inner) for inner in value]
    return value


def _decimal(text: str) -> int | float:
    digits = format(Decimal(text), "f")
    if "." not in digits:
        return int(digits)
    return abs(float(digits)) if float(digits) == 0 else float(digits)
