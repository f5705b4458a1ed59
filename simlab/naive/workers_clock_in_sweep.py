"""Expiry is judged by the worker's clock: a lease is over when this machine's date says so.

A worker whose clock is ten minutes ahead finds every lease of everybody expired, at every sweep, and takes
the jobs away from workers that are alive and well. One whose clock is behind never finds any.
"""

from __future__ import annotations

from scheduler.poller import Poller
from scheduler.postgres import Queries
from scheduler.store import SweepReply
from scheduler.worker import Worker
from simlab.naive.believed import SQL_BELIEVED_NOW, BelievingPostgresStore, believe, believed_now_us
from simlab.naive.rewriting import rewritten
from simlab.scenario import Variant
from simlab.store import ModelStore, Row

__all__ = ["WORKERS_CLOCK_IN_SWEEP"]


class _WallClockPoller(Poller):
    async def _sweep_if_due(self) -> None:
        believe(self._clock)
        await super()._sweep_if_due()


class _WallClockWorker(Worker):
    poller_class = _WallClockPoller


class _ModelByWorkersClock(ModelStore):
    def _may_sweep(self, row: Row, now_us: int) -> bool:
        return super()._may_sweep(row, believed_now_us())


class _PostgresByWorkersClock(BelievingPostgresStore):
    async def sweep(self, *, limit: int) -> SweepReply:
        await self._tell_now()
        return await super().sweep(limit=limit)


def _by_workers_clock(queries: Queries) -> dict[str, str]:
    expired = "job.state IN ('CLAIMED', 'RUNNING') AND job.lease_expires_at <= {now}"
    return {
        "sweep": rewritten(
            queries.sweep,
            *(
                (before + expired.format(now="now()"), before + expired.format(now=SQL_BELIEVED_NOW))
                for before in ("    WHERE ", "          (")
            ),
        )
    }


WORKERS_CLOCK_IN_SWEEP = Variant(
    name="workers-clock-in-sweep",
    says="whether a lease has expired is judged by the sweeping worker's wall clock",
    caught_by=("one-live-lease",),
    worker_class=_WallClockWorker,
    model_store=_ModelByWorkersClock,
    postgres_store=_PostgresByWorkersClock,
    rewrite=_by_workers_clock,
)
