"""The database's own clock is stepped: forwards by more than a lease, and later back by two minutes.

It is the only clock that judges, so the judgement jumps. Forwards, every lease is over at once and what is due within
the step is due now: jobs are taken from workers that are well, which find that out with their next heartbeat. Back,
what was due is not due any more, and a worker whose timer fires is told to wait. Jobs are late, or are done twice;
none is lost, none is early by the clock that counts, and at no moment do two hold a lease of the same job.
"""

from __future__ import annotations

from scheduler.policy import WorkerSettings
from simlab.faults import At, Fault, StoreClockStep
from simlab.naive.no_idempotency import NO_IDEMPOTENCY
from simlab.naive.unguarded_finish import UNGUARDED_FINISH
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, plain_build

__all__ = ["BACK_US", "FORWARDS_US", "SCENARIO"]

FORWARDS_AT_US, FORWARDS_US = 30 * SECOND_US, 90 * SECOND_US
BACK_AT_US, BACK_US = 100 * SECOND_US, 120 * SECOND_US
CONCURRENCY = 3
SERVICE_US = (2 * SECOND_US, 16 * SECOND_US)
DUE_US = (5 * SECOND_US, 280 * SECOND_US)


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    del sizes
    return (
        StoreClockStep(when=At(FORWARDS_AT_US), by_us=FORWARDS_US),
        StoreClockStep(when=At(BACK_AT_US), by_us=-BACK_US),
    )


def _work_us(sizes: Sizes) -> int:
    """Return how long everything takes if it is all due at once."""
    return (sizes["n_jobs"] // (CONCURRENCY * sizes["n_workers"]) + 1) * SERVICE_US[1]


SCENARIO = Scenario(
    name="store-clock-step",
    teaches="what happens when the one clock that judges is wrong: work may be late or done twice, never lost",
    sizes={"n_jobs": 64, "n_workers": 2},
    settings=WorkerSettings(concurrency=CONCURRENCY, prefetch=3),
    faults=_faults,
    build=plain_build(due_us=DUE_US, service_us=SERVICE_US),
    until_us=lambda sizes: DUE_US[1] + 60 * SECOND_US + BACK_US + _work_us(sizes),
    lateness_bound_us=lambda sizes: 30 * SECOND_US + _work_us(sizes),
    variants=(NO_IDEMPOTENCY, UNGUARDED_FINISH),
)
