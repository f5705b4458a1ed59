"""Somebody's open transaction holds the row of a job: a forgotten console, a slow report, a pause before COMMIT.

Three times over. A row that is locked while it is due is passed over by the claims, and all others are run on time. One
that is locked when its outcome is to be written makes the worker wait, and try again until the lock is gone. One
that is locked for longer than a lease cannot be renewed: the heartbeat passes it over, so that the other leases live,
and says so, so that the worker counts this one to its end and stops. No sweep can touch the row before the lock goes.
"""

from __future__ import annotations

from datetime import timedelta

from scheduler.app import Client, JobRequest
from scheduler.policy import WorkerSettings
from simlab.faults import At, Fault, LockHeld
from simlab.naive.no_idempotency import NO_IDEMPOTENCY
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, add_client, add_workers, jobs_due
from simlab.world import World

__all__ = ["SCENARIO"]

# Each locked job: when it is due, how long it works, and when its row is locked and for how long.
_LOCKED = (
    (14 * SECOND_US, 3 * SECOND_US, 2 * SECOND_US, 20 * SECOND_US),
    (30 * SECOND_US, 5 * SECOND_US, 33 * SECOND_US, 8 * SECOND_US),
    (35 * SECOND_US, 140 * SECOND_US, 70 * SECOND_US, 90 * SECOND_US),
)
_ENDS_US = 160 * SECOND_US


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    del sizes
    return tuple(
        LockHeld(when=At(at_us), for_us=for_us, job=n) for n, (_, _, at_us, for_us) in enumerate(_LOCKED)
    )


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    async def load(client: Client) -> None:
        locked = [
            JobRequest(
                task="work",
                payload={"n": n, "service_us": service_us},
                delay=timedelta(microseconds=due_us),
            )
            for n, (due_us, service_us, _, _) in enumerate(_LOCKED)
        ]
        others = jobs_due(
            world,
            sizes["n_jobs"],
            due_us=(3 * SECOND_US, 150 * SECOND_US),
            service_us=(500_000, 4 * SECOND_US),
            first=len(locked),
        )
        await client.enqueue_many([*locked, *others])

    add_workers(world, sizes["n_workers"], settings)
    add_client(world, load)


def _work_us(sizes: Sizes) -> int:
    return sizes["n_jobs"] // sizes["n_workers"] * SECOND_US


SCENARIO = Scenario(
    name="lock-held",
    teaches="what a row lock of somebody else's does to claim, outcome and heartbeat: to this job, and no other",
    sizes={"n_jobs": 16, "n_workers": 2},
    settings=WorkerSettings(concurrency=4, prefetch=2, lookahead_us=10 * SECOND_US),
    faults=_faults,
    build=_build,
    until_us=lambda sizes: _ENDS_US + 200 * SECOND_US + _work_us(sizes),
    lateness_bound_us=lambda sizes: 15 * SECOND_US + _work_us(sizes),
    variants=(NO_IDEMPOTENCY,),
)
