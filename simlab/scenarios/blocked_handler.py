"""An async handler does not await: it blocks its worker's loop for longer than the lease.

Timer, heartbeat and every other job of that worker stand still with it. Its leases expire, the jobs are given to
somebody else and run there; when the loop comes free again, what is left of the old attempts finds out that it
has been fenced off. Healthy handlers suffer for a careless one, but nothing is lost and nothing is done twice.
"""

from __future__ import annotations

from scheduler.app import Client
from scheduler.policy import WorkerSettings
from simlab.faults import Fault, HandlerBlocks
from simlab.naive.no_idempotency import NO_IDEMPOTENCY
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, add_client, add_workers, jobs_due
from simlab.world import World

__all__ = ["SCENARIO"]

BLOCKED_US = 100 * SECOND_US


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    return tuple(HandlerBlocks(job=n, for_us=BLOCKED_US) for n in range(sizes["n_blockers"]))


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    async def load(client: Client) -> None:
        blockers = jobs_due(
            world,
            sizes["n_blockers"],
            due_us=(9 * SECOND_US, 9 * SECOND_US + sizes["n_blockers"] * SECOND_US),
            service_us=(1 * SECOND_US, 3 * SECOND_US),
        )
        # Most have begun beside it when the loop stops, some wait for a slot or in its heap.
        others = jobs_due(
            world,
            sizes["n_jobs"],
            due_us=(6 * SECOND_US, 11 * SECOND_US),
            service_us=(3 * SECOND_US, 9 * SECOND_US),
            first=sizes["n_blockers"],
        )
        await client.enqueue_many([*blockers, *others])

    add_workers(world, sizes["n_workers"], settings)
    add_client(world, load)


def _until_us(sizes: Sizes) -> int:
    # Blocked, and then again for each that was blocked when it was to be taken over.
    blocked_us = (1 + sizes["n_blockers"]) * BLOCKED_US
    return blocked_us + (120 + 2 * sizes["n_jobs"] // sizes["n_workers"]) * SECOND_US


def _lateness_bound_us(sizes: Sizes) -> int:
    return (10 + 2 * sizes["n_jobs"] // sizes["n_workers"]) * SECOND_US


SCENARIO = Scenario(
    name="blocked-handler",
    teaches="what a handler that blocks its loop does to its neighbours, and why that is harmless",
    sizes={"n_jobs": 10, "n_workers": 2, "n_blockers": 1},
    settings=WorkerSettings(concurrency=4, prefetch=4),
    faults=_faults,
    build=_build,
    until_us=_until_us,
    lateness_bound_us=_lateness_bound_us,
    variants=(NO_IDEMPOTENCY,),
)
