"""Power is lost between the work and the record of it.

One worker dies the moment its handler has returned. Another only seems to: it stands still at the same point
for longer than its lease, then wakes and carries on. To the database both are the same silence, so both jobs
are given to somebody else and run again. With a handler that is idempotent by job, nobody outside notices;
and the guard on the outcome refuses what the sleeper still wants to write.
"""

from __future__ import annotations

from scheduler.policy import WorkerSettings
from simlab.faults import Crash, Fault, Pause, Reached
from simlab.naive.no_idempotency import NO_IDEMPOTENCY
from simlab.naive.unguarded_finish import UNGUARDED_FINISH
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, plain_build

__all__ = ["SCENARIO"]


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    plan: list[Fault] = [
        Crash(host="w1", when=Reached("after_execute"), restart_after_us=20 * SECOND_US),
    ]
    if sizes["n_workers"] > 1:
        plan.append(Pause(host="w2", when=Reached("after_execute", 2), for_us=90 * SECOND_US))
    return tuple(plan)


def _until_us(sizes: Sizes) -> int:
    # The faults take four minutes; the work itself, at 1.1 s a job in two slots a worker, its own time.
    return (240 + sizes["n_jobs"] // sizes["n_workers"]) * SECOND_US


def _lateness_bound_us(sizes: Sizes) -> int:
    # A lease and the sweep after it; and everybody's turn, for they all come due within 20 s.
    return (90 + sizes["n_jobs"] // sizes["n_workers"]) * SECOND_US


SCENARIO = Scenario(
    name="crash-after-execution",
    headline=True,
    teaches="why exactly-once is impossible, and what makes that harmless",
    sizes={"n_jobs": 8, "n_workers": 2},
    settings=WorkerSettings(concurrency=2, prefetch=2),
    faults=_faults,
    build=plain_build(due_us=(1 * SECOND_US, 20 * SECOND_US), service_us=(200_000, 2 * SECOND_US)),
    until_us=_until_us,
    lateness_bound_us=_lateness_bound_us,
    variants=(NO_IDEMPOTENCY, UNGUARDED_FINISH),
)
