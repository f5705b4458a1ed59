"""A worker stands still for longer than its lease, wakes, and does not know it.

A long garbage collection, a laptop's lid, a virtual machine that is moved: to the worker no time has passed. Its
jobs have long been given to somebody else. Some of the sleepers here stand still in the middle of a handler: the
first thing that goes on is the handler, and it changes the outside world, before anybody has looked at a clock.
The others stand still between the end of a handler and the record of it, and write the outcome when they wake. No
check that a worker makes beforehand can prevent either; only the place of the write can tell old from new.
"""

from __future__ import annotations

from scheduler.policy import WorkerSettings
from simlab.faults import At, Fault, Pause, Reached
from simlab.naive.external_lock import EXTERNAL_LOCK
from simlab.naive.no_idempotency import NO_IDEMPOTENCY
from simlab.naive.unguarded_finish import UNGUARDED_FINISH
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, plain_build

__all__ = ["SCENARIO"]

ASLEEP_AT_US = 10 * SECOND_US
ASLEEP_US = 110 * SECOND_US
DUE_US = (2 * SECOND_US, 3 * SECOND_US)
SERVICE_US = (20 * SECOND_US, 28 * SECOND_US)
"""The effect is half-way: after the sleepers have fallen asleep."""

CONCURRENCY = 2


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    # All but the last, if there is more than one: somebody has to be awake.
    sleepers = max(1, sizes["n_workers"] - 1)
    moments = (At(ASLEEP_AT_US), Reached("after_execute"))
    return tuple(Pause(host=f"w{n + 1}", when=moments[n % 2], for_us=ASLEEP_US) for n in range(sleepers))


def _work_us(sizes: Sizes) -> int:
    """Return how long one worker takes for everything, which is what it may come to while the others sleep."""
    return (sizes["n_jobs"] // CONCURRENCY + 1) * SERVICE_US[1]


SCENARIO = Scenario(
    name="gc-pause-zombie",
    teaches="why a lease needs a fencing token: the holder may sleep through its end and write when it wakes",
    sizes={"n_jobs": 12, "n_workers": 3},
    settings=WorkerSettings(concurrency=CONCURRENCY, prefetch=2),
    faults=_faults,
    build=plain_build(due_us=DUE_US, service_us=SERVICE_US),
    until_us=lambda sizes: ASLEEP_AT_US + 2 * ASLEEP_US + _work_us(sizes),
    lateness_bound_us=lambda sizes: 80 * SECOND_US + _work_us(sizes),
    variants=(EXTERNAL_LOCK, UNGUARDED_FINISH, NO_IDEMPOTENCY),
)
