"""Everyone chose midnight: very many jobs are due at one and the same instant.

The index is walked by all workers at once (SKIP LOCKED lets them pass each other), each takes no more than it
has room for, its slots bound what runs at once, and starts and outcomes travel in batches that grow with the
load. The last job begins when the slots have worked off the ones before it, and no later.
"""

from __future__ import annotations

from scheduler.app import Client, JobRequest
from scheduler.jobs import from_us
from scheduler.policy import WorkerSettings
from simlab.faults import At, Fault, Pause
from simlab.hosts import EPOCH_US
from simlab.naive.thread_per_job import THREAD_PER_JOB
from simlab.network import Latency
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, add_client, add_workers
from simlab.world import World

__all__ = ["SCENARIO"]

MIDNIGHT_US = 20 * SECOND_US
"""When it strikes, in virtual time."""

SERVICE_US = (20_000, 180_000)
SETTINGS = WorkerSettings(concurrency=100, prefetch=100)

BATCH = 5_000
"""How many jobs the client enqueues in one call."""


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    # One worker of several stands still in the middle of it, for less than its lease: the others go on.
    if sizes["n_workers"] == 1:
        return ()
    return (Pause(host="w1", when=At(MIDNIGHT_US + 500_000), for_us=5 * SECOND_US),)


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    service = world.streams.stream("service")
    midnight = from_us(EPOCH_US + MIDNIGHT_US)

    async def load(client: Client) -> None:
        for first in range(0, sizes["n_jobs"], BATCH):
            numbers = range(first, min(first + BATCH, sizes["n_jobs"]))
            await client.enqueue_many(
                JobRequest(
                    task="work", payload={"n": n, "service_us": service.randint(*SERVICE_US)}, run_at=midnight
                )
                for n in numbers
            )

    add_workers(world, sizes["n_workers"], settings)
    add_client(world, load)


def _work_us(sizes: Sizes) -> int:
    """Return a bound on how long the slots take to work everything off, if no slot waits for long."""
    slots = sizes["n_workers"] * SETTINGS.concurrency
    return (sizes["n_jobs"] // slots + 1) * SERVICE_US[1]


def _until_us(sizes: Sizes) -> int:
    return MIDNIGHT_US + _work_us(sizes) + 10 * SECOND_US


def _lateness_bound_us(sizes: Sizes) -> int:
    return _work_us(sizes) + 2 * SECOND_US


SCENARIO = Scenario(
    name="midnight-stampede",
    headline=True,
    teaches="what very many jobs due at one instant cost, and what slots, batches and SKIP LOCKED are for",
    sizes={"n_jobs": 100_000, "n_workers": 10},
    small={"n_jobs": 300, "n_workers": 2},
    settings=SETTINGS,
    faults=_faults,
    build=_build,
    until_us=_until_us,
    latency=Latency(low_us=200, high_us=800),
    lateness_bound_us=_lateness_bound_us,
    variants=(THREAD_PER_JOB,),
)
