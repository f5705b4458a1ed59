"""Jobs that take far longer than a lease, on workers that are well.

A lease is not a time limit. It is renewed for as long as its holder is there, and so are the leases of the jobs
that wait behind the slow ones, for a slot: they have been claimed, too. Nothing is taken away from anybody,
and the other workers go on with what is quick.
"""

from __future__ import annotations

from scheduler.app import Client
from scheduler.policy import WorkerSettings
from simlab.faults import Fault, HandlerOverruns
from simlab.naive.age_only_rescue import AGE_ONLY_RESCUE
from simlab.naive.no_heartbeat_while_waiting import NO_HEARTBEAT_WHILE_WAITING
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, add_client, add_workers, jobs_due
from simlab.world import World

__all__ = ["SCENARIO"]

CONCURRENCY = 2
PREFETCH = 3
OVERRUN_US = (100 * SECOND_US, 40 * SECOND_US)
"""By how much the slow ones take longer than they should: the shortest, and how much the longest comes on top."""


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    least_us, more_us = OVERRUN_US
    count = sizes["n_slow"]
    return tuple(HandlerOverruns(job=n, by_us=least_us + n * more_us // count) for n in range(count))


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    async def load(client: Client) -> None:
        slow = jobs_due(
            world,
            sizes["n_slow"],
            due_us=(3 * SECOND_US, 5 * SECOND_US),
            service_us=(10 * SECOND_US, 30 * SECOND_US),
        )
        # Some are claimed early, to wait behind the slow ones; the rest is found when there is room.
        quick = jobs_due(
            world,
            sizes["n_jobs"],
            due_us=(6 * SECOND_US, 40 * SECOND_US),
            service_us=(500_000, 2 * SECOND_US),
            first=len(slow),
        )
        await client.enqueue_many([*slow, *quick])

    add_workers(world, sizes["n_workers"], settings)
    add_client(world, load)


def _slow_us(sizes: Sizes) -> int:
    """Return how long the slow ones can keep a slot busy, one after the other."""
    # One worker may have claimed as many as it can hold; the others then share what is left.
    held = min(sizes["n_slow"], CONCURRENCY + PREFETCH)
    rounds = -(-held // CONCURRENCY) + sizes["n_slow"] // (CONCURRENCY * sizes["n_workers"] + 1)
    return rounds * (sum(OVERRUN_US) + 30 * SECOND_US)


def _quick_us(sizes: Sizes) -> int:
    return sizes["n_jobs"] // sizes["n_workers"] * SECOND_US


SCENARIO = Scenario(
    name="slow-job",
    teaches="why a lease is no time limit: what is renewed is never taken away, running or waiting",
    sizes={"n_jobs": 10, "n_workers": 2, "n_slow": 4},
    settings=WorkerSettings(concurrency=CONCURRENCY, prefetch=PREFETCH),
    faults=_faults,
    build=_build,
    until_us=lambda sizes: 60 * SECOND_US + _slow_us(sizes) + _quick_us(sizes),
    lateness_bound_us=lambda sizes: _slow_us(sizes) + _quick_us(sizes),
    variants=(AGE_ONLY_RESCUE, NO_HEARTBEAT_WHILE_WAITING),
)
