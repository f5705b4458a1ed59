"""The watch over the leases is woken by the first job of an idle worker, and by no other.

As long as it knows of a lease it sleeps until that one ends, and then looks at all. But a worker whose leases have all
run out, and that is still trying to write what came of them, is not idle: nothing is left to sleep for, and the
job that comes next is not the first. This was a mistake of this scheduler until real processes under real signals
showed it.
"""

from __future__ import annotations

from scheduler.heartbeat import Heartbeat
from scheduler.held import HeldJob
from scheduler.worker import Worker
from simlab.scenario import Variant

__all__ = ["WATCH_OF_THE_FIRST_ONLY"]


class _WokenByTheFirst(Heartbeat):
    def _look_sooner(self, job: HeldJob) -> None:
        if len(self._held) == 1:
            super()._look_sooner(job)


class _WorkerWokenByTheFirst(Worker):
    heartbeat_class = _WokenByTheFirst


WATCH_OF_THE_FIRST_ONLY = Variant(
    name="watch-of-the-first-only",
    says="the watch over the leases is woken by the first job of an idle worker only",
    caught_by=("loser-stops",),
    worker_class=_WorkerWokenByTheFirst,
)
