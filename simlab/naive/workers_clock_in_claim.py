"""Due is judged by the worker's clock: ``run_at`` is compared with the date as this machine has it.

It works for as long as all machines agree on the time. One that is ten minutes ahead runs everything ten
minutes early; one that NTP has set back by an hour runs nothing for an hour.

The one decision is whose clock says "due", and it is taken in three places: what the claim picks, when the
timer fires, and the database's last word at the start, for which nobody asks any more.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.jobs import Lease
from scheduler.poller import Poller
from scheduler.postgres import Queries
from scheduler.store import ClaimReply, ClaimRequest
from scheduler.worker import Worker
from simlab.naive.believed import (
    SQL_BELIEVED_NOW,
    BelievingPostgresStore,
    believe,
    believed_now_us,
    wall_us,
)
from simlab.naive.due_from_request import StartsWhatIsNotDue, without_last_word
from simlab.naive.rewriting import rewritten
from simlab.scenario import Variant
from simlab.store import Row

__all__ = ["WORKERS_CLOCK_IN_CLAIM"]


class _WallClockPoller(Poller):
    async def _claim(self) -> bool:
        believe(self._clock)
        return await super()._claim()

    async def _take(self, lease: Lease, *, sent_us: int, arrived_us: int) -> None:
        due_in_us = lease.run_at_us - wall_us(self._clock)
        await super()._take(replace(lease, due_in_us=due_in_us), sent_us=sent_us, arrived_us=arrived_us)


class _WallClockWorker(Worker):
    poller_class = _WallClockPoller


class _ModelByWorkersClock(StartsWhatIsNotDue):
    def _pick_due(self, request: ClaimRequest, now_us: int) -> list[Row]:
        return super()._pick_due(request, believed_now_us())


class _PostgresByWorkersClock(BelievingPostgresStore):
    async def claim(self, request: ClaimRequest, /) -> ClaimReply:
        await self._tell_now()
        return await super().claim(request)


def _by_workers_clock(queries: Queries) -> dict[str, str]:
    return {
        "claim": rewritten(
            queries.claim,
            ("job.run_at <= now() +", f"job.run_at <= {SQL_BELIEVED_NOW} +"),
            ("job.expires_at > now()", f"job.expires_at > {SQL_BELIEVED_NOW}"),
        ),
        **without_last_word(queries),
    }


WORKERS_CLOCK_IN_CLAIM = Variant(
    name="workers-clock-in-claim",
    says="whether a job is due is judged by the worker's wall clock, not by the database's",
    caught_by=("never-early",),
    worker_class=_WallClockWorker,
    model_store=_ModelByWorkersClock,
    postgres_store=_PostgresByWorkersClock,
    rewrite=_by_workers_clock,
)
