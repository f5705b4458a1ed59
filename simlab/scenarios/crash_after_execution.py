"""Power is lost between the work and the record of it.

One worker dies the moment its handler has returned. Another only seems to: it stands still at the same point
for longer than its lease, then wakes and carries on. To the database both are the same silence, so both jobs
are given to somebody else and run again. With a handler that is idempotent by job, nobody outside notices;
and the guard on the outcome refuses what the sleeper still wants to write.
"""

from __future__ import annotations

from datetime import timedelta

from scheduler.app import App, JobRequest
from scheduler.policy import WorkerSettings
from scheduler.pool import RunningJob
from simlab.faults import Crash, Fault, Pause, Reached
from simlab.hosts import Incarnation
from simlab.naive.no_idempotency import NO_IDEMPOTENCY
from simlab.naive.unguarded_finish import UNGUARDED_FINISH
from simlab.scenario import Scenario, Sizes
from simlab.world import World

__all__ = ["SCENARIO"]

SECOND_US = 1_000_000


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    plan: list[Fault] = [
        Crash(host="w1", when=Reached("after_execute"), restart_after_us=20 * SECOND_US),
    ]
    if sizes["n_workers"] > 1:
        plan.append(Pause(host="w2", when=Reached("after_execute", 2), for_us=90 * SECOND_US))
    return tuple(plan)


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    def app_on(life: Incarnation) -> App:
        app = App()

        @app.task(max_attempts=5)
        async def charge(job: RunningJob, *, milliseconds: int) -> None:
            await job.sleep(timedelta(milliseconds=milliseconds))
            await world.effect(life, job)

        return app

    for number in range(1, sizes["n_workers"] + 1):
        world.add_host(f"w{number}", lambda life: _start(world, life, app_on(life), settings))
    world.add_host(
        "client", lambda life: world.spawn(life, _load(world, life, app_on(life), sizes), "client")
    )


def _start(world: World, life: Incarnation, app: App, settings: WorkerSettings) -> None:
    world.start_worker(life, app, settings)


def _until_us(sizes: Sizes) -> int:
    # The faults take four minutes; the work itself, at 1.1 s a job in two slots a worker, its own time.
    return (240 + sizes["n_jobs"] // sizes["n_workers"]) * SECOND_US


async def _load(world: World, life: Incarnation, app: App, sizes: Sizes) -> None:
    arrivals = world.streams.stream("arrivals")
    service = world.streams.stream("service")
    await world.client(life, app).enqueue_many(
        JobRequest(
            task="charge",
            payload={"milliseconds": service.randint(200, 2000)},
            delay=timedelta(microseconds=arrivals.randint(1 * SECOND_US, 20 * SECOND_US)),
        )
        for _ in range(sizes["n_jobs"])
    )


SCENARIO = Scenario(
    name="crash-after-execution",
    teaches="why exactly-once is impossible, and what makes that harmless",
    sizes={"n_jobs": 8, "n_workers": 2},
    settings=WorkerSettings(concurrency=2, prefetch=2),
    faults=_faults,
    build=_build,
    until_us=_until_us,
    variants=(NO_IDEMPOTENCY, UNGUARDED_FINISH),
)
