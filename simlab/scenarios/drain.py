"""A worker is asked to stop, and its handlers need longer to finish than a lease lasts.

It takes nothing new, gives back at once what had not started (another worker runs that, on time), and goes on
renewing the leases of what still runs: the heartbeat stops last. So the long jobs end here, once.
"""

from __future__ import annotations

from scheduler.app import Client
from scheduler.policy import WorkerSettings
from simlab.faults import Fault, HandlerOverruns
from simlab.hosts import Incarnation
from simlab.naive.heartbeat_stopped_before_drain import HEARTBEAT_STOPPED_BEFORE_DRAIN
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, add_client, jobs_due, work_app
from simlab.world import World

__all__ = ["SCENARIO", "STOP_AT_US"]

OTHERS_AT_US = 14 * SECOND_US
STOP_AT_US = 20 * SECOND_US
CONCURRENCY = 6
LONG_US = (25 * SECOND_US, 35 * SECOND_US)
OVERRUN_US = 130 * SECOND_US
DRAIN_US = 300 * SECOND_US
SHORT_US = (200_000, 1 * SECOND_US)


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    # Two leases and more: how long the handlers that run at the stop take beyond their half minute.
    return tuple(
        HandlerOverruns(job=n, by_us=OVERRUN_US + n % CONCURRENCY * 5 * SECOND_US)
        for n in range(sizes["n_long"])
    )


def _rounds_us(sizes: Sizes) -> int:
    """Return how long the long jobs take beyond the first that fill the slots: those are given back, and run later."""
    return (sizes["n_long"] - 1) // CONCURRENCY * 200 * SECOND_US


def _spread_us(sizes: Sizes) -> int:
    """Return the time in which the short jobs come due: a second for each that one of the others has to run."""
    return sizes["n_jobs"] * SECOND_US // sizes["n_others"]


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    async def load(client: Client) -> None:
        long = jobs_due(world, sizes["n_long"], due_us=(5 * SECOND_US, 10 * SECOND_US), service_us=LONG_US)
        # Due after the stop: claimed ahead of time, so that some of them wait in the stopping worker's heap.
        short = jobs_due(
            world,
            sizes["n_jobs"],
            due_us=(30 * SECOND_US, 30 * SECOND_US + _spread_us(sizes)),
            service_us=SHORT_US,
            first=len(long),
        )
        await client.enqueue_many([*long, *short])

    def boot(life: Incarnation) -> None:
        world.start_worker(life, work_app(world, life), settings)

    # w1 is alone at first and has all that runs; the others come before it goes, and take over.
    world.add_host("w1", boot)
    for number in range(2, sizes["n_others"] + 2):
        world.add_host(f"w{number}", boot, starts_at_us=OTHERS_AT_US)
    add_client(world, load)
    world.stop_worker("w1", at_us=STOP_AT_US)


def _lateness_bound_us(sizes: Sizes) -> int:
    return 1 * SECOND_US + _rounds_us(sizes)


SCENARIO = Scenario(
    name="drain",
    teaches="how to stop a worker: give back what waits, keep the leases of what runs, heartbeat last",
    sizes={"n_jobs": 12, "n_others": 1, "n_long": 4},
    settings=WorkerSettings(concurrency=CONCURRENCY, prefetch=40, drain_timeout_us=DRAIN_US),
    faults=_faults,
    build=_build,
    until_us=lambda sizes: 240 * SECOND_US + _spread_us(sizes) + _rounds_us(sizes),
    drain_us=DRAIN_US + 60 * SECOND_US,
    lateness_bound_us=_lateness_bound_us,
    variants=(HEARTBEAT_STOPPED_BEFORE_DRAIN,),
)
