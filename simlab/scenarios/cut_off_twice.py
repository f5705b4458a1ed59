"""A worker is cut off, comes back with an outcome that it could not write, takes new work, and is cut off again.

While it was cut off its handlers ended, and their outcomes are still waiting to be written when all their leases have
run out: there is nothing left whose lease is worth watching. The new work comes in that moment. Its lease must be
watched all the same, for the network fails a second time, and whoever forgets to look goes on for as long as its
handlers do, while others have the jobs.
"""

from __future__ import annotations

from scheduler.app import Client
from scheduler.policy import WorkerSettings
from simlab.faults import At, Fault, Partition, RequestLost
from simlab.hosts import Incarnation
from simlab.naive.watch_of_the_first_only import WATCH_OF_THE_FIRST_ONLY
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, add_client, jobs_due, work_app
from simlab.world import World

__all__ = ["SCENARIO"]

FIRST_CUT_US = 10 * SECOND_US
CUT_US = 100 * SECOND_US
SECOND_CUT_US = 140 * SECOND_US
LOST_FINISHES = 45
"""How many tries to write an outcome are lost in any case: those of the first cut, and some more after it."""

LATE_US = 5 * SECOND_US
ARRIVALS_US = 20 * SECOND_US
"""Over so long the later jobs are enqueued, between the cuts."""

CONCURRENCY = 8
SHORT_US = (10 * SECOND_US, 30 * SECOND_US)
"""How long the first jobs work: to somewhere in the first cut, before their leases run out."""

LONG_US = (240 * SECOND_US, 260 * SECOND_US)
"""How long the later ones work: half of it, up to the change of the world, is past the end of their leases."""


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    # All but the last, if there is more than one: somebody has to see the leases run out.
    names = [f"w{number}" for number in range(1, max(2, sizes["n_workers"]))]
    cuts = [
        Partition(host=name, when=At(at_us), for_us=CUT_US)
        for name in names
        for at_us in (FIRST_CUT_US, SECOND_CUT_US)
    ]
    lost = [
        RequestLost(host=name, verb="finish", nth=n) for name in names for n in range(1, LOST_FINISHES + 1)
    ]
    return (*cuts, *lost)


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    n_jobs = sizes["n_jobs"]

    async def load(client: Client) -> None:
        clock = world.hosts["client"].clock
        now = (1 * SECOND_US, 2 * SECOND_US)
        await client.enqueue_many(jobs_due(world, n_jobs, due_us=now, service_us=SHORT_US))
        later = jobs_due(world, n_jobs, due_us=now, service_us=LONG_US, first=n_jobs)
        await clock.sleep_us(FIRST_CUT_US + CUT_US + 2 * SECOND_US - clock.now_us())
        for job in later:  # One after the other, so that nobody gets them all.
            await client.enqueue_many([job])
            await clock.sleep_us(ARRIVALS_US // n_jobs)

    def boot(life: Incarnation) -> None:
        world.start_worker(life, work_app(world, life), settings)

    # The last one starts late, so that the others have work when they are cut off.
    last = sizes["n_workers"]
    for number in range(1, last + 1):
        world.add_host(f"w{number}", boot, starts_at_us=LATE_US if number == last > 1 else 0)
    add_client(world, load)


def _work_us(sizes: Sizes) -> int:
    """Return how long one worker takes for everything, which is what it may come to while the others are cut off."""
    return (sizes["n_jobs"] // CONCURRENCY + 1) * (SHORT_US[1] + 2 * LONG_US[1])


SCENARIO = Scenario(
    name="cut-off-twice",
    teaches="why every new lease is watched: one may come while only outcomes that cannot be written are held",
    sizes={"n_jobs": 4, "n_workers": 2},
    settings=WorkerSettings(concurrency=CONCURRENCY, prefetch=CONCURRENCY),
    faults=_faults,
    build=_build,
    until_us=lambda sizes: SECOND_CUT_US + CUT_US + 120 * SECOND_US + _work_us(sizes),
    lateness_bound_us=lambda sizes: 80 * SECOND_US + _work_us(sizes),
    variants=(WATCH_OF_THE_FIRST_ONLY,),
)
