"""The load: jobs of every kind, and a client that enqueues each until it is told that it is in the table.

Every job has an idempotency key, and a call that was not answered is made again with the same keys: what one key
comes to is one job, however often it was asked for.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from scheduler.app import Client, JobRequest
from scheduler.errors import StoreUnavailable
from scheduler.postgres import PostgresStore, open_postgres
from simlab.chaos_app import chaos
from simlab.streams import Streams

__all__ = ["LoadClient", "PlannedJob", "plan_load"]

SERVICE_US = (5_000, 400_000)
LONG_US = (1_000_000, 5_000_000)
DELAY_US = (0, 3_000_000)

BATCH = 500
"""The most jobs in one call."""

_TICK_S = 0.05
_RETRY_S = 0.1
_TIMEOUT_US = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """One job of the load.

    Attributes
    ----------
    at_us
        When the client first asks for it, from the start of the run.
    delay_us
        How long after that it is due.
    cancel_after_us
        How long after it is in the table the client asks for its cancellation; None for never.
    """

    n: int
    at_us: int
    task: str
    payload: dict[str, Any] = field(default_factory=dict)
    delay_us: int = 0
    cancel_after_us: int | None = None

    @property
    def request(self) -> JobRequest:
        return JobRequest(
            task=self.task,
            payload=self.payload,
            delay=timedelta(microseconds=self.delay_us),
            idempotency_key=f"chaos-{self.n}",
        )


def plan_load(*, seed: int, jobs: int, until_us: int) -> tuple[PlannedJob, ...]:
    """Draw a load: mostly work with and without deduplication, some that fails, dies, ages or is cancelled."""
    chance = Streams(seed).stream("chaos/load")
    planned = []
    for n, at_us in enumerate(sorted(chance.randint(0, until_us) for _ in range(jobs))):
        service_us = chance.randint(*(LONG_US if chance.random() < 0.03 else SERVICE_US))
        delay_us = chance.randint(*DELAY_US)
        kind = chance.random()
        cancel_after_us = None
        if kind < 0.02:
            task, payload = "doomed", {"n": n}
        elif kind < 0.06:
            task, payload = "fleeting", {"service_us": service_us}
        else:
            fails = chance.randint(1, 2) if chance.random() < 0.1 else 0
            payload = {"n": n, "service_us": service_us, "idempotent": n % 2 == 0, "fails": fails}
            task = "work"
            cancel_after_us = chance.randint(0, 4_000_000) if chance.random() < 0.04 else None
        planned.append(
            PlannedJob(
                n=n,
                at_us=at_us,
                task=task,
                payload=payload,
                delay_us=delay_us,
                cancel_after_us=cancel_after_us,
            )
        )
    return tuple(planned)


class LoadClient:
    """Enqueues a load in a thread of its own, in real time.

    Attributes
    ----------
    acknowledged
        The jobs whose enqueueing was answered, and when, in microseconds since the Unix epoch.
    retries
        How many calls were not answered and were made again.
    """

    def __init__(self, dsn: str, load: Sequence[PlannedJob], *, seed: int) -> None:
        self.acknowledged: dict[UUID, int] = {}
        self.retries = 0
        self._dsn = dsn
        self._load = load
        self._rng = Streams(seed).stream("chaos/identities")
        self._cancels: list[tuple[int, UUID]] = []
        self._began_us = 0
        self._giving_up = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="simlab-load", daemon=True)

    def start(self) -> None:
        """Begin now."""
        self._began_us = time.monotonic_ns() // 1000
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether all is enqueued, and all is cancelled that was to be."""
        self.look()
        return not self._thread.is_alive()

    def look(self) -> None:
        """See that the client is well.

        Raises
        ------
        BaseException
            What broke it: a mistake in the laboratory or in the scheduler's own client.
        """
        if self._error is not None:
            raise self._error

    def give_up(self) -> None:
        """Stop asking, and wait for the thread's end."""
        self._giving_up.set()
        if self._thread.ident is not None:
            self._thread.join(10)

    def _run(self) -> None:
        try:
            asyncio.run(self._enqueue_all())
        except BaseException as error:  # noqa: BLE001 - raised again where the run looks
            self._error = error

    async def _enqueue_all(self) -> None:
        left = list(self._load)
        async with open_postgres(self._dsn, connections=2, timeout_us=_TIMEOUT_US) as store:
            client = Client(chaos, store, rng=self._rng)
            while (left or self._cancels) and not self._giving_up.is_set():
                now_us = time.monotonic_ns() // 1000 - self._began_us
                due = [job for job in left[:BATCH] if job.at_us <= now_us]
                if due and await self._enqueue(client, due):
                    left = left[len(due) :]
                await self._cancel_due(store)
                await asyncio.sleep(_TICK_S)

    async def _enqueue(self, client: Client, jobs: Sequence[PlannedJob]) -> bool:
        try:
            ids = await client.enqueue_many([job.request for job in jobs])
        except StoreUnavailable:
            self.retries += 1
            await asyncio.sleep(_RETRY_S)
            return False
        now_us = time.time_ns() // 1000
        for job, job_id in zip(jobs, ids, strict=True):
            self.acknowledged[job_id] = now_us
            if job.cancel_after_us is not None:
                self._cancels.append((time.monotonic_ns() // 1000 + job.cancel_after_us, job_id))
        return True

    async def _cancel_due(self, store: PostgresStore) -> None:
        now_us = time.monotonic_ns() // 1000
        due = [job_id for at_us, job_id in self._cancels if at_us <= now_us]
        if not due:
            return
        try:
            await store.cancel(due)
        except StoreUnavailable:
            self.retries += 1
            return
        self._cancels = [(at_us, job_id) for at_us, job_id in self._cancels if at_us > now_us]
