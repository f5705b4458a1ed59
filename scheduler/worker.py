"""The worker: wires poller, timer, pool, heartbeat and finisher together, runs them, and drains them.

The order of shutting down is the lesson here. First the poller stops, so that nothing new comes in. What has
not started is given back. What runs may finish, within the drain's time. The heartbeat stops **last**:
as long as a handler runs, its lease must live.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from scheduler.app import App
from scheduler.clock import Clock, Task
from scheduler.errors import StoreUnavailable
from scheduler.failpoints import Failpoint
from scheduler.finisher import Finisher
from scheduler.heartbeat import Heartbeat
from scheduler.held import Abort, Held, HeldJob, Observer, Phase
from scheduler.policy import WorkerSettings
from scheduler.poller import Poller
from scheduler.pool import Pool
from scheduler.store import Outcome, OutcomeKind, Store
from scheduler.timer import Timer

__all__ = ["Worker"]

logger = logging.getLogger("scheduler")


def log_event(kind: str, job: HeldJob | None, detail: str) -> None:
    """Observe by logging: the default of a worker."""
    level = logging.WARNING if kind in {"unavailable", "aborted", "raised", "dropped"} else logging.DEBUG
    if job is None:
        logger.log(level, "%s: %s", kind, detail)
    else:
        logger.log(
            level, "%s: %s %s attempt %d %s", kind, job.lease.task, job.ref.job_id, job.lease.attempt, detail
        )


class Worker:
    """Claims and runs the jobs of `app` until told to stop.

    Parameters
    ----------
    name
        A name for people. The worker's identity in the table, `owner`, adds a nonce of this very start, so
        that a restarted worker is never mistaken for the one before it.
    failpoint
        Awaited at the named places of :mod:`scheduler.failpoints`; None in production.
    observe
        Told of each step; by default the ``scheduler`` logger.

    Notes
    -----
    The classes of the parts are attributes, so that a subclass can replace one of them.
    """

    poller_class: type[Poller] = Poller
    timer_class: type[Timer] = Timer
    pool_class: type[Pool] = Pool
    heartbeat_class: type[Heartbeat] = Heartbeat
    finisher_class: type[Finisher] = Finisher

    def __init__(
        self,
        app: App,
        *,
        store: Store,
        clock: Clock,
        name: str = "worker",
        settings: WorkerSettings | None = None,
        failpoint: Failpoint | None = None,
        observe: Observer = log_event,
    ) -> None:
        self._clock = clock
        self._store = store
        self._observe = observe
        self.settings = settings if settings is not None else WorkerSettings()
        self.owner = self._make_owner(name)
        self.held = Held(self.settings.capacity)
        self._stopping = clock.event()
        self._parts: list[Task] = []
        self._broken: list[BaseException] = []
        self._finisher = self.finisher_class(
            clock=clock, store=store, settings=self.settings, observe=observe
        )
        self._pool = self.pool_class(
            clock=clock,
            store=store,
            app=app,
            held=self.held,
            finisher=self._finisher,
            postpone=self._postpone,
            settings=self.settings,
            failpoint=failpoint,
            observe=observe,
        )
        self._timer = self.timer_class(clock=clock, fire=self._pool.submit)
        self._poller = self.poller_class(
            clock=clock,
            store=store,
            owner=self.owner,
            tasks=app.tasks,
            held=self.held,
            settings=self.settings,
            accept=self._timer.push,
            failpoint=failpoint,
            observe=observe,
        )
        self._heartbeat = self.heartbeat_class(
            clock=clock,
            store=store,
            held=self.held,
            settings=self.settings,
            failpoint=failpoint,
            observe=observe,
        )

    def _make_owner(self, name: str) -> str:
        return f"{name}/{self._clock.rng.getrandbits(64):016x}"

    def _postpone(self, job: HeldJob) -> None:
        self._timer.push(job)

    def wake(self) -> None:
        """Poll now: somebody in this process enqueued a job."""
        self._poller.wake()

    def stop(self) -> None:
        """Ask for a graceful end; `run` returns when the drain is over. Safe to call more than once."""
        self._stopping.set()

    async def run(self) -> None:
        """Work until stopped, then drain.

        Raises
        ------
        Exception
            Whatever broke a part of the worker: a mistake in the worker itself. The rest is cancelled.
        """
        poller = self._spawn(self._poller.run, "poller")
        timer = self._spawn(self._timer.run, "timer")
        starter = self._spawn(self._pool.run_starts, "starter")
        finisher = self._spawn(self._finisher.run, "finisher")
        beat = self._spawn(self._heartbeat.beat, "heartbeat")
        watch = self._spawn(self._heartbeat.watch, "lease watch")
        slots = [self._spawn(self._pool.run_slot, f"slot {n}") for n in range(self.settings.concurrency)]
        try:
            await self._stopping.wait()
            if not self._broken:
                await self._drain(poller, timer)
        finally:
            # A handler is a task of its own: ending its slot would leave it running on, unheld.
            for job in self.held:
                job.take_away(Abort.DRAIN)
            for part in (poller, timer, *slots, starter, finisher, watch, beat):
                part.cancel()
        if self._broken:
            raise self._broken[0]

    def _spawn(self, part: Callable[[], Awaitable[None]], name: str) -> Task:
        async def guarded() -> None:
            try:
                await part()
            except Exception as error:  # noqa: BLE001 - kept, and raised by run()
                self._broken.append(error)
                self._stopping.set()

        return self._clock.spawn(guarded(), f"{self.owner} {name}")

    async def _drain(self, poller: Task, timer: Task) -> None:
        deadline_us = self._clock.now_us() + self.settings.drain_timeout_us
        self._poller.stop()
        await poller.join()
        timer.cancel()
        await timer.join()
        self._pool.forget_backlog()
        await self._release()
        await self._until_empty(deadline_us)
        for job in self.held:
            # A handler that has returned has finished, even if its slot has not looked yet.
            returned = job.task is not None and job.task.done()
            if job.phase is not Phase.FINISHING and not returned and job.abort is None:
                self._observe("aborted", job, Abort.DRAIN.name.lower())
                job.take_away(Abort.DRAIN)
        # Cancelled handlers still get their outcome written; a store that is away must not keep us for ever.
        await self._until_empty(self._clock.now_us() + 2 * self.settings.request_timeout_us)
        for job in self.held:
            self._observe("dropped", job, "the drain ran out of time; its lease will expire")

    async def _release(self) -> None:
        """Give back what has not started: one try, for the leases expire by themselves."""
        waiting = [job for job in self.held if job.phase is Phase.WAITING]
        if not waiting:
            return
        outcomes = [Outcome(job.ref, OutcomeKind.RELEASED) for job in waiting]
        try:
            await self._store.finish(outcomes)
        except StoreUnavailable as error:
            self._observe("unavailable", None, f"release: {error}")
        for job in waiting:
            self._observe("released", job, "")
            self.held.drop(job)

    async def _until_empty(self, deadline_us: int) -> None:
        emptier = self._clock.event()
        self.held.when_dropped(emptier.set)
        while len(self.held) and not self._broken:
            left_us = deadline_us - self._clock.now_us()
            if left_us <= 0:
                return
            emptier.clear()
            await emptier.wait(left_us)
