"""The heartbeat: keeps every held lease alive in one statement, and takes away what is no longer ours.

Two loops. *Beat* renews all held jobs, those still waiting in the heap too, and believes the reply: a job
that was named and is missing is lost and is aborted at once. *Watch* needs no reply at all: when a lease runs
out by this worker's own conservative count, its job is aborted, which is what stops a worker that was cut
off from the database before somebody else may start the same job.

A renewal counts from the moment the request was **sent**. Monotonic time only; never the date.
"""

from __future__ import annotations

from scheduler.clock import Clock
from scheduler.errors import StoreUnavailable
from scheduler.failpoints import Failpoint
from scheduler.held import Abort, Held, HeldJob, Observer, Phase
from scheduler.policy import WorkerSettings, jittered_us
from scheduler.store import HeartbeatReply, Store

__all__ = ["Heartbeat"]


class Heartbeat:
    """Renews the leases of `held` until cancelled."""

    def __init__(
        self,
        *,
        clock: Clock,
        store: Store,
        held: Held,
        settings: WorkerSettings,
        failpoint: Failpoint | None,
        observe: Observer,
    ) -> None:
        self._clock = clock
        self._store = store
        self._held = held
        self._settings = settings
        self._failpoint = failpoint
        self._observe = observe
        self._sooner = clock.event()
        self._watching_until_us: int | None = None
        held.when_added(self._look_sooner)

    async def beat(self) -> None:
        """Renew at every interval; sooner again when the store did not answer, or a row was locked."""
        pause_us = self._settings.heartbeat_interval_us
        while True:
            await self._clock.sleep_us(pause_us)
            pause_us = jittered_us(self._settings.heartbeat_interval_us, self._clock.rng)
            try:
                if not await self.beat_once():
                    pause_us = self._settings.store_retry_us
            except StoreUnavailable as error:
                self._observe("unavailable", None, f"heartbeat: {error}")
                pause_us = self._settings.store_retry_us

    async def beat_once(self) -> bool:
        """Renew every held lease, in statements of at most `batch` jobs; say whether all were extended."""
        every = True
        if self._failpoint is not None:
            await self._failpoint("before_heartbeat", None)
        jobs = self._worth_renewing()
        for first in range(0, len(jobs), self._settings.batch):
            part = jobs[first : first + self._settings.batch]
            sent_us = self._clock.now_us()
            reply = await self._store.heartbeat([job.ref for job in part], lease_us=self._settings.lease_us)
            self._believe(part, reply, lease_until_us=sent_us + self._settings.lease_us)
            every = every and all(renewed.extended for renewed in reply.held)
        if self._failpoint is not None:
            await self._failpoint("after_heartbeat", None)
        return every

    def _worth_renewing(self) -> list[HeldJob]:
        # After a long pause this beat may come before the watch has looked. Renewing a lease that is over by
        # our own count would keep a job, about to be aborted here, from everybody else for another lease.
        now_us = self._clock.now_us()
        return [
            job
            for job in self._held
            if job.abort is None and (job.lease_until_us > now_us or job.phase is Phase.FINISHING)
        ]

    def _believe(self, asked: list[HeldJob], reply: HeartbeatReply, *, lease_until_us: int) -> None:
        renewed = {held.job_id: held for held in reply.held}
        for job in asked:
            mine = renewed.get(job.ref.job_id)
            # A job whose outcome was written meanwhile is missing for a good reason: the guard on that
            # write has the last word, not this older reply.
            if mine is None:
                if self._held.holds(job) and job.phase is not Phase.FINISHING:
                    self._take_away(job, Abort.LOST)
                continue
            if mine.extended:
                job.lease_until_us = max(job.lease_until_us, lease_until_us)
            if mine.cancel_requested:
                job.request_cancel()

    async def watch(self) -> None:
        """Abort each job whose lease has run out by our own count."""
        while True:
            now_us = self._clock.now_us()
            for job in self._held:
                if job.lease_until_us <= now_us and job.abort is None and job.phase is not Phase.FINISHING:
                    self._take_away(job, Abort.EXPIRED)
            ends = [job.lease_until_us for job in self._held if job.lease_until_us > now_us]
            self._watching_until_us = min(ends, default=None)
            self._sooner.clear()
            await self._sooner.wait(None if not ends else min(ends) - now_us)

    def _look_sooner(self, job: HeldJob) -> None:
        # With every lease held over and only outcomes left to write, nothing is watched for. And a claim whose
        # reply was slow may end before what was renewed meanwhile.
        if self._watching_until_us is None or job.lease_until_us < self._watching_until_us:
            self._sooner.set()

    def _take_away(self, job: HeldJob, why: Abort) -> None:
        self._observe("aborted", job, why.name.lower())
        waiting = job.phase is Phase.WAITING
        job.take_away(why)
        if waiting:
            self._held.drop(job)
