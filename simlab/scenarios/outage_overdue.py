"""Nobody works for a long time: first the database is down, and then every worker is.

Jobs come due all the while and nothing happens to them. When the last machine is back, everything overdue
is found, for the claim asks for all that is due *by now* and not for what comes due next; the oldest first.
"""

from __future__ import annotations

from scheduler.policy import WorkerSettings
from simlab.faults import At, Crash, Fault, StoreRestart
from simlab.naive.queue_in_memory import QUEUE_IN_MEMORY
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, plain_build

__all__ = ["SCENARIO"]

MINUTE_US = 60 * SECOND_US
STORE_DOWN_AT_US = 20 * SECOND_US
STORE_DOWN_US = 5 * MINUTE_US
CRASH_AT_US = 8 * MINUTE_US
DUE_US = (5 * SECOND_US, 20 * MINUTE_US)


def _outage_us(sizes: Sizes) -> int:
    return sizes["outage_minutes"] * MINUTE_US


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    return (
        StoreRestart(when=At(STORE_DOWN_AT_US), down_us=STORE_DOWN_US),
        *(
            Crash(host=f"w{number}", when=At(CRASH_AT_US), restart_after_us=_outage_us(sizes))
            for number in range(1, sizes["n_workers"] + 1)
        ),
    )


def _work_us(sizes: Sizes) -> int:
    """Return a bound on how long everything takes, if it is all overdue."""
    return (sizes["n_jobs"] // (4 * sizes["n_workers"]) + 1) * 2 * SECOND_US


def _until_us(sizes: Sizes) -> int:
    return CRASH_AT_US + max(_outage_us(sizes), DUE_US[1]) + _work_us(sizes) + 2 * MINUTE_US


SCENARIO = Scenario(
    name="outage-overdue",
    teaches="how everything overdue is found after a long outage of the database or of all workers",
    sizes={"n_jobs": 60, "n_workers": 2, "outage_minutes": 60},
    small={"n_jobs": 20, "outage_minutes": 10},
    settings=WorkerSettings(concurrency=4, prefetch=8),
    faults=_faults,
    build=plain_build(due_us=DUE_US, service_us=(200_000, 2 * SECOND_US)),
    until_us=_until_us,
    lateness_bound_us=lambda sizes: _work_us(sizes) + 10 * SECOND_US,
    variants=(QUEUE_IN_MEMORY,),
)
