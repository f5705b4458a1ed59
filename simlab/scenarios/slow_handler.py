"""One handler takes minutes, and nobody else may notice.

It awaits properly, so it costs one slot and nothing more: the timer goes on firing into the other slots, and
the heartbeat keeps the long job's lease alive for many times its length.
"""

from __future__ import annotations

from scheduler.app import Client
from scheduler.policy import WorkerSettings
from simlab.faults import Fault, HandlerOverruns
from simlab.naive.runs_on_timer import RUNS_ON_TIMER
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, add_client, add_workers, jobs_due
from simlab.world import World

__all__ = ["SCENARIO"]

OVERRUN_US = 200 * SECOND_US
SERVICE_US = (50_000, 400_000)


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    del sizes
    return (HandlerOverruns(job=0, by_us=OVERRUN_US),)


def _spread_us(sizes: Sizes) -> int:
    # At most one job in two seconds for a worker with eight slots: a slot is always free.
    return sizes["n_jobs"] * 2 * SECOND_US // sizes["n_workers"]


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    async def load(client: Client) -> None:
        slow = jobs_due(world, 1, due_us=(8 * SECOND_US, 8 * SECOND_US), service_us=SERVICE_US)
        others = jobs_due(
            world,
            sizes["n_jobs"],
            due_us=(9 * SECOND_US, 9 * SECOND_US + _spread_us(sizes)),
            service_us=SERVICE_US,
            first=1,
        )
        await client.enqueue_many([*slow, *others])

    add_workers(world, sizes["n_workers"], settings)
    add_client(world, load)


SCENARIO = Scenario(
    name="slow-handler",
    teaches="why handlers run in slots and never on the timer: one slow job must not make the others late",
    sizes={"n_jobs": 40, "n_workers": 1},
    settings=WorkerSettings(concurrency=8, prefetch=16),
    faults=_faults,
    build=_build,
    until_us=lambda sizes: OVERRUN_US + _spread_us(sizes) + 20 * SECOND_US,
    lateness_bound_us=20_000,
    variants=(RUNS_ON_TIMER,),
)
