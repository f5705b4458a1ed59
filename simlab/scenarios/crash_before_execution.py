"""Power is lost between the claim and the work: a worker has a job, has said so, and has done nothing.

One worker dies the moment it has been granted its jobs, one when it is about to say that it starts one, one when it
has said so and the handler has not begun. The table knows who had each job and until when. That is enough: when the
lease is over the job is somebody else's, and since nothing had been done, nothing is done twice.
"""

from __future__ import annotations

from scheduler.policy import WorkerSettings
from simlab.faults import Crash, Fault, Reached
from simlab.naive.never_swept import NEVER_SWEPT
from simlab.naive.no_lease_while_running import NO_LEASE_WHILE_RUNNING
from simlab.naive.queue_in_memory import QUEUE_IN_MEMORY
from simlab.naive.swept_to_failed import SWEPT_TO_FAILED
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, plain_build

__all__ = ["SCENARIO"]

_MOMENTS = ("before_execute", "after_claim", "before_start", "after_start")
AWAY_US = 30 * SECOND_US
CONCURRENCY = 2
SERVICE_US = (1 * SECOND_US, 3 * SECOND_US)


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    return tuple(
        Crash(host=f"w{n + 1}", when=Reached(_MOMENTS[n % len(_MOMENTS)]), restart_after_us=AWAY_US)
        for n in range(sizes["n_workers"])
    )


def _work_us(sizes: Sizes) -> int:
    return (sizes["n_jobs"] // (CONCURRENCY * sizes["n_workers"]) + 1) * SERVICE_US[1]


SCENARIO = Scenario(
    name="crash-before-execution",
    teaches="why a job stays in the table while a worker has it: what is only in memory dies with the machine",
    sizes={"n_jobs": 14, "n_workers": 4},
    settings=WorkerSettings(concurrency=CONCURRENCY, prefetch=2),
    faults=_faults,
    build=plain_build(due_us=(2 * SECOND_US, 25 * SECOND_US), service_us=SERVICE_US),
    until_us=lambda sizes: 30 * SECOND_US + AWAY_US + 80 * SECOND_US + 2 * _work_us(sizes),
    lateness_bound_us=lambda sizes: 75 * SECOND_US + _work_us(sizes),
    variants=(QUEUE_IN_MEMORY, NEVER_SWEPT, NO_LEASE_WHILE_RUNNING, SWEPT_TO_FAILED),
)
