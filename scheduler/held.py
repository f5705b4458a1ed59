"""The jobs a worker holds: what the table granted it, and what the worker itself believes of each.

Owns the worker's side of a lease: the two local anchors (when to fire, how long the lease is ours), the
phase a job is in, and who is told when one is dropped. It talks to nobody; the parts of the worker share it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Protocol
from uuid import UUID

from scheduler.clock import Task
from scheduler.jobs import Lease, LeaseRef

__all__ = ["Abort", "Held", "HeldJob", "Observer", "Phase"]


class Observer(Protocol):
    """Told what a worker does with each job, as it does it; for metrics, logs and laboratories.

    Kinds: ``claimed``, ``fired``, ``early``, ``executing``, ``executed``, ``raised``, ``aborted``, ``dropped``,
    ``released``, ``unavailable``. It must be quick and must not raise.
    """

    def __call__(self, kind: str, job: HeldJob | None, detail: str, /) -> None: ...


class Phase(enum.Enum):
    """Where a held job is in the worker."""

    WAITING = "in the heap, or due and waiting for a slot"
    STARTING = "being marked RUNNING"
    EXECUTING = "its handler runs"
    FINISHING = "its outcome is being written"
    GONE = "no longer held"


class Abort(enum.Enum):
    """Why a job was taken away from its handler."""

    LOST = "the database no longer counts the lease as ours"
    EXPIRED = "the lease ran out by our own conservative count"
    DRAIN = "the worker's drain ran out of time"


class HeldJob:
    """One claimed job.

    Attributes
    ----------
    fire_at_us
        When to run it, on this host's monotonic clock: ``due_in`` counted from the **arrival** of the
        claim's reply. Never early; late by at most the time the reply travelled.
    lease_until_us
        How long the lease is believed ours, on the same clock: counted from the **sending** of the request
        that won or renewed it. Never believed too long.
    """

    __slots__ = (
        "_on_cancel_request",
        "abort",
        "cancel_requested",
        "fire_at_us",
        "lease",
        "lease_until_us",
        "phase",
        "task",
    )

    def __init__(self, lease: Lease, *, fire_at_us: int, lease_until_us: int) -> None:
        self.lease = lease
        self.fire_at_us = fire_at_us
        self.lease_until_us = lease_until_us
        self.phase = Phase.WAITING
        self.cancel_requested = False
        self.abort: Abort | None = None
        self.task: Task | None = None
        self._on_cancel_request: Callable[[], None] | None = None

    @property
    def ref(self) -> LeaseRef:
        return self.lease.ref

    def when_cancel_requested(self, notify: Callable[[], None]) -> None:
        """Call `notify` when a cancellation is asked for (at once, if it already was)."""
        self._on_cancel_request = notify
        if self.cancel_requested:
            notify()

    def request_cancel(self) -> None:
        """Note that a cancellation was asked for; the handler decides what to make of it."""
        if not self.cancel_requested:
            self.cancel_requested = True
            if self._on_cancel_request is not None:
                self._on_cancel_request()

    def take_away(self, why: Abort) -> None:
        """Stop the handler if it runs; whatever it still returns will not be written as ours."""
        if self.abort is None:
            self.abort = why
            if self.task is not None:
                self.task.cancel()


class Held:
    """The jobs this worker holds, at most `capacity`, in the order they were claimed."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._jobs: dict[UUID, HeldJob] = {}
        self._on_add: list[Callable[[HeldJob], None]] = []
        self._on_drop: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[HeldJob]:
        return iter(tuple(self._jobs.values()))

    @property
    def room(self) -> int:
        """How many more jobs may be claimed."""
        return self.capacity - len(self._jobs)

    def when_added(self, notify: Callable[[HeldJob], None]) -> None:
        """Call `notify` with each job that is added."""
        self._on_add.append(notify)

    def when_dropped(self, notify: Callable[[], None]) -> None:
        """Call `notify` whenever a job is dropped."""
        self._on_drop.append(notify)

    def add(self, job: HeldJob) -> HeldJob | None:
        """Hold a job. A newer claim of the same job replaces an older one, which is returned: only its token counts."""
        older = self._jobs.pop(job.ref.job_id, None)
        if older is not None:
            older.phase = Phase.GONE
            older.take_away(Abort.LOST)
        self._jobs[job.ref.job_id] = job
        for notify in self._on_add:
            notify(job)
        return older

    def holds(self, job: HeldJob) -> bool:
        """Say whether this very claim is still held."""
        return self._jobs.get(job.ref.job_id) is job

    def drop(self, job: HeldJob) -> None:
        """Let go of a job, once; a second call does nothing."""
        job.phase = Phase.GONE
        if self.holds(job):
            del self._jobs[job.ref.job_id]
            for notify in self._on_drop:
                notify()
