"""A worker is cut off from the database in the middle of its work, for two minutes.

It cannot renew its leases, and nobody can tell it that they are gone. But it can count: from the moment at which
it sent its last successful renewal, for the length of the lease, and not a moment longer. Then it stops what it
runs, by itself, and only after that does the database give the job to somebody else. When the network is whole
again, it goes on as if nothing had been.
"""

from __future__ import annotations

from scheduler.app import Client
from scheduler.policy import WorkerSettings
from simlab.faults import At, Fault, Partition
from simlab.hosts import Incarnation
from simlab.naive.unwatched_lease import UNWATCHED_LEASE
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, add_client, jobs_due, work_app
from simlab.world import World

__all__ = ["CUT_AT_US", "CUT_US", "SCENARIO"]

OTHERS_AT_US = 12 * SECOND_US
CUT_AT_US = 20 * SECOND_US
CUT_US = 150 * SECOND_US
CONCURRENCY = 4
SERVICE_US = (240 * SECOND_US, 260 * SECOND_US)
"""Half of it, up to the change of the world, is from before the cut to long after the end of the last lease."""


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    # Every other worker, and w1 in any case.
    return tuple(
        Partition(host=f"w{number}", when=At(CUT_AT_US), for_us=CUT_US)
        for number in range(1, sizes["n_workers"] + 1, 2)
    )


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    async def load(client: Client) -> None:
        await client.enqueue_many(
            jobs_due(
                world,
                sizes["n_jobs"],
                due_us=(2 * SECOND_US, 8 * SECOND_US),
                service_us=SERVICE_US,
            )
        )

    def boot(life: Incarnation) -> None:
        world.start_worker(life, work_app(world, life), settings)

    # w1 is alone at first, so that it has work when it is cut off.
    world.add_host("w1", boot)
    for number in range(2, sizes["n_workers"] + 1):
        world.add_host(f"w{number}", boot, starts_at_us=OTHERS_AT_US)
    add_client(world, load)


def _work_us(sizes: Sizes) -> int:
    # The others do it all, if it comes to that.
    awake = max(1, sizes["n_workers"] // 2)
    return (sizes["n_jobs"] // (CONCURRENCY * awake) + 1) * SERVICE_US[1]


SCENARIO = Scenario(
    name="partitioned-worker",
    teaches="how a worker that hears nothing stops in time: it counts its lease from when it asked for it",
    sizes={"n_jobs": 4, "n_workers": 2},
    settings=WorkerSettings(concurrency=CONCURRENCY, prefetch=0),
    faults=_faults,
    build=_build,
    until_us=lambda sizes: CUT_AT_US + CUT_US + 60 * SECOND_US + _work_us(sizes),
    lateness_bound_us=_work_us,
    variants=(UNWATCHED_LEASE,),
)
