"""Whether the machine gave processes their turn: a thread that asks for a little, often, and measures what it gets.

Where time is real, a check with a bound in it judges the machine as well as the scheduler. What this thread has to
wait for, every worker had to wait for too; a bound that was missed on such a machine says nothing about anybody.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

__all__ = ["StarvationWatch"]

SLEEP_S = 0.2
"""How long the thread sleeps between two turns."""

TURN_S = 0.01
"""How much of a processor it then wants: a twentieth of one core, all together. Less would not be felt: a scheduler
lets who asks for little go first."""

MAX_TURNS = 1_000_000
"""The most turns that are remembered: those of two days."""

_JOIN_S = 10.0


class StarvationWatch:
    """Measures, while its context lasts, how much later than asked each turn was over."""

    def __init__(self) -> None:
        self._late_s: list[float] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="simlab-starvation", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while len(self._late_s) < MAX_TURNS:
            began = time.monotonic()
            if self._ending.wait(SLEEP_S):
                return
            until = time.thread_time() + TURN_S
            while time.thread_time() < until:
                pass
            self._late_s.append(max(0.0, time.monotonic() - began - SLEEP_S - TURN_S))

    @property
    def longest_ms(self) -> float:
        """By how many milliseconds the latest turn was late; 0 when there was none."""
        return 1000 * max(self._late_s, default=0.0)

    @property
    def slowdown(self) -> float:
        """How many times longer than on an idle machine work took; 1 when there was none."""
        turns = len(self._late_s)
        return 1 + sum(self._late_s) / (turns * TURN_S) if turns else 1.0
