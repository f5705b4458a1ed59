"""A dozen workers ask for work in the same milliseconds, again and again, and all of it is at the head of one table.

A claim passes over the rows that another claim has locked and takes the next ones, so that everybody is served at
once and nobody gets what somebody else has. Without the lock two get the same job; with the lock and without the
passing over, each waits for the one before.
"""

from __future__ import annotations

from scheduler.policy import WorkerSettings
from simlab.faults import Fault
from simlab.naive.for_update_without_skip_locked import FOR_UPDATE_WITHOUT_SKIP_LOCKED
from simlab.naive.select_then_update import SELECT_THEN_UPDATE
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, plain_build

__all__ = ["SCENARIO"]

CONCURRENCY = 2
SERVICE_US = (20_000, 60_000)
DUE_US = (5 * SECOND_US, 5_100_000)


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    del sizes
    return ()


def _work_us(sizes: Sizes) -> int:
    return (sizes["n_jobs"] // (CONCURRENCY * sizes["n_workers"]) + 1) * SERVICE_US[1]


SCENARIO = Scenario(
    name="claim-contention",
    teaches="what FOR UPDATE SKIP LOCKED is for: many workers, one head of the queue, and nobody waits",
    sizes={"n_jobs": 120, "n_workers": 12},
    settings=WorkerSettings(concurrency=CONCURRENCY, prefetch=1, lookahead_us=10 * SECOND_US),
    faults=_faults,
    build=plain_build(due_us=DUE_US, service_us=SERVICE_US),
    until_us=lambda sizes: 30 * SECOND_US + 2 * _work_us(sizes),
    # The work's own time in its slots, and as long again for asking and starting: a claim is a few milliseconds.
    lateness_bound_us=lambda sizes: 500_000 + 2 * _work_us(sizes),
    variants=(SELECT_THEN_UPDATE, FOR_UPDATE_WITHOUT_SKIP_LOCKED),
)
