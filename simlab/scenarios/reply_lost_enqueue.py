"""The reply to an enqueue is lost: the job is in the table, and the client cannot know.

Asking again is the only thing it can do, and it must be harmless. With an idempotency key it is: the second try finds
the first one's job and is told its identity. Requests that never arrived look the same to the client, and for those
the second try is the one that counts.
"""

from __future__ import annotations

from datetime import timedelta

from scheduler.app import Client
from scheduler.errors import StoreUnavailable
from scheduler.policy import WorkerSettings
from simlab.faults import Fault, ReplyLost, RequestLost
from simlab.naive.key_per_try import KEY_PER_TRY
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, add_client, add_workers
from simlab.world import World

__all__ = ["SCENARIO"]

BETWEEN_US = (100_000, 900_000)
DELAY_US = (1 * SECOND_US, 20 * SECOND_US)
SERVICE_US = (500_000, 2 * SECOND_US)
RETRY_US = 500_000
LOST_IN = 4
"""Of every so many calls, the reply to the second is lost, and the fourth does not arrive."""


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    # As many calls as jobs, and more: every loss is another call.
    rounds = range(0, sizes["n_jobs"], LOST_IN)
    return (
        *(ReplyLost(host="client", verb="enqueue", nth=nth + 2) for nth in rounds),
        *(RequestLost(host="client", verb="enqueue", nth=nth + 4) for nth in rounds),
    )


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    chance = world.streams.stream("arrivals")

    async def load(client: Client) -> None:
        clock = world.hosts["client"].clock
        for n in range(sizes["n_jobs"]):
            await clock.sleep_us(chance.randint(*BETWEEN_US))
            payload = {"n": n, "service_us": chance.randint(*SERVICE_US)}
            delay = timedelta(microseconds=chance.randint(*DELAY_US))
            while True:
                try:
                    await client.enqueue("work", payload, delay=delay, idempotency_key=f"order-{n}")
                except StoreUnavailable:
                    await clock.sleep_us(RETRY_US)
                else:
                    break

    add_workers(world, sizes["n_workers"], settings)
    add_client(world, load)


def _load_us(sizes: Sizes) -> int:
    """Return how long the client takes: a moment for each job, and a time-out and a pause for each loss."""
    losses = 2 * (sizes["n_jobs"] // LOST_IN + 1)
    return sizes["n_jobs"] * BETWEEN_US[1] + losses * (3 * SECOND_US + RETRY_US)


def _work_us(sizes: Sizes) -> int:
    return sizes["n_jobs"] // sizes["n_workers"] * SECOND_US


SCENARIO = Scenario(
    name="reply-lost-enqueue",
    teaches="why an enqueue needs an idempotency key: a lost reply must be asked for again",
    sizes={"n_jobs": 12, "n_workers": 2},
    settings=WorkerSettings(concurrency=4, prefetch=4),
    faults=_faults,
    build=_build,
    until_us=lambda sizes: 40 * SECOND_US + _load_us(sizes) + _work_us(sizes),
    lateness_bound_us=lambda sizes: 6 * SECOND_US + _work_us(sizes),
    variants=(KEY_PER_TRY,),
)
