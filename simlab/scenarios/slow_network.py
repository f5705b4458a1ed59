"""Messages take seconds, and two things are counted from them: when a job is due, and how long its lease lasts.

A reply says "due in 5 s" and "yours for 60 s". When was that true? When the database wrote it, somewhere between the
sending of the request and the arrival of the reply, and the worker cannot know where. So it counts each from the
end at which a mistake is harmless: the run time from the arrival, never too early; the lease from the sending,
never too long. One worker here has a slow claim and one a slow heartbeat; then both are cut off, and a third, whose
network is quick, takes their jobs the moment the database lets it.
"""

from __future__ import annotations

from scheduler.app import Client
from scheduler.policy import WorkerSettings
from simlab.faults import At, Delayed, Fault, Partition
from simlab.hosts import Incarnation
from simlab.naive.due_from_request import DUE_FROM_REQUEST
from simlab.naive.lease_from_reply import LEASE_FROM_REPLY
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, add_client, jobs_due, work_app
from simlab.world import World

__all__ = ["SCENARIO"]

STARTS_US = (0, 15 * SECOND_US, 30 * SECOND_US)
"""When the three workers start: the slow claimer, the slow renewer, and the quick one."""

CUTS_US = (9 * SECOND_US, 32 * SECOND_US)
"""When the first two are cut off: when the slow replies have arrived, and before there are others."""

CUT_US = 150 * SECOND_US
REQUEST_US = 1_500_000
REPLY_US = 2_500_000
SERVICE_US = (150 * SECOND_US, 160 * SECOND_US)
"""Half of it, up to the change of the world, is past the end of the leases."""

CONCURRENCY = 8


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    del sizes
    slow = {"request_us": REQUEST_US, "reply_us": REPLY_US}
    return (
        Delayed(host="w1", verb="claim", nth=1, **slow),
        Delayed(host="w2", verb="heartbeat", nth=1, **slow),
        *(Partition(host=f"w{n + 1}", when=At(at_us), for_us=CUT_US) for n, at_us in enumerate(CUTS_US)),
    )


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    n_jobs = sizes["n_jobs"]

    async def load(client: Client) -> None:
        clock = world.hosts["client"].clock
        later_us = STARTS_US[1] - SECOND_US
        first = jobs_due(world, n_jobs, due_us=(5 * SECOND_US, 6 * SECOND_US), service_us=SERVICE_US)
        second = jobs_due(
            world, n_jobs, due_us=(2 * SECOND_US, 3 * SECOND_US), service_us=SERVICE_US, first=n_jobs
        )
        await client.enqueue_many(first)
        await clock.sleep_us(later_us - clock.now_us())
        await client.enqueue_many(second)

    def boot(life: Incarnation) -> None:
        world.start_worker(life, work_app(world, life), settings)

    for number, starts_us in enumerate(STARTS_US, start=1):
        world.add_host(f"w{number}", boot, starts_at_us=starts_us)
    add_client(world, load)


def _work_us(sizes: Sizes) -> int:
    """Return how long the quick one takes for everything."""
    return (2 * sizes["n_jobs"] // CONCURRENCY + 1) * SERVICE_US[1]


SCENARIO = Scenario(
    name="slow-network",
    teaches="why a run time is counted from the arrival of the reply, and a lease from the sending of the request",
    sizes={"n_jobs": 3},
    settings=WorkerSettings(
        concurrency=CONCURRENCY,
        prefetch=0,
        poll_interval_us=1 * SECOND_US,
        sweep_interval_us=1 * SECOND_US,
        heartbeat_interval_us=10 * SECOND_US,
        request_timeout_us=5 * SECOND_US,
    ),
    faults=_faults,
    build=_build,
    until_us=lambda sizes: CUTS_US[1] + CUT_US + 60 * SECOND_US + 2 * _work_us(sizes),
    lateness_bound_us=lambda sizes: REPLY_US + SECOND_US + _work_us(sizes),
    variants=(LEASE_FROM_REPLY, DUE_FROM_REQUEST),
)
