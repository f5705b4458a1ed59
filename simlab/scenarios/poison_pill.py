"""A job that kills its worker, every time.

A segmentation fault, memory that runs out: the process is gone before it can write that the attempt failed.
Nobody is left to count it, so it was counted before it began, at the claim. After its last attempt the sweep
of expired leases makes it a dead letter, and the machines live in peace again. The jobs that happened to run
beside it are run again elsewhere; they lose an attempt each time, which is why they have more of them.
"""

from __future__ import annotations

from scheduler.app import App, Client, JobRequest
from scheduler.policy import WorkerSettings
from scheduler.pool import RunningJob
from simlab.faults import Fault, HandlerKills
from simlab.hosts import Incarnation
from simlab.naive.attempts_counted_at_end import ATTEMPTS_COUNTED_AT_END
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, jobs_due
from simlab.world import World

__all__ = ["PILL_ATTEMPTS", "SCENARIO"]

PILL_ATTEMPTS = 3
BYSTANDER_ATTEMPTS = 20

ROUND_US = 100 * SECOND_US
"""From one death to the next: the lease, the sweep after it, the claim after that."""


def _app(world: World, life: Incarnation) -> App:
    app = App()

    @app.task(max_attempts=BYSTANDER_ATTEMPTS)
    async def work(job: RunningJob, *, n: int, service_us: int) -> None:
        await world.work(life, job, n=n, service_us=service_us)

    @app.task(max_attempts=PILL_ATTEMPTS)
    async def pill(job: RunningJob, *, n: int) -> None:
        await world.work(life, job, n=n, service_us=200_000)

    return app


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    # For ever, as far as the pill is concerned: only running out of attempts can end it.
    return tuple(
        HandlerKills(job=n, attempts=1_000_000, restart_after_us=5 * SECOND_US)
        for n in range(sizes["n_pills"])
    )


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    def boot_worker(life: Incarnation) -> None:
        world.start_worker(life, _app(world, life), settings)

    def boot_client(life: Incarnation) -> None:
        client: Client = world.client(life, _app(world, life))
        pills = [
            JobRequest(task="pill", payload={"n": job.payload["n"]}, delay=job.delay)
            for job in jobs_due(
                world,
                sizes["n_pills"],
                due_us=(2 * SECOND_US, 10 * SECOND_US),
                service_us=(1, 1),
            )
        ]
        others = jobs_due(
            world,
            sizes["n_jobs"],
            due_us=(1 * SECOND_US, 30 * SECOND_US),
            service_us=(200_000, 3 * SECOND_US),
            first=sizes["n_pills"],
        )

        async def load() -> None:
            await client.enqueue_many([*pills, *others])

        world.spawn(life, load(), "client")

    for number in range(1, sizes["n_workers"] + 1):
        world.add_host(f"w{number}", boot_worker)
    world.add_host("client", boot_client)


def _until_us(sizes: Sizes) -> int:
    rounds = PILL_ATTEMPTS + sizes["n_pills"]
    return rounds * ROUND_US + sizes["n_jobs"] // sizes["n_workers"] * SECOND_US + 60 * SECOND_US


def _lateness_bound_us(sizes: Sizes) -> int:
    # A job that was beside the last death waits for its lease to expire and for the next sweep and poll.
    return 90 * SECOND_US + sizes["n_jobs"] // sizes["n_workers"] * SECOND_US


SCENARIO = Scenario(
    name="poison-pill",
    teaches="why attempts are counted at the claim: a job that kills its worker writes no outcome",
    sizes={"n_jobs": 12, "n_workers": 2, "n_pills": 1},
    settings=WorkerSettings(concurrency=3, prefetch=3),
    faults=_faults,
    build=_build,
    until_us=_until_us,
    lateness_bound_us=_lateness_bound_us,
    variants=(ATTEMPTS_COUNTED_AT_END,),
)
