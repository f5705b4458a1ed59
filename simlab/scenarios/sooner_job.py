"""While the timer waits for a job that is far off, a sooner one arrives.

A timer that slept until its first entry would sleep through it. This one waits for "the first entry is due,
or somebody pushed a sooner one", whichever comes first. Nothing needs to go wrong for this story.
"""

from __future__ import annotations

from datetime import timedelta

from scheduler.app import Client, JobRequest
from scheduler.policy import WorkerSettings
from simlab.faults import Fault
from simlab.naive.sleeping_timer import SLEEPING_TIMER
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, add_client, add_workers
from simlab.world import World

__all__ = ["SCENARIO"]

ROUND_US = 40 * SECOND_US
FAR_US = (26 * SECOND_US, 29 * SECOND_US)
"""Within the lookahead, so that it is in the heap at once."""

SOONER_US = (7 * SECOND_US, 12 * SECOND_US)
"""Longer than the pause between polls, so that it is found before it is due, and well before the far one."""

SERVICE_US = 100_000


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    del sizes
    return ()


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    arrivals = world.streams.stream("arrivals")

    def job(n: int, due_us: tuple[int, int]) -> JobRequest:
        delay = timedelta(microseconds=arrivals.randint(*due_us))
        return JobRequest(task="work", payload={"n": n, "service_us": SERVICE_US}, delay=delay)

    async def load(client: Client) -> None:
        clock = world.hosts["client"].clock
        for number in range(sizes["n_rounds"]):
            began_us = clock.now_us()
            # A far one for every worker; then, once they wait for those, a sooner one for each.
            first = 2 * number * sizes["n_workers"]
            await client.enqueue_many(job(first + n, FAR_US) for n in range(sizes["n_workers"]))
            await clock.sleep_us(6 * SECOND_US)
            first += sizes["n_workers"]
            await client.enqueue_many(job(first + n, SOONER_US) for n in range(sizes["n_workers"]))
            await clock.sleep_us(began_us + ROUND_US - clock.now_us())

    add_workers(world, sizes["n_workers"], settings)
    add_client(world, load)


SCENARIO = Scenario(
    name="sooner-job",
    teaches="why the timer's wait must be interruptible: a sooner job may arrive at any moment",
    sizes={"n_rounds": 3, "n_workers": 1},
    settings=WorkerSettings(concurrency=4, prefetch=8),
    faults=_faults,
    build=_build,
    until_us=lambda sizes: sizes["n_rounds"] * ROUND_US + 5 * SECOND_US,
    lateness_bound_us=20_000,
    variants=(SLEEPING_TIMER,),
)
