"""A worker is asked to stop, and its handlers need longer to finish than a lease lasts.

It takes nothing new, gives back at once what had not started (another worker runs that, on time), and goes on
renewing the leases of what still runs: the heartbeat stops last. So the long jobs end here, once.
"""

from __future__ import annotations

from scheduler.app import Client
from scheduler.policy import WorkerSettings
from simlab.faults import Fault, HandlerOverruns
from simlab.naive.heartbeat_stopped_before_drain import HEARTBEAT_STOPPED_BEFORE_DRAIN
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, add_client, add_workers, jobs_due
from simlab.world import World

__all__ = ["SCENARIO", "STOP_AT_US"]

STOP_AT_US = 20 * SECOND_US
LONG_US = (25 * SECOND_US, 35 * SECOND_US)
OVERRUN_US = 130 * SECOND_US
DRAIN_US = 300 * SECOND_US
SHORT_US = (200_000, 1 * SECOND_US)


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    # Two leases and more: how long the handlers that run at the stop take beyond their half minute.
    return tuple(HandlerOverruns(job=n, by_us=OVERRUN_US + n * 5 * SECOND_US) for n in range(_running(sizes)))


def _running(sizes: Sizes) -> int:
    """Return how many jobs are begun before the stop, some of them on every worker."""
    return 2 * sizes["n_workers"]


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    async def load(client: Client) -> None:
        long = jobs_due(world, _running(sizes), due_us=(5 * SECOND_US, 10 * SECOND_US), service_us=LONG_US)
        # Due after the stop: claimed ahead of time, so that some of them wait in the stopping worker's heap.
        short = jobs_due(
            world,
            sizes["n_jobs"],
            due_us=(30 * SECOND_US, 45 * SECOND_US),
            service_us=SHORT_US,
            first=len(long),
        )
        await client.enqueue_many([*long, *short])

    add_workers(world, sizes["n_workers"], settings)
    add_client(world, load)
    world.stop_worker("w1", at_us=STOP_AT_US)


def _lateness_bound_us(sizes: Sizes) -> int:
    others = max(1, sizes["n_workers"] - 1)
    return 1 * SECOND_US + sizes["n_jobs"] // (4 * others) * SHORT_US[1]


SCENARIO = Scenario(
    name="drain",
    teaches="how to stop a worker: give back what waits, keep the leases of what runs, heartbeat last",
    sizes={"n_jobs": 12, "n_workers": 2},
    settings=WorkerSettings(concurrency=6, prefetch=8, drain_timeout_us=DRAIN_US),
    faults=_faults,
    build=_build,
    until_us=lambda sizes: (240 + sizes["n_jobs"] // sizes["n_workers"]) * SECOND_US,
    drain_us=DRAIN_US + 60 * SECOND_US,
    lateness_bound_us=_lateness_bound_us,
    variants=(HEARTBEAT_STOPPED_BEFORE_DRAIN,),
)
