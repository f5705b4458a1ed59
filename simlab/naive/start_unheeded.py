"""The worker runs what it has claimed, whatever the table says when it is to start.

A job in the heap was claimed up to a lookahead ago. It may have been cancelled since, or its lease may be
somebody else's by now; the start asks again, and its refusal must be heeded.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.jobs import LeaseRef
from scheduler.pool import Pool
from scheduler.worker import Worker
from simlab.scenario import Variant

__all__ = ["START_UNHEEDED"]


class _Unheeding(Pool):
    async def _write_starts(self, refs: Sequence[LeaseRef]) -> Sequence[int | None]:
        await super()._write_starts(refs)
        return [0] * len(refs)


class _UnheedingWorker(Worker):
    pool_class = _Unheeding


START_UNHEEDED = Variant(
    name="start-unheeded",
    says="a worker runs what it has claimed even when the table refuses the start",
    caught_by=("cancelled-never-runs",),
    worker_class=_UnheedingWorker,
)
