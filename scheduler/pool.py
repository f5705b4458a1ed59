"""The pool: slots that run handlers. The timer never does.

A slot takes a fired job through its life: mark it RUNNING, run the handler in a task of its own, decide the
outcome, have it written. A job taken away meanwhile (lease lost, drain over) is not written as ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from scheduler.app import App, TaskDefinition
from scheduler.batcher import Batcher
from scheduler.clock import CancelledError, Clock, Event
from scheduler.errors import JobCancelled, LeaseLost, StoreUnavailable
from scheduler.failpoints import Failpoint
from scheduler.finisher import Finisher, describe_error
from scheduler.held import Abort, Held, HeldJob, Observer, Phase
from scheduler.jobs import LeaseRef, from_us, to_us
from scheduler.policy import WorkerSettings, backoff_us
from scheduler.store import Outcome, OutcomeKind, Store

__all__ = ["Pool", "RunningJob"]


class RunningJob:
    """What a handler receives first: the attempt it is, and the ways to stop when asked.

    Attributes
    ----------
    job_id, task, payload, attempt, max_attempts, run_at
        The row's. `job_id` is the same at every attempt: the natural key for an idempotent effect.
    token
        The fencing token, larger at every claim: hand it to a resource that refuses a smaller one.
    """

    __slots__ = ("_asked", "_clock", "_held")

    def __init__(self, held: HeldJob, clock: Clock) -> None:
        self._held = held
        self._clock = clock
        self._asked: Event | None = None

    @property
    def job_id(self) -> UUID:
        return self._held.ref.job_id

    @property
    def task(self) -> str:
        return self._held.lease.task

    @property
    def payload(self) -> dict[str, Any]:
        return dict(self._held.lease.payload)

    @property
    def attempt(self) -> int:
        return self._held.lease.attempt

    @property
    def max_attempts(self) -> int:
        return self._held.lease.max_attempts

    @property
    def token(self) -> int:
        return self._held.ref.token

    @property
    def run_at(self) -> datetime:
        return from_us(self._held.lease.run_at_us)

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody asked for this job to be cancelled."""
        return self._held.cancel_requested

    def checkpoint(self) -> None:
        """Stop here if there is a reason to. Call it between steps that are safe to stop between.

        Raises
        ------
        JobCancelled
            If a cancellation was asked for: let it pass and the job ends as CANCELLED.
        LeaseLost
            If the job is no longer this worker's. An async handler is also cancelled where it awaits; a
            plain function in a thread learns of it only here.
        """
        if self._held.abort is not None:
            raise LeaseLost(f"job {self.job_id}: {self._held.abort.value}")
        if self._held.cancel_requested:
            raise JobCancelled(f"job {self.job_id}: its cancellation was asked for")

    async def sleep(self, duration: timedelta) -> None:
        """Sleep, and be woken by a cancellation; a checkpoint before and after."""
        self.checkpoint()
        if self._asked is None:
            self._asked = self._clock.event()
            self._held.when_cancel_requested(self._asked.set)
        await self._asked.wait(to_us(duration))
        self.checkpoint()


class _Run:
    """What one execution came to; `kind` is None while it runs, and when the job was taken away."""

    __slots__ = ("error", "kind")

    def __init__(self) -> None:
        self.kind: OutcomeKind | None = None
        self.error: BaseException | None = None


class Pool:
    """Runs fired jobs in `concurrency` slots; more wait their turn in the order they were fired.

    A job that the database says is not due yet goes back to the timer through `postpone`.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        store: Store,
        app: App,
        held: Held,
        finisher: Finisher,
        postpone: Callable[[HeldJob], None],
        settings: WorkerSettings,
        failpoint: Failpoint | None,
        observe: Observer,
    ) -> None:
        self._clock = clock
        self._store = store
        self._app = app
        self._held = held
        self._finisher = finisher
        self._postpone = postpone
        self._failpoint = failpoint
        self._observe = observe
        self._backlog: deque[HeldJob] = deque()
        self._idle: deque[Event] = deque()
        self._starter: Batcher[LeaseRef, int | None] = Batcher(
            clock=clock,
            write=self._write_starts,
            limit=settings.batch,
            retry_us=settings.store_retry_us,
            on_unavailable=self._unavailable,
        )

    def submit(self, job: HeldJob) -> None:
        """Queue a fired job for the next free slot."""
        self._observe("fired", job, "")
        self._backlog.append(job)
        if self._idle:
            self._idle.popleft().set()

    async def run_starts(self) -> None:
        """Write starts in batches until cancelled."""
        await self._starter.run()

    async def run_slot(self) -> None:
        """Take jobs and run them, one after the other, until cancelled."""
        turn = self._clock.event()
        while True:
            while not self._backlog:
                turn.clear()
                self._idle.append(turn)
                await turn.wait()
            job = self._backlog.popleft()
            if job.phase is not Phase.WAITING:
                continue
            postponed = False
            try:
                postponed = await self._run(job)
            finally:
                if not postponed:
                    self._held.drop(job)

    async def _run(self, job: HeldJob) -> bool:
        """Take a job through its life; say whether it was postponed, and so is still held."""
        job.phase = Phase.STARTING
        await self._at("before_start", job)
        due_in_us = await self._starter.submit(job.ref, wanted=lambda: job.abort is None)
        if due_in_us is None or job.abort is not None:
            why = "the start was refused" if job.abort is None else job.abort.name.lower()
            self._observe("dropped", job, why)
            return False
        if due_in_us > 0:
            job.phase = Phase.WAITING
            job.fire_at_us = self._clock.now_us() + due_in_us
            self._observe("early", job, "")
            self._postpone(job)
            return True
        await self._at("after_start", job)
        await self._at("before_execute", job)
        run = await self._execute(job)
        if run.kind is None:
            return False
        await self._at("after_execute", job)
        outcome = self._outcome(job, run)
        await self._at("before_finish", job)
        await self._finisher.submit(outcome)
        await self._at("after_finish", job)
        return False

    async def _at(self, name: str, job: HeldJob) -> None:
        if self._failpoint is not None:
            await self._failpoint(name, job)

    async def _execute(self, job: HeldJob) -> _Run:
        run = _Run()
        definition = self._app.definition(job.lease.task)
        job.phase = Phase.EXECUTING
        self._observe("executing", job, "")
        # A task of its own, so that taking the job away stops the handler and not the slot, and so that
        # what the handler leaves in context variables ends with it.
        job.task = self._clock.spawn(self._call(job, definition, run), f"{job.lease.task} {job.ref.job_id}")
        try:
            await job.task.join()
        except CancelledError:
            # The worker is over. Its handlers must not outlive the heartbeat that kept their leases.
            job.task.cancel()
            raise
        stray = job.task.error()
        job.task = None
        job.phase = Phase.FINISHING
        if job.abort is Abort.DRAIN:
            run.kind, run.error = OutcomeKind.RETRY, LeaseLost("interrupted: the worker was shut down")
        elif job.abort is not None:
            run.kind = None
        elif run.kind is None:
            run.kind, run.error = OutcomeKind.RETRY, stray
        return run

    async def _call(self, job: HeldJob, definition: TaskDefinition, run: _Run) -> None:
        running = RunningJob(job, self._clock)
        try:
            if definition.is_async:
                await definition.call_async(running, job.lease.payload)
            else:
                await self._clock.call(definition.handler, running, **job.lease.payload)
        except CancelledError:
            raise
        except JobCancelled as error:
            run.kind = OutcomeKind.CANCELLED if job.cancel_requested else OutcomeKind.RETRY
            run.error = error
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a handler raises is its outcome
            run.kind, run.error = OutcomeKind.RETRY, error
        else:
            run.kind = OutcomeKind.SUCCEEDED
        self._observe("executed" if run.kind is OutcomeKind.SUCCEEDED else "raised", job, run.kind.value)

    def _outcome(self, job: HeldJob, run: _Run) -> Outcome:
        assert run.kind is not None  # the caller has checked
        error = None if run.error is None else describe_error(run.error)
        if run.kind is not OutcomeKind.RETRY:
            return Outcome(job.ref, run.kind, error=error)
        if job.lease.attempt >= job.lease.max_attempts:
            return Outcome(job.ref, OutcomeKind.FAILED, error=error)
        delay_us = 0
        if job.abort is not Abort.DRAIN:
            delay_us = backoff_us(
                self._app.definition(job.lease.task).retry, job.lease.attempt, self._clock.rng
            )
        return Outcome(job.ref, OutcomeKind.RETRY, delay_us=delay_us, error=error)

    async def _write_starts(self, refs: Sequence[LeaseRef]) -> Sequence[int | None]:
        """Return for each lease how far off its job is: 0 when it was started, None when it was refused."""
        reply = await self._store.start(refs)
        verdicts: dict[UUID, int | None] = dict.fromkeys(reply.started, 0)
        verdicts.update((early.job_id, early.due_in_us) for early in reply.early)
        return [verdicts.get(ref.job_id) for ref in refs]

    def _unavailable(self, error: StoreUnavailable) -> None:
        self._observe("unavailable", None, f"start: {error}")

    def forget_backlog(self) -> None:
        """Empty the backlog: its jobs are still held, and the worker's to give back."""
        self._backlog.clear()
