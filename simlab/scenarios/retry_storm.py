"""Something that all jobs depend on is down, so that they all fail, and fail together.

Retry is rescheduling: the slot is free again at once, and the job comes back after a pause that doubles each
time. Half of the pause is chance. Without that half they would all come back together, at the very moment
the dependency tries to get up, and knock it down again.
"""

from __future__ import annotations

from scheduler.policy import Retry, WorkerSettings
from simlab.faults import Fault, HandlerRaises
from simlab.naive.backoff_without_jitter import BACKOFF_WITHOUT_JITTER
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, Treatment, plain_build

__all__ = ["SCENARIO"]

FAILING_ATTEMPTS = 2
TREATMENT = Treatment(max_attempts=5, retry=Retry(base_us=8 * SECOND_US, cap_us=120 * SECOND_US))
POLL_US = 5 * SECOND_US


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    return tuple(HandlerRaises(job=n, attempts=FAILING_ATTEMPTS) for n in range(sizes["n_jobs"]))


def _work_us(sizes: Sizes) -> int:
    return sizes["n_jobs"] // (sizes["n_workers"] * 20) * 200_000


def _until_us(sizes: Sizes) -> int:
    # Two pauses, of at most 8 and 16 seconds, and what polls and slots add.
    return 60 * SECOND_US + 3 * _work_us(sizes)


def _lateness_bound_us(sizes: Sizes) -> int:
    # A retry may have to be found by a poll: its pause can end before the next one.
    return POLL_US + 1 * SECOND_US + _work_us(sizes)


SCENARIO = Scenario(
    name="retry-storm",
    teaches="why a retry is a rescheduling with jitter: what failed together must not come back together",
    sizes={"n_jobs": 60, "n_workers": 3},
    settings=WorkerSettings(concurrency=20, prefetch=20, poll_interval_us=POLL_US),
    faults=_faults,
    # All at one instant, as after a scheduled start: what fails first fails together.
    build=plain_build(
        due_us=(10 * SECOND_US, 10 * SECOND_US), service_us=(50_000, 200_000), treatment=TREATMENT
    ),
    until_us=_until_us,
    lateness_bound_us=_lateness_bound_us,
    variants=(BACKOFF_WITHOUT_JITTER,),
)
