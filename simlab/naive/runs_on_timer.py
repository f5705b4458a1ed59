"""Jobs are run by the timer itself: it fires one and comes back when that one is done.

As long as handlers are quick nobody notices. The first slow one makes everything behind it late by as long
as it takes.
"""

from __future__ import annotations

import heapq
from typing import Any

from scheduler.held import HeldJob, Phase
from scheduler.timer import Timer
from scheduler.worker import Worker
from simlab.scenario import Variant

__all__ = ["RUNS_ON_TIMER"]


class _RunningTimer(Timer):
    """Stays with the job it fired, until that is no longer held or has come back to wait."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._job: HeldJob | None = None
        self._changed = self._clock.event()

    def push(self, job: HeldJob) -> None:
        if job is self._job:
            self._job = None
            self._changed.set()
        super().push(job)

    def job_dropped(self) -> None:
        """Look whether it was this one."""
        self._changed.set()

    async def run(self) -> None:
        while True:
            if self._heap and self._heap[0][0] <= self._clock.now_us():
                self._fire_due()
                await self._stay()
            timeout_us = self._heap[0][0] - self._clock.now_us() if self._heap else None
            if timeout_us is None or timeout_us > 0:
                await self._sooner.wait(timeout_us)
            self._sooner.clear()

    def _fire_due(self) -> None:
        """Fire one job only: the next must wait for its end."""
        job = heapq.heappop(self._heap)[2]
        if job.phase is Phase.WAITING:
            self._job = job
            self._fire(job)

    async def _stay(self) -> None:
        while self._job is not None and self._job.phase is not Phase.GONE:
            self._changed.clear()
            await self._changed.wait()
        self._job = None


class _RunsOnTimerWorker(Worker):
    timer_class = _RunningTimer

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        assert isinstance(self._timer, _RunningTimer)
        self.held.when_dropped(self._timer.job_dropped)


RUNS_ON_TIMER = Variant(
    name="runs-on-timer",
    says="the timer runs the job it fired, and fires the next when that one is done",
    caught_by=("lateness-bounded",),
    worker_class=_RunsOnTimerWorker,
)
