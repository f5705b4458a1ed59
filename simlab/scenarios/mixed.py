"""Everything at once, in small: what the seed invents, from jobs and machines to faults and orderings.

No story of its own. It is the ground on which ``sweep`` tries seeds and ``explore`` searches: a handful of
jobs of every kind, a few machines, an operator who stops and replaces workers, a plan of faults that all end by
themselves. Whatever comes, every job must end, once the faults are over and within a bound that follows from
the load.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TypeVar
from uuid import UUID

from scheduler.app import App, Client
from scheduler.errors import IdempotencyConflict, StoreUnavailable
from scheduler.jobs import TERMINAL
from scheduler.policy import Retry, WorkerSettings
from scheduler.pool import RunningJob
from simlab.faults import (
    Crash,
    Fault,
    HandlerOverruns,
    StoreClockStep,
    duration_us,
)
from simlab.hosts import HostState, Incarnation
from simlab.naive.no_idempotency import NO_IDEMPOTENCY
from simlab.naive.unguarded_finish import UNGUARDED_FINISH
from simlab.network import Latency
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US
from simlab.streams import Streams
from simlab.workloads import FAULT_WINDOW_S, Experiment, PlannedJob, SeededChoice, Workload, draw_experiment
from simlab.world import World

__all__ = ["SCENARIO"]

T = TypeVar("T")

MAX_TRIES = 1000
"""How often the client repeats a call before it gives up; no plan that is drawn needs so many."""

_SETTINGS = WorkerSettings(
    lookahead_us=10 * SECOND_US,
    poll_interval_us=5 * SECOND_US,
    lease_us=30 * SECOND_US,
    heartbeat_interval_us=5 * SECOND_US,
    drain_timeout_us=10 * SECOND_US,
)
_RETRY = Retry(base_us=1 * SECOND_US, cap_us=8 * SECOND_US)

_SLACK_US = 30 * SECOND_US
"""Polls, sweeps, timeouts and repeats between the end of a lease and the next start, with drifting clocks."""


def _draw(seed: int, sizes: Sizes) -> Experiment:
    choice = SeededChoice(Streams(seed).stream("experiment"))
    return draw_experiment(choice, max_jobs=sizes["max_jobs"], max_faults=sizes["max_faults"])


def _told_with(scenario: Scenario, workload: Workload, faults: tuple[Fault, ...]) -> Scenario:
    settings = replace(_SETTINGS, concurrency=workload.concurrency, prefetch=workload.prefetch)
    work_us = _work_us(workload, faults)
    away_us = sum(settings.drain_timeout_us + stop.replace_after_us for stop in workload.stops)
    bound_us = settings.lease_us + _SLACK_US + work_us + away_us + _set_back_us(faults)
    last_us = max(FAULT_WINDOW_S * SECOND_US, *(job.last_us for job in workload.jobs))
    # Each stop may give back what it cut short, without an attempt being counted.
    tries = max(job.max_attempts for job in workload.jobs) + len(workload.stops)
    until_us = last_us + sum(map(duration_us, faults)) + tries * bound_us
    stay_away = frozenset(f.host for f in faults if isinstance(f, Crash) and f.restart_after_us is None)
    return replace(
        scenario,
        settings=settings,
        build=partial(_build, workload=workload),
        until_us=lambda _: until_us,
        lateness_bound_us=bound_us,
        latency=Latency(workload.latency_us, workload.latency_us + workload.jitter_us),
        settled=partial(_settled, stay_away=stay_away, last_us=last_us),
    )


def _work_us(workload: Workload, faults: Sequence[Fault]) -> int:
    """Return how long one slot would work on all jobs, with every attempt of each."""
    longer: dict[int, int] = {}
    for fault in faults:
        if isinstance(fault, HandlerOverruns):
            longer[fault.job] = longer.get(fault.job, 0) + fault.by_us * fault.attempts
    return sum(
        job.service_us * job.max_attempts + longer.get(number, 0) for number, job in enumerate(workload.jobs)
    )


def _set_back_us(faults: Sequence[Fault]) -> int:
    """Return by how much longer a dead worker's lease may last, for the database's clock is set back."""
    return sum(max(0, -fault.by_us) for fault in faults if isinstance(fault, StoreClockStep))


def _task(job: PlannedJob) -> str:
    return f"work-{job.max_attempts}-{job.max_age_us}"


def _app(world: World, life: Incarnation, workload: Workload) -> App:
    """Return an application with one task for each way of treating a job."""
    app = App()

    async def work(job: RunningJob, *, n: int, service_us: int) -> None:
        await world.work(life, job, n=n, service_us=service_us)

    for task, job in {_task(job): job for job in workload.jobs}.items():
        max_age = None if job.max_age_us is None else timedelta(microseconds=job.max_age_us)
        app.task(name=task, max_attempts=job.max_attempts, max_age=max_age, retry=_RETRY)(work)
    return app


def _build(world: World, sizes: Sizes, settings: WorkerSettings, *, workload: Workload) -> None:
    del sizes

    def boot_worker(life: Incarnation) -> None:
        world.start_worker(life, _app(world, life, workload), settings)

    def boot_client(life: Incarnation) -> None:
        # One client for all of them: identities come from one stream a life.
        client = world.client(life, _app(world, life, workload))
        for number, job in enumerate(workload.jobs):
            user = _User(world, life, client, number, job)
            world.spawn(life, user.enqueue_and_cancel(), f"user of job {number}")

    for number in range(1, workload.n_workers + 1):
        world.add_host(f"w{number}", boot_worker)
    world.add_host("client", boot_client)
    for stop in workload.stops:
        world.stop_worker(f"w{stop.worker}", at_us=stop.at_us, replace_after_us=stop.replace_after_us)


class _User:
    """Enqueues one job, and does the rest of what is planned for it."""

    def __init__(self, world: World, life: Incarnation, client: Client, number: int, job: PlannedJob) -> None:
        self._clock = life.host.clock
        self._client = client
        self._store = world.store_for(life)
        self._number = number
        self._job = job

    async def enqueue_and_cancel(self) -> None:
        job = self._job
        await self._until(job.at_us)
        job_id = await self._enqueue()
        acts: list[tuple[int, Callable[[UUID], Awaitable[object]]]] = [
            (at_us, act)
            for at_us, act in (
                (job.again_us, lambda _: self._enqueue()),
                (job.other_us, lambda _: self._ask_for_another()),
                (job.cancel_us, lambda job_id: self._repeat(lambda: self._store.cancel([job_id]))),
                (job.replay_us, lambda job_id: self._repeat(lambda: self._store.replay([job_id]))),
            )
            if at_us is not None
        ]
        for at_us, act in sorted(acts, key=lambda pair: pair[0]):
            await self._until(at_us)
            if job_id is not None:
                await act(job_id)

    async def _until(self, at_us: int) -> None:
        await self._clock.sleep_us(max(0, at_us - self._clock.now_us()))

    async def _enqueue(self) -> UUID | None:
        """Enqueue the job: again and again where its key makes that safe, else once."""
        if self._job.keyed:
            return await self._repeat(lambda: self._ask(self._job.service_us))
        try:
            return await self._ask(self._job.service_us)
        except StoreUnavailable:
            return None

    async def _ask_for_another(self) -> None:
        """Ask for another job under the same key, which is refused: the key is taken by now."""
        with suppress(IdempotencyConflict):
            await self._repeat(lambda: self._ask(self._job.service_us + 1))

    async def _ask(self, service_us: int) -> UUID:
        job = self._job
        return await self._client.enqueue(
            _task(job),
            {"n": self._number, "service_us": service_us},
            delay=timedelta(microseconds=job.delay_us),
            idempotency_key=f"job {self._number}" if job.keyed else None,
        )

    async def _repeat(self, ask: Callable[[], Awaitable[T]]) -> T:
        for _ in range(MAX_TRIES):
            try:
                return await ask()
            except StoreUnavailable:
                await self._clock.sleep_us(SECOND_US)
        raise StoreUnavailable(f"job {self._number}: {MAX_TRIES} tries were not answered")


def _settled(world: World, *, stay_away: frozenset[str], last_us: int) -> bool:
    """Say whether all that was planned has happened, and nobody is left who could still do something wrong."""
    # A message on its way may still change a row: a replay that was held up in the network, say.
    if world.kernel.now_us < last_us or world.hosts["client"].life.tasks or world.database_host.life.tasks:
        return False
    for name, host in world.hosts.items():
        away = host.state is HostState.CRASHED and name in stay_away
        if not away and (host.state is not HostState.UP or world.holds_jobs(host)):
            return False
    return all(row.state in TERMINAL for row in world.table())


SCENARIO = Scenario(
    name="mixed",
    teaches="everything at once, in small: load, faults and orderings invented by the seed",
    sizes={"max_jobs": 8, "max_faults": 6},
    settings=_SETTINGS,
    faults=lambda _: (),
    build=partial(_build, workload=Workload()),
    until_us=lambda _: 600 * SECOND_US,
    draw=_draw,
    told_with=_told_with,
    variants=(NO_IDEMPOTENCY, UNGUARDED_FINISH),
)
