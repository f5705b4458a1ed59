"""A thread per job: no slots, every fired job runs at once.

It looks like the simplest thing. It also hands the machine's memory, and the number of connections to
whatever the handlers talk to, to whoever enqueues.
"""

from __future__ import annotations

from scheduler.held import HeldJob, Phase
from scheduler.pool import Pool
from scheduler.worker import Worker
from simlab.scenario import Variant

__all__ = ["THREAD_PER_JOB"]


class _NoSlots(Pool):
    def submit(self, job: HeldJob) -> None:
        self._observe("fired", job, "")
        self._clock.spawn(self._run_alone(job), f"thread of {job.ref.job_id}")

    async def _run_alone(self, job: HeldJob) -> None:
        if job.phase is not Phase.WAITING:
            return
        postponed = False
        try:
            postponed = await self._run(job)
        finally:
            if not postponed:
                self._held.drop(job)


class _ThreadPerJobWorker(Worker):
    pool_class = _NoSlots


THREAD_PER_JOB = Variant(
    name="thread-per-job",
    says="every fired job runs at once, in no slot",
    caught_by=("slots-bounded",),
    worker_class=_ThreadPerJobWorker,
)
