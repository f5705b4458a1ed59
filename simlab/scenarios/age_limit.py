"""Some work is worth nothing any more when it comes too late: its age limit says so.

All workers are away for two minutes. What has waited for longer than its limit when they come back becomes a dead
letter, in the table, without anybody's running it; so does what grows too old while it waits for a slot, and a
failed job whose next attempt would come after its limit: it has attempts left, but no time.
"""

from __future__ import annotations

from datetime import timedelta

from scheduler.app import Client
from scheduler.policy import Retry, WorkerSettings
from simlab.faults import At, Crash, Fault, HandlerRaises
from simlab.naive.age_unasked import AGE_UNASKED
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, Treatment, add_client, add_workers, jobs_due
from simlab.world import World

__all__ = ["MAX_AGE", "SCENARIO"]

MAX_AGE = timedelta(seconds=60)
TREATMENT = Treatment(max_attempts=20, retry=Retry(base_us=8 * SECOND_US), max_age=MAX_AGE)
AWAY_AT_US = 10 * SECOND_US
AWAY_US = 120 * SECOND_US
BACK_US = AWAY_AT_US + AWAY_US
SERVICE_US = (3 * SECOND_US, 8 * SECOND_US)


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    return (
        *(
            Crash(host=f"w{number}", when=At(AWAY_AT_US), restart_after_us=AWAY_US)
            for number in range(1, sizes["n_workers"] + 1)
        ),
        *(HandlerRaises(job=n, attempts=20) for n in range(sizes["n_failing"])),
    )


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    async def load(client: Client) -> None:
        failing = jobs_due(
            world,
            sizes["n_failing"],
            due_us=(BACK_US + 70 * SECOND_US, BACK_US + 80 * SECOND_US),
            service_us=SERVICE_US,
        )
        others = jobs_due(
            world,
            sizes["n_jobs"],
            due_us=(2 * SECOND_US, BACK_US + 20 * SECOND_US),
            service_us=SERVICE_US,
            first=len(failing),
        )
        await client.enqueue_many([*failing, *others])

    add_workers(world, sizes["n_workers"], settings, TREATMENT)
    add_client(world, load, TREATMENT)


SCENARIO = Scenario(
    name="age-limit",
    teaches="how work that comes too late is not run: pending too long, or a retry beyond the limit",
    sizes={"n_jobs": 120, "n_workers": 2, "n_failing": 2},
    settings=WorkerSettings(concurrency=2, prefetch=1),
    faults=_faults,
    build=_build,
    until_us=lambda sizes: BACK_US + 240 * SECOND_US + sizes["n_failing"] * SECOND_US,
    lateness_bound_us=75 * SECOND_US,
    variants=(AGE_UNASKED,),
)
