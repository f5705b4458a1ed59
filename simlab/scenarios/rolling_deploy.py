"""A new version is rolled out under load: workers are stopped and replaced one after the other.

Each drains, ends, and comes back a few seconds later as a new process with a name of its own making, which is
why the new one is never mistaken for the old. Jobs keep coming due all the while; none is late by more
than it takes to be given back and found again, and none is run twice.
"""

from __future__ import annotations

from scheduler.app import Client
from scheduler.policy import WorkerSettings
from simlab.faults import At, Crash, Fault
from simlab.naive.queue_in_memory import QUEUE_IN_MEMORY
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, add_client, add_workers, jobs_due
from simlab.world import World

__all__ = ["SCENARIO"]

FIRST_US = 30 * SECOND_US
STEP_US = 20 * SECOND_US
BOOT_US = 3 * SECOND_US


def _rollout_us(sizes: Sizes) -> int:
    return FIRST_US + sizes["n_workers"] * STEP_US


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    # The last one to be replaced loses power before its turn, and comes back by itself.
    last = sizes["n_workers"]
    return (
        Crash(
            host=f"w{last}", when=At(_rollout_us(sizes) - STEP_US - 2 * SECOND_US), restart_after_us=SECOND_US
        ),
    )


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    async def load(client: Client) -> None:
        await client.enqueue_many(
            jobs_due(
                world,
                sizes["n_jobs"],
                due_us=(5 * SECOND_US, _rollout_us(sizes) + 20 * SECOND_US),
                service_us=(200_000, 6 * SECOND_US),
            )
        )

    add_workers(world, sizes["n_workers"], settings)
    add_client(world, load)
    for number in range(sizes["n_workers"]):
        world.stop_worker(f"w{number + 1}", at_us=FIRST_US + number * STEP_US, replace_after_us=BOOT_US)


def _backlog_us(sizes: Sizes) -> int:
    return sizes["n_jobs"] // sizes["n_workers"] * SECOND_US


SCENARIO = Scenario(
    name="rolling-deploy",
    teaches="how a fleet is replaced under load, one worker at a time, with nothing lost and nothing run twice",
    sizes={"n_jobs": 60, "n_workers": 3},
    settings=WorkerSettings(concurrency=4, prefetch=6),
    faults=_faults,
    build=_build,
    until_us=lambda sizes: _rollout_us(sizes) + _backlog_us(sizes) + 120 * SECOND_US,
    lateness_bound_us=lambda sizes: 75 * SECOND_US + _backlog_us(sizes),
    variants=(QUEUE_IN_MEMORY,),
)
