"""The timer: a heap of fire times and one interruptible wait.

The table is the truth; this heap is its cache for the next few seconds, and what makes firing precise
between polls. Peeking is O(1), pushing O(log n). The wait ends early when a sooner job is pushed, which is
what a plain sleep cannot do. The timer never runs a handler: it hands the job on and waits again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from scheduler.clock import Clock
from scheduler.held import HeldJob, Phase

__all__ = ["Timer"]


class Timer:
    """Calls `fire` with each held job when its time has come, never before."""

    def __init__(self, *, clock: Clock, fire: Callable[[HeldJob], None]) -> None:
        self._clock = clock
        self._fire = fire
        self._heap: list[tuple[int, int, HeldJob]] = []
        self._pushed = 0
        self._sooner = clock.event()

    def push(self, job: HeldJob) -> None:
        """Add a job; wakes the wait when it is the new soonest."""
        self._pushed += 1
        heapq.heappush(self._heap, (job.fire_at_us, self._pushed, job))
        if self._heap[0][2] is job:
            self._sooner.set()

    async def run(self) -> None:
        """Fire what is due, wait for the next, until cancelled."""
        while True:
            self._fire_due()
            timeout_us = self._heap[0][0] - self._clock.now_us() if self._heap else None
            if timeout_us is None or timeout_us > 0:
                await self._sooner.wait(timeout_us)
            self._sooner.clear()

    def _fire_due(self) -> None:
        now_us = self._clock.now_us()
        while self._heap and (self._heap[0][0] <= now_us or self._heap[0][2].phase is Phase.GONE):
            job = heapq.heappop(self._heap)[2]
            if job.phase is Phase.WAITING:
                self._fire(job)
