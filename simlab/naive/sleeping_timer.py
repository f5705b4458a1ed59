"""A timer that sleeps until its soonest job, and cannot be woken: what arrives meanwhile and is sooner fires late."""

from __future__ import annotations

from scheduler.timer import Timer
from scheduler.worker import Worker
from simlab.scenario import Variant

__all__ = ["SLEEPING_TIMER"]


class _SleepingTimer(Timer):
    async def run(self) -> None:
        while True:
            self._fire_due()
            if self._heap:
                await self._clock.sleep_us(max(0, self._heap[0][0] - self._clock.now_us()))
            else:
                await self._sooner.wait()
            self._sooner.clear()


class _SleepingWorker(Worker):
    timer_class = _SleepingTimer


SLEEPING_TIMER = Variant(
    name="sleeping-timer",
    says="the timer sleeps until the soonest job it knew of when it fell asleep",
    caught_by=("lateness-bounded",),
    worker_class=_SleepingWorker,
)
