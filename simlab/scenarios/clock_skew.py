"""Five machines that disagree about the time.

One worker's clock is two seconds fast and another's ten minutes; a third's drifts; NTP sets a fourth's back by
an hour in the middle of the story; a fifth's swings around the truth. All of them share one table of jobs, and nobody
notices: the database's clock decides what is due and what has expired, workers only count durations, and
the one whose durations are wrong (the third, whose timer runs fast) is told "not yet" and waits on.
"""

from __future__ import annotations

from scheduler.policy import WorkerSettings
from simlab.faults import At, ClockDrift, ClockOffset, ClockStep, ClockWobble, Fault
from simlab.naive.workers_clock_in_claim import WORKERS_CLOCK_IN_CLAIM
from simlab.naive.workers_clock_in_sweep import WORKERS_CLOCK_IN_SWEEP
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, plain_build

__all__ = ["SCENARIO"]

MINUTE_US = 60 * SECOND_US

DRIFT_PPM = 2000
"""A fortieth of a percent is a bad crystal; this is five times worse, so that a short story shows it."""


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    plan: tuple[Fault, ...] = (
        ClockOffset(host="w1", by_us=2 * SECOND_US),
        ClockOffset(host="w2", by_us=10 * MINUTE_US),
        ClockDrift(host="w3", when=At(0), ppm=DRIFT_PPM),
        ClockStep(host="w4", when=At(90 * SECOND_US), by_us=-60 * MINUTE_US),
        ClockWobble(host="w5", by_us=3 * SECOND_US, period_us=40 * SECOND_US),
    )
    return plan[: sizes["n_workers"]]


def _until_us(sizes: Sizes) -> int:
    # Three minutes in which jobs come due, and the time that the work takes in its slots.
    return (240 + sizes["n_jobs"] // sizes["n_workers"]) * SECOND_US


def _lateness_bound_us(sizes: Sizes) -> int:
    # A moment for those who find a free slot; where there are too many for that, they wait for their turn.
    return 20_000 + sizes["n_jobs"] // (sizes["n_workers"] * 30) * SECOND_US


SCENARIO = Scenario(
    name="clock-skew",
    headline=True,
    teaches="why only the database's clock may judge what is due and what has expired",
    sizes={"n_jobs": 60, "n_workers": 5},
    settings=WorkerSettings(concurrency=12, prefetch=4),
    faults=_faults,
    build=plain_build(due_us=(10 * SECOND_US, 180 * SECOND_US), service_us=(200_000, 4 * SECOND_US)),
    until_us=_until_us,
    lateness_bound_us=_lateness_bound_us,
    variants=(WORKERS_CLOCK_IN_CLAIM, WORKERS_CLOCK_IN_SWEEP),
)
