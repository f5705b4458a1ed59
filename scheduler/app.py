"""The application: a registry of tasks, and the door through which jobs come in.

Owns validation: whatever passes here is accepted by every store. It decides nothing about running.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from scheduler.errors import (
    IdempotencyConflict,
    InvalidPayload,
    InvalidSetting,
    TooMany,
    UnknownTask,
    UsageError,
)
from scheduler.jobs import NewJob, instant_to_us, to_us
from scheduler.policy import RandomStream, Retry
from scheduler.store import Store

__all__ = [
    "MAX_ENQUEUE",
    "MAX_HORIZON",
    "MAX_KEY_CHARS",
    "MAX_PAYLOAD_BYTES",
    "MAX_PAYLOAD_DEPTH",
    "App",
    "Client",
    "JobRequest",
    "TaskDefinition",
    "checked_payload",
]

MAX_ENQUEUE = 100_000
"""The most jobs in one call of :meth:`Client.enqueue_many`: one statement, one transaction."""

MAX_PAYLOAD_BYTES = 1_000_000
"""The largest payload, as UTF-8 JSON. Larger things belong in a store of their own, with their key here."""

MAX_KEY_CHARS = 512
"""The longest idempotency key or task name."""

MAX_PAYLOAD_DEPTH = 100
"""How deep a payload may be nested."""

MAX_HORIZON = timedelta(days=36_525)
"""The longest delay or age limit, 100 years: sums with it stay within what PostgreSQL and Python call a date."""

RUN_AT_YEARS = range(1900, 9000)
"""The years a run time may lie in, for the same reason."""

Handler = Callable[..., Awaitable[None] | None]
H = TypeVar("H", bound=Handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDefinition:
    """A registered task: its handler and how its jobs are treated."""

    name: str
    handler: Handler
    is_async: bool
    max_attempts: int
    retry: Retry
    max_age_us: int | None

    async def call_async(self, job: object, payload: Mapping[str, Any]) -> None:
        """Run an ``async def`` handler."""
        running = self.handler(job, **payload)
        assert running is not None  # `is_async` says that the handler returns a coroutine
        await running


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One job as a user asks for it, for :meth:`Client.enqueue_many`.

    At most one of `run_at` (an aware datetime) and `delay` (counted from the database's now) is given;
    with neither the job is due at once.
    """

    task: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    run_at: datetime | None = None
    delay: timedelta | None = None
    idempotency_key: str | None = None


class App:
    """A registry of tasks.

    Examples
    --------
    >>> app = App()
    >>> @app.task(max_attempts=5)
    ... async def remind(job, *, user_id):
    ...     ...
    >>> app.tasks
    ('remind',)
    """

    def __init__(self) -> None:
        self._tasks: dict[str, TaskDefinition] = {}

    @property
    def tasks(self) -> tuple[str, ...]:
        """The registered names, sorted."""
        return tuple(sorted(self._tasks))

    def task(
        self,
        name: str | None = None,
        *,
        max_attempts: int = 3,
        retry: Retry | None = None,
        max_age: timedelta | None = None,
    ) -> Callable[[H], H]:
        """Register the decorated function as a task.

        The handler is called as ``handler(job, **payload)``, where `job` is a
        :class:`~scheduler.pool.RunningJob`. An ``async def`` handler runs on the worker's loop and must not
        block it; a plain function runs in a thread. Delivery is at least once: a handler must be safe to
        run again for the same ``job.job_id``.

        Parameters
        ----------
        name
            The task's name in the table; by default the function's own.
        max_attempts
            How often a job may be claimed, at least 1. Counted at the claim, so that a job which kills its
            worker runs out of attempts too.
        retry
            The pauses between attempts.
        max_age
            How long after its run time a job is still worth running; None for ever.
        """
        if type(max_attempts) is not int or not 1 <= max_attempts <= 1_000_000:
            raise InvalidSetting("max_attempts", max_attempts, "must be a whole number from 1 to 1,000,000")
        if max_age is not None and not timedelta(0) < max_age <= MAX_HORIZON:
            raise InvalidSetting(
                "max_age", max_age, f"must be longer than nothing and at most {MAX_HORIZON.days} days"
            )

        def register(handler: H) -> H:
            key = name if name is not None else getattr(handler, "__name__", "")
            _check_text("a task's name", key)
            if key in self._tasks:
                raise InvalidSetting("task", key, "is registered already; give one of them another name")
            self._tasks[key] = TaskDefinition(
                name=key,
                handler=handler,
                is_async=inspect.iscoroutinefunction(handler),
                max_attempts=max_attempts,
                retry=retry if retry is not None else Retry(),
                max_age_us=None if max_age is None else to_us(max_age),
            )
            return handler

        return register

    def definition(self, task: str) -> TaskDefinition:
        """Return a registered task.

        Raises
        ------
        UnknownTask
            If nobody registered it.
        """
        try:
            return self._tasks[task]
        except KeyError:
            raise UnknownTask(task, self._tasks) from None

    def new_job(self, request: JobRequest, rng: RandomStream) -> NewJob:
        """Validate a request and draw its identity. Raises one of the UsageErrors."""
        definition = self.definition(request.task)
        if request.run_at is not None and request.delay is not None:
            raise UsageError(f"job of {request.task!r}: give run_at or delay, not both")
        run_at_us = None if request.run_at is None else instant_to_us("run_at", request.run_at)
        if request.run_at is not None and request.run_at.year not in RUN_AT_YEARS:
            raise InvalidSetting(
                "run_at",
                str(request.run_at),
                f"its year must be from {RUN_AT_YEARS[0]} to {RUN_AT_YEARS[-1]}",
            )
        delay_us = None
        if run_at_us is None:
            if request.delay is not None and request.delay > MAX_HORIZON:
                raise InvalidSetting("delay", str(request.delay), f"at most {MAX_HORIZON.days} days")
            delay_us = 0 if request.delay is None else to_us(request.delay)
            if delay_us < 0:
                raise InvalidSetting(
                    "delay", request.delay, "cannot be negative; an overdue job takes run_at"
                )
        if request.idempotency_key is not None:
            _check_text("an idempotency key", request.idempotency_key)
        return NewJob(
            job_id=UUID(int=rng.getrandbits(128), version=4),
            task=request.task,
            payload=checked_payload(request.task, request.payload),
            run_at_us=run_at_us,
            delay_us=delay_us,
            max_attempts=definition.max_attempts,
            max_age_us=definition.max_age_us,
            idempotency_key=request.idempotency_key,
        )


class Client:
    """Enqueues the jobs of one application into one store.

    Parameters
    ----------
    rng
        Where job identities come from: a stream seeded by the operating system in production
        (``random.SystemRandom()`` or ``AsyncioClock().rng``), a named stream in a laboratory.
    """

    def __init__(self, app: App, store: Store, *, rng: RandomStream) -> None:
        self._app = app
        self._store = store
        self._rng = rng

    async def enqueue(
        self,
        task: str,
        payload: Mapping[str, Any] | None = None,
        *,
        run_at: datetime | None = None,
        delay: timedelta | None = None,
        idempotency_key: str | None = None,
    ) -> UUID:
        """Enqueue one job and return its identity; with a taken idempotency key, the earlier job's.

        When it returns, the job is in the table. When it raises StoreUnavailable, it may or may not be:
        only a call with an idempotency key is safe to repeat.
        """
        request = JobRequest(
            task=task,
            payload=payload if payload is not None else {},
            run_at=run_at,
            delay=delay,
            idempotency_key=idempotency_key,
        )
        return (await self.enqueue_many([request]))[0]

    async def enqueue_many(self, requests: Iterable[JobRequest]) -> list[UUID]:
        """Enqueue up to `MAX_ENQUEUE` jobs in one transaction; the identities come in the same order.

        Raises
        ------
        IdempotencyConflict
            If a key belongs to a job with another task or payload. The other jobs were enqueued.
        """
        wanted = list(requests)
        if len(wanted) > MAX_ENQUEUE:
            raise TooMany("jobs", len(wanted), MAX_ENQUEUE)
        jobs = [self._app.new_job(request, self._rng) for request in wanted]
        if not jobs:
            return []
        reply = await self._store.enqueue(jobs)
        for job, done in zip(jobs, reply.jobs, strict=True):
            if not done.same:
                raise IdempotencyConflict(job.idempotency_key or "", done.job_id)
        return [done.job_id for done in reply.jobs]


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str) or not text or len(text) > MAX_KEY_CHARS:
        raise InvalidSetting(what, text, f"must be a text of 1 to {MAX_KEY_CHARS} characters")
    if why := _refused(text):
        raise InvalidSetting(what, text, why)


def _refused(text: str) -> str | None:
    if "\x00" in text:
        return "holds a NUL character, which PostgreSQL refuses; remove it"
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        return "holds half of a surrogate pair, which is not Unicode text; remove it"
    return None


def checked_payload(task: str, payload: object) -> dict[str, Any]:
    """Return a copy of a payload that JSONB is sure to accept.

    Raises
    ------
    InvalidPayload
        Saying where in the payload the trouble is: not a JSON object, a value JSON has no word for, a NUL
        character, half of a surrogate pair, NaN or infinity, too large.
    """
    if not isinstance(payload, Mapping):
        raise InvalidPayload(task, "$", f"must be a JSON object (a dict), not {type(payload).__name__}")
    _check_value(task, "$", payload, depth=0)
    text = json.dumps(payload, allow_nan=False, ensure_ascii=False, default=_plain)
    size = len(text.encode())
    if size > MAX_PAYLOAD_BYTES:
        raise InvalidPayload(
            task,
            "$",
            f"{size:,} bytes of JSON, at most {MAX_PAYLOAD_BYTES:,}; store it elsewhere, pass its key",
        )
    copy: dict[str, Any] = json.loads(text)
    return copy


def _refused_number(number: float) -> str | None:
    if isinstance(number, int):
        return "a number of more than 1000 digits" if abs(number) >= 10**1000 else None
    return None if math.isfinite(number) else f"{number} is not a JSON number"


def _plain(value: Any) -> Any:
    """Tell the encoder how to write the mappings and sequences it does not know; others have been refused."""
    return dict(value) if isinstance(value, Mapping) else list(value)


def _check_value(task: str, where: str, value: object, *, depth: int) -> None:
    if depth > MAX_PAYLOAD_DEPTH:
        raise InvalidPayload(task, where, f"nested more than {MAX_PAYLOAD_DEPTH} deep")
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        if why := _refused(value):
            raise InvalidPayload(task, where, why)
    elif isinstance(value, int | float):
        if why := _refused_number(value):
            raise InvalidPayload(task, where, why)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _check_key(task, where, key)
            _check_value(task, f"{where}.{key}", inner, depth=depth + 1)
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        for index, inner in enumerate(value):
            _check_value(task, f"{where}[{index}]", inner, depth=depth + 1)
    else:
        raise InvalidPayload(task, where, f"JSON has no word for {type(value).__name__}; convert it first")


def _check_key(task: str, where: str, key: object) -> None:
    if not isinstance(key, str):
        raise InvalidPayload(task, where, f"the key {key!r} is not text")
    if why := _refused(key):
        raise InvalidPayload(task, f"{where}, the key {key!r}", why)
