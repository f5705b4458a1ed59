"""Nobody sweeps: a lease has an end, and no one looks whether it is over.

Claims, heartbeats and guards are all there, and every test of a healthy day passes. What a worker that died had
claimed stays CLAIMED for good, for the claim asks for what is PENDING.
"""

from __future__ import annotations

from scheduler.poller import Poller
from scheduler.worker import Worker
from simlab.scenario import Variant

__all__ = ["NEVER_SWEPT"]


class _Unsweeping(Poller):
    async def _sweep_if_due(self) -> None:
        return


class _UnsweepingWorker(Worker):
    poller_class = _Unsweeping


NEVER_SWEPT = Variant(
    name="never-swept",
    says="nobody takes a job back whose lease has expired",
    caught_by=("all-end",),
    worker_class=_UnsweepingWorker,
)
