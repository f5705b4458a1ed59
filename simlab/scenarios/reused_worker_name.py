"""A machine loses power, comes back under the same name, and gets the same job again.

Just before, the old worker had written the outcome, and the network holds that message up for more than a minute: it
arrives when the new worker of the same name is at work on the same job. By its name it is the new worker's. The
fencing token says that it is not, and so does the name itself, for a worker adds a number of its own to it at
every start.
"""

from __future__ import annotations

from datetime import timedelta

from scheduler.app import Client, JobRequest
from scheduler.policy import WorkerSettings
from simlab.faults import At, Crash, Delayed, Fault
from simlab.naive.owner_name_as_token import OWNER_NAME_AS_TOKEN
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, add_client, add_workers
from simlab.world import World

__all__ = ["SCENARIO"]

DUE_US = 4 * SECOND_US
SERVICE_US = (9_000_000, 9_500_000)
"""The outcome is written after 13 seconds and more, before the first heartbeat."""

CRASH_AT_US = 14 * SECOND_US
AWAY_US = 10 * SECOND_US
HELD_UP_US = 54_500_000
"""The lease ends at 60 s; its job runs again from 65 s at the latest, and not before 60 s: until 69 s at least."""

CONCURRENCY = 4


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    hosts = [f"w{number}" for number in range(1, sizes["n_workers"] + 1)]
    return (
        *(Delayed(host=host, verb="finish", request_us=HELD_UP_US) for host in hosts),
        *(Crash(host=host, when=At(CRASH_AT_US), restart_after_us=AWAY_US) for host in hosts),
    )


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    async def load(client: Client) -> None:
        service = world.streams.stream("service")
        await client.enqueue_many(
            JobRequest(
                task="work",
                payload={"n": n, "service_us": service.randint(*SERVICE_US)},
                delay=timedelta(microseconds=DUE_US),
            )
            for n in range(sizes["n_jobs"])
        )

    add_workers(world, sizes["n_workers"], settings)
    add_client(world, load)


def _rounds_us(sizes: Sizes) -> int:
    """Return how long jobs wait for a slot when there are more of them than slots."""
    return sizes["n_jobs"] // (CONCURRENCY * sizes["n_workers"]) * SERVICE_US[1]


SCENARIO = Scenario(
    name="reused-worker-name",
    teaches="why a worker's name proves nothing: the one that died had it too, and its messages still travel",
    sizes={"n_jobs": 4, "n_workers": 1},
    settings=WorkerSettings(concurrency=CONCURRENCY, prefetch=0),
    faults=_faults,
    build=_build,
    until_us=lambda sizes: 120 * SECOND_US + 2 * _rounds_us(sizes),
    lateness_bound_us=lambda sizes: 60 * SECOND_US + _rounds_us(sizes),
    variants=(OWNER_NAME_AS_TOKEN,),
)
