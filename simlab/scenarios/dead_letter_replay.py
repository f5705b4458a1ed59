"""An operator replays dead letters while the worker they died with is only asleep.

The jobs may be attempted once. Their worker stands still, its leases expire, and since there is no attempt left
the sweep makes dead letters of them. The operator gives them another chance: the attempts begin again, so that the
next attempt is number 1 once more. Then the sleeper wakes, with attempt number 1 of the same job in its hands. The
token tells the two apart, because it was not reset.
"""

from __future__ import annotations

from scheduler.app import Client
from scheduler.errors import StoreUnavailable
from scheduler.policy import WorkerSettings
from simlab.faults import At, Fault, Pause
from simlab.hosts import Incarnation
from simlab.naive.replay_resets_token import REPLAY_RESETS_TOKEN
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, Treatment, add_workers, jobs_due, work_app
from simlab.world import World

__all__ = ["SCENARIO"]

ASLEEP_AT_US = 10 * SECOND_US
REPLAY_AT_US = 100 * SECOND_US
"""After every lease of a sleeper has expired and been swept."""

AWAKE_AT_US = 115 * SECOND_US
RETRY_US = 1 * SECOND_US
DUE_US = (2 * SECOND_US, 3 * SECOND_US)
SERVICE_US = (20 * SECOND_US, 28 * SECOND_US)
CONCURRENCY = 2
ONCE = Treatment(max_attempts=1)


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    # All but the last, if there is more than one: somebody has to be awake.
    return tuple(
        Pause(host=f"w{n + 1}", when=At(ASLEEP_AT_US), for_us=AWAKE_AT_US - ASLEEP_AT_US)
        for n in range(max(1, sizes["n_workers"] - 1))
    )


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    def boot_operator(life: Incarnation) -> None:
        client: Client = world.client(life, work_app(world, life, ONCE))
        store = world.store_for(life)
        clock = life.host.clock

        async def load_and_replay() -> None:
            jobs = await client.enqueue_many(
                jobs_due(world, sizes["n_jobs"], due_us=DUE_US, service_us=SERVICE_US)
            )
            await clock.sleep_us(REPLAY_AT_US - clock.now_us())
            answered = False
            while not answered:
                try:
                    await store.replay(jobs)  # What has not failed is left as it is.
                    answered = True
                except StoreUnavailable:
                    await clock.sleep_us(RETRY_US)

        world.spawn(life, load_and_replay(), "operator")

    add_workers(world, sizes["n_workers"], settings, ONCE)
    world.add_host("operator", boot_operator)


def _work_us(sizes: Sizes) -> int:
    """Return how long one worker takes for everything, which is what it may come to while the others sleep."""
    return (sizes["n_jobs"] // CONCURRENCY + 1) * SERVICE_US[1]


SCENARIO = Scenario(
    name="dead-letter-replay",
    teaches="why an operator's replay resets the attempts and never the token: the old holder may only be asleep",
    sizes={"n_jobs": 6, "n_workers": 2},
    settings=WorkerSettings(concurrency=CONCURRENCY, prefetch=2),
    faults=_faults,
    build=_build,
    until_us=lambda sizes: AWAKE_AT_US + 70 * SECOND_US + 2 * _work_us(sizes),
    lateness_bound_us=lambda sizes: 80 * SECOND_US + _work_us(sizes),
    variants=(REPLAY_RESETS_TOKEN,),
)
