"""Two clients use the same idempotency keys, for the same request and for different ones.

For the same request the second is told "already there" and gets the first one's job. For another request under
a key that is taken it gets an IdempotencyConflict: answering "already there" would lose it silently. Either
way there is one job a key, whichever of the two was first; and a reply that is lost is asked for again, which
is what the keys are for.
"""

from __future__ import annotations

from datetime import timedelta

from scheduler.app import Client
from scheduler.errors import IdempotencyConflict, StoreUnavailable
from scheduler.policy import RandomStream, WorkerSettings
from simlab.faults import Fault, ReplyLost
from simlab.naive.key_per_try import KEY_PER_TRY
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, add_client, add_workers
from simlab.world import World

__all__ = ["CLIENTS", "SCENARIO", "is_conflict"]

CLIENTS = ("alice", "bob")
BETWEEN_US = (0, 4_000)
"""The pause between two keys: about as long as a call, so that either client may be the first."""

RETRY_US = 500_000
SERVICE_US = 200_000


def is_conflict(n: int) -> bool:
    """Say whether the clients ask for different things under key number `n`."""
    return n % 2 == 1


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    del sizes
    return tuple(ReplyLost(host=client, verb="enqueue", nth=2 + n) for n, client in enumerate(CLIENTS))


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    def add(number: int, name: str) -> None:
        chance: RandomStream = world.streams.stream(f"arrivals/{name}")

        async def load(client: Client) -> None:
            clock = world.hosts[name].clock
            for n in range(sizes["n_keys"]):
                await clock.sleep_us(chance.randint(*BETWEEN_US))
                payload = {"n": n, "service_us": SERVICE_US + (number if is_conflict(n) else 0)}
                asked = False
                while not asked:
                    try:
                        await client.enqueue(
                            "work", payload, delay=timedelta(seconds=10), idempotency_key=f"order-{n}"
                        )
                    except StoreUnavailable:
                        await clock.sleep_us(RETRY_US)
                        continue
                    except IdempotencyConflict:
                        pass  # As it should be: the other client's request has the key, and the history says so.
                    asked = True

        add_client(world, load, name=name)

    add_workers(world, sizes["n_workers"], settings)
    for number, name in enumerate(CLIENTS):
        add(number, name)


SCENARIO = Scenario(
    name="same-key-conflict",
    teaches="what an idempotency key promises: one job a key, and no request lost without a word",
    sizes={"n_keys": 10, "n_workers": 2},
    settings=WorkerSettings(concurrency=4, prefetch=8),
    faults=_faults,
    build=_build,
    until_us=lambda sizes: 30 * SECOND_US + sizes["n_keys"] * SERVICE_US,
    lateness_bound_us=lambda sizes: 100_000 + sizes["n_keys"] * SERVICE_US,
    variants=(KEY_PER_TRY,),
)
