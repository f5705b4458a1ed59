"""The database is restarted twice: once quickly, and once it stays away for longer than a lease.

What it has acknowledged is still there afterwards; connections, and what was under way on them, are not. The quick
restart costs nobody anything: calls are made again, and outcomes are written a little later. In the long outage the
workers count their leases to the end and stop what runs, for when the database is back the jobs are anybody's.
"""

from __future__ import annotations

from scheduler.app import Client
from scheduler.policy import WorkerSettings
from simlab.faults import At, Fault, StoreRestart
from simlab.naive.no_idempotency import NO_IDEMPOTENCY
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, add_client, add_workers, jobs_due
from simlab.world import World

__all__ = ["SCENARIO"]

QUICK_AT_US, QUICK_US = 20 * SECOND_US, 10 * SECOND_US
LONG_AT_US, LONG_US = 80 * SECOND_US, 90 * SECOND_US
BACK_US = LONG_AT_US + LONG_US
LONG_SERVICE_US = (138 * SECOND_US, 142 * SECOND_US)
"""Running from before both; half of it, and the change of the world, is before the second, the end after the leases'."""

CONCURRENCY = 4


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    del sizes
    return (
        StoreRestart(when=At(QUICK_AT_US), down_us=QUICK_US),
        StoreRestart(when=At(LONG_AT_US), down_us=LONG_US),
    )


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    async def load(client: Client) -> None:
        long = jobs_due(
            world, sizes["n_long"], due_us=(4 * SECOND_US, 6 * SECOND_US), service_us=LONG_SERVICE_US
        )
        short = jobs_due(
            world,
            sizes["n_jobs"],
            due_us=(5 * SECOND_US, 200 * SECOND_US),
            service_us=(1 * SECOND_US, 6 * SECOND_US),
            first=len(long),
        )
        await client.enqueue_many([*long, *short])

    add_workers(world, sizes["n_workers"], settings)
    add_client(world, load)


def _work_us(sizes: Sizes) -> int:
    slots = CONCURRENCY * sizes["n_workers"]
    return sizes["n_jobs"] // slots * 6 * SECOND_US + sizes["n_long"] // slots * LONG_SERVICE_US[1]


SCENARIO = Scenario(
    name="store-restart",
    teaches="what a restart of the database costs: nothing that was acknowledged, and no more than the leases it outlasts",
    sizes={"n_jobs": 20, "n_workers": 2, "n_long": 3},
    settings=WorkerSettings(concurrency=CONCURRENCY, prefetch=2),
    faults=_faults,
    build=_build,
    until_us=lambda sizes: BACK_US + 60 * SECOND_US + LONG_SERVICE_US[1] + 2 * _work_us(sizes),
    lateness_bound_us=lambda sizes: 30 * SECOND_US + 2 * _work_us(sizes),
    variants=(NO_IDEMPOTENCY,),
)
