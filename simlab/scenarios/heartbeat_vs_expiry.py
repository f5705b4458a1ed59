"""A heartbeat and a sweep reach the database in the very microsecond in which a lease expires.

Every worker here holds one job, stands still for most of its lease, wakes, and sends a heartbeat that the
network holds up until around the lease's last microsecond. In that same microsecond the sweep of another worker
arrives, a little sooner or later as the seed has it. If the heartbeat is first, even at the last moment or just
after it, the lease goes on and so does the work. If the sweep is first the job is given away, and the heartbeat
is refused: before the next claim, after it, and when the job runs elsewhere already. There is no third outcome.

The workers' clocks are a little slow, so that they believe in their leases for some milliseconds too long and
wait for the answer. Those after the sixth have exact clocks, and have given up by their own count before it comes.
"""

from __future__ import annotations

from scheduler.app import Client
from scheduler.policy import WorkerSettings
from simlab.faults import At, ClockDrift, Delayed, Fault, Pause
from simlab.naive.heartbeat_without_guard import HEARTBEAT_WITHOUT_GUARD
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, add_client
from simlab.scenarios.instants import (
    AROUND_US,
    CLAIM_US,
    LATENCY,
    TRAVEL_US,
    add_single_workers,
    add_sweeper,
    jobs_in_order,
    sweep_offset_us,
)
from simlab.world import World

__all__ = ["EXPIRY_US", "SCENARIO"]

SETTINGS = WorkerSettings(concurrency=16, prefetch=0)

EXPIRY_US = CLAIM_US + SETTINGS.lease_us
"""When the leases expire, in virtual microseconds."""

ASLEEP_US = 10 * SECOND_US
AWAKE_US = EXPIRY_US - 10 * TRAVEL_US
SLOW_PPM = -500
DUE_US = 5 * SECOND_US
SERVICE_US = (90 * SECOND_US, 100 * SECOND_US)


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    plan: list[Fault] = []
    for number in range(sizes["n_workers"]):
        host = f"w{number + 1}"
        offset_us = AROUND_US[number % len(AROUND_US)]
        if number % (2 * len(AROUND_US)) < len(AROUND_US):
            plan.append(ClockDrift(host=host, when=At(ASLEEP_US), ppm=SLOW_PPM))
        # The heartbeat that fell due in its sleep is sent the moment it wakes.
        held_up_us = EXPIRY_US + offset_us - (AWAKE_US + TRAVEL_US)
        plan.append(Pause(host=host, when=At(ASLEEP_US), for_us=AWAKE_US - ASLEEP_US))
        plan.append(Delayed(host=host, verb="heartbeat", request_us=held_up_us))
    return tuple(plan)


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    async def load(client: Client) -> None:
        count, chance = sizes["n_workers"], world.streams.stream("service")
        service_us = [chance.randint(*SERVICE_US) for _ in range(count)]
        await client.enqueue_many(jobs_in_order(count, due_us=DUE_US, service_us=service_us, apart_us=1))

    add_single_workers(world, sizes["n_workers"], settings)
    add_sweeper(world, settings, at_us=EXPIRY_US + sweep_offset_us(world))
    add_client(world, load)


def _until_us(sizes: Sizes) -> int:
    # One lease until the race, another until what was renewed for nobody is found, and the work.
    return 2 * SETTINGS.lease_us + (120 + sizes["n_workers"]) * SECOND_US


SCENARIO = Scenario(
    name="heartbeat-vs-expiry",
    headline=True,
    teaches="why renewing and taking over are decided in one place: both orders, a microsecond apart, are safe",
    sizes={"n_workers": 7},
    settings=SETTINGS,
    faults=_faults,
    build=_build,
    until_us=_until_us,
    # One that had given up when its heartbeat was accepted leaves the job to whoever sweeps after another lease.
    lateness_bound_us=SETTINGS.lease_us + SETTINGS.sweep_interval_us + SETTINGS.poll_interval_us,
    latency=LATENCY,
    variants=(HEARTBEAT_WITHOUT_GUARD,),
)
