"""The recorder: turns replies at the store and observations on hosts into events of the history.

At the store's side it records what the store did, even when nobody will hear of it. On a host it records what
the worker did, and only as long as that life of the host lasts: what a dead host's leftovers say is refused.
Each `…ed` method takes what was asked, and returns the function that records the reply to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from scheduler.held import HeldJob
from scheduler.jobs import LeaseRef, NewJob
from scheduler.store import (
    CancelReply,
    ClaimReply,
    ClaimRequest,
    EnqueueReply,
    FinishReply,
    HeartbeatReply,
    Outcome,
    OutcomeKind,
    ReplayReply,
    StartReply,
    SweepReply,
)
from simlab.history import History
from simlab.hosts import Incarnation

__all__ = ["Recorder"]

_CONFLICT = "conflict: the key is another request's"


class Recorder:
    """Writes a run's history.

    Parameters
    ----------
    time_us
        Virtual time, in microseconds from the start.
    db_us
        The database's clock, in microseconds since the Unix epoch.
    """

    def __init__(self, history: History, *, time_us: Callable[[], int], db_us: Callable[[], int]) -> None:
        self.history = history
        self._time_us = time_us
        self._db_us = db_us
        # What is known of each claim, so that later events can name the attempt.
        self._attempts: dict[tuple[UUID, int], int] = {}
        # The jobs in the order of their enqueueing: how a plan of faults numbers them.
        self.enqueued_jobs: list[UUID] = []

    def _note(
        self,
        kind: str,
        life: Incarnation,
        db_us: int,
        *,
        job: UUID | None = None,
        token: int = -1,
        attempt: int = -1,
        due_us: int = -1,
        until_us: int = -1,
        detail: str = "",
    ) -> None:
        self.history.record(
            kind,
            time_us=self._time_us(),
            db_us=db_us,
            host=life.host.name,
            incarnation=life.number,
            job=job,
            token=token,
            attempt=attempt,
            due_us=due_us,
            until_us=until_us,
            detail=detail,
        )

    # At the store's side.

    def enqueued(self, life: Incarnation, jobs: Sequence[NewJob]) -> Callable[[EnqueueReply], None]:
        def record(reply: EnqueueReply) -> None:
            for job, done in zip(jobs, reply.jobs, strict=True):
                due_us = job.run_at_us if job.run_at_us is not None else reply.now_us + (job.delay_us or 0)
                detail = job.task if done.created else "already there" if done.same else _CONFLICT
                if done.created:
                    self.enqueued_jobs.append(done.job_id)
                self._note("enqueued", life, reply.now_us, job=done.job_id, due_us=due_us, detail=detail)

        return record

    def claimed(self, life: Incarnation, request: ClaimRequest) -> Callable[[ClaimReply], None]:
        def record(reply: ClaimReply) -> None:
            for lease in reply.leases:
                self._attempts[lease.ref.job_id, lease.ref.token] = lease.attempt
                self._note(
                    "claimed",
                    life,
                    reply.now_us,
                    job=lease.ref.job_id,
                    token=lease.ref.token,
                    attempt=lease.attempt,
                    due_us=lease.run_at_us,
                    until_us=reply.now_us + request.lease_us,
                )

        return record

    def swept(self, life: Incarnation) -> Callable[[SweepReply], None]:
        def record(reply: SweepReply) -> None:
            for job in reply.jobs:
                self._note(
                    "swept",
                    life,
                    reply.now_us,
                    job=job.job_id,
                    token=job.token,
                    attempt=job.attempt,
                    detail=f"{job.was} to {job.state}",
                )

        return record

    def started(self, life: Incarnation, refs: Sequence[LeaseRef]) -> Callable[[StartReply], None]:
        def record(reply: StartReply) -> None:
            started = set(reply.started)
            early = {one.job_id for one in reply.early}
            for ref in refs:
                if ref.job_id in started:
                    self._lease_event("started", life, reply.now_us, ref)
                elif ref.job_id not in early:
                    self._lease_event("rejected", life, reply.now_us, ref, detail="start")

        return record

    def renewed(
        self, life: Incarnation, refs: Sequence[LeaseRef], lease_us: int
    ) -> Callable[[HeartbeatReply], None]:
        def record(reply: HeartbeatReply) -> None:
            held = {renewed.job_id: renewed for renewed in reply.held}
            for ref in refs:
                mine = held.get(ref.job_id)
                if mine is None:
                    self._lease_event("rejected", life, reply.now_us, ref, detail="heartbeat")
                elif mine.extended:
                    asked = "cancel requested" if mine.cancel_requested else ""
                    until_us = reply.now_us + lease_us
                    self._lease_event("renewed", life, reply.now_us, ref, until_us=until_us, detail=asked)

        return record

    def finished(self, life: Incarnation, outcomes: Sequence[Outcome]) -> Callable[[FinishReply], None]:
        def record(reply: FinishReply) -> None:
            for outcome, result in zip(outcomes, reply.results, strict=True):
                if result.accepted:
                    kind, detail = "finished", f"{outcome.kind} to {result.state}"
                elif result.recovered:
                    kind, detail = "recovered", outcome.kind.value
                else:
                    kind, detail = "rejected", f"finish ({outcome.kind})"
                retried = outcome.kind is OutcomeKind.RETRY and result.accepted
                due_us = reply.now_us + outcome.delay_us if retried else -1
                self._lease_event(kind, life, reply.now_us, outcome.ref, due_us=due_us, detail=detail)

        return record

    def _lease_event(
        self,
        kind: str,
        life: Incarnation,
        db_us: int,
        ref: LeaseRef,
        *,
        due_us: int = -1,
        until_us: int = -1,
        detail: str = "",
    ) -> None:
        self._note(
            kind,
            life,
            db_us,
            job=ref.job_id,
            token=ref.token,
            attempt=self._attempts.get((ref.job_id, ref.token), -1),
            due_us=due_us,
            until_us=until_us,
            detail=detail,
        )

    def cancelled(self, life: Incarnation) -> Callable[[CancelReply], None]:
        def record(reply: CancelReply) -> None:
            for result in reply.results:
                self._note("cancelled", life, reply.now_us, job=result.job_id, detail=result.result.value)

        return record

    def replayed(self, life: Incarnation) -> Callable[[ReplayReply], None]:
        def record(reply: ReplayReply) -> None:
            for job_id in reply.replayed:
                self._note("replayed", life, reply.now_us, job=job_id, due_us=reply.now_us)

        return record

    def effect(
        self, life: Incarnation, *, db_us: int, job: UUID, token: int, attempt: int, new: bool
    ) -> None:
        """Record that the outside world was changed, or refused to be changed twice."""
        kind = "effect" if new else "duplicate"
        self._note(kind, life, db_us, job=job, token=token, attempt=attempt)

    # On a host.

    def observer(self, life: Incarnation) -> Callable[[str, HeldJob | None, str], None]:
        """Return the worker's observer for one life of a host.

        The claim itself is recorded at the store's side; the worker's word on it adds nothing.
        """

        def observe(kind: str, job: HeldJob | None, detail: str, /) -> None:
            if not life.alive or kind == "claimed":
                return
            if job is None:
                self._note(kind, life, self._db_us(), detail=detail)
            else:
                self._note(
                    kind,
                    life,
                    self._db_us(),
                    job=job.ref.job_id,
                    token=job.ref.token,
                    attempt=job.lease.attempt,
                    due_us=job.lease.run_at_us,
                    detail=detail,
                )

        return observe

    def stopping(self, life: Incarnation) -> None:
        """Record that the operator asked the worker of one life of a host to stop: no fault."""
        self._note("stopping", life, self._db_us())

    def fault(self, life: Incarnation, detail: str, *, for_us: int | None = None) -> None:
        """Record an act of the laboratory, and how long it lasts, where nothing else will tell its end."""
        until_us = -1 if for_us is None else self._db_us() + for_us
        self._note("fault", life, self._db_us(), until_us=until_us, detail=detail)
