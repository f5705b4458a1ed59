"""A job's outcome and the sweep of its lease reach the database in the very same microsecond.

Every worker here does one job and stands still just before its end. When it wakes it writes the outcome, and the
network brings that around the lease's last microsecond, where the sweep of another worker arrives too, a little
sooner or later as the seed has it. If the outcome is first, the job has succeeded and the sweep passes it over,
though its lease has run out. If the sweep is first, the outcome is refused, whatever the next owner has come to by
then, and the job is done again: at least once, with one effect.
"""

from __future__ import annotations

from scheduler.app import Client
from scheduler.policy import WorkerSettings
from simlab.faults import At, Delayed, Fault, Pause, RequestLost
from simlab.naive.no_idempotency import NO_IDEMPOTENCY
from simlab.naive.unguarded_finish import UNGUARDED_FINISH
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

DUE_US = 5 * SECOND_US
SERVICE_US = (7 * SECOND_US, 9 * SECOND_US)
# After the effect, in the middle of the work, and before the end of it.
ASLEEP_US = 11 * SECOND_US
AWAKE_US = EXPIRY_US - 10 * TRAVEL_US


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    plan: list[Fault] = []
    for number in range(sizes["n_workers"]):
        host = f"w{number + 1}"
        offset_us = AROUND_US[number % len(AROUND_US)]
        # The handler's end fell due in its sleep: the outcome is sent the moment it wakes, and so is a heartbeat.
        held_up_us = EXPIRY_US + offset_us - (AWAKE_US + TRAVEL_US)
        plan.append(Pause(host=host, when=At(ASLEEP_US), for_us=AWAKE_US - ASLEEP_US))
        plan.append(RequestLost(host=host, verb="heartbeat"))
        plan.append(Delayed(host=host, verb="finish", request_us=held_up_us))
    return tuple(plan)


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    async def load(client: Client) -> None:
        count, chance = sizes["n_workers"], world.streams.stream("service")
        service_us = [chance.randint(*SERVICE_US) for _ in range(count)]
        await client.enqueue_many(jobs_in_order(count, due_us=DUE_US, service_us=service_us, apart_us=1))

    add_single_workers(world, sizes["n_workers"], settings)
    add_sweeper(world, settings, at_us=EXPIRY_US + sweep_offset_us(world))
    add_client(world, load)


SCENARIO = Scenario(
    name="reaper-vs-completion",
    teaches="why an outcome and the sweep of its lease may meet: one of them is first, and the other finds that out",
    sizes={"n_workers": 6},
    settings=SETTINGS,
    faults=_faults,
    build=_build,
    until_us=lambda sizes: EXPIRY_US + (30 + sizes["n_workers"]) * SECOND_US,
    lateness_bound_us=lambda sizes: (1 + sizes["n_workers"] // 16 * 10) * SECOND_US,
    latency=LATENCY,
    variants=(UNGUARDED_FINISH, NO_IDEMPOTENCY),
)
