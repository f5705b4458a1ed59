"""Simulated machines: their clocks, and what power loss and stop-the-world pauses do to what runs on them.

A host's *monotonic* clock may drift; its *wall* clock is offset from the truth and may be stepped. A crash
is power loss: nothing of the host runs again, no ``finally``, no ``except``. A pause stops everything: what
falls due meanwhile is delivered when it ends, in the order it fell due.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import simpy

from simlab.clock import SimClock
from simlab.errors import SimulationError

if TYPE_CHECKING:
    from simlab.clock import SimTask
    from simlab.kernel import Kernel
    from simlab.streams import Streams

__all__ = ["EPOCH_US", "Host", "HostState"]

EPOCH_US = 1_767_225_600_000_000
"""The date at virtual time zero, 2026-01-01 00:00:00 UTC, in microseconds since the Unix epoch."""

_MILLION = 1_000_000


class HostState(enum.Enum):
    """Whether a host runs."""

    UP = "up"
    PAUSED = "paused"
    CRASHED = "crashed"


class Incarnation:
    """One life of a host, from a start to a crash. Handles of an earlier life are fenced by it."""

    __slots__ = ("alive", "host", "number", "tasks")

    def __init__(self, host: Host, number: int) -> None:
        self.host = host
        self.number = number
        self.alive = True
        # Every task of this life, in the order of spawning. After a crash it is the graveyard: a coroutine
        # that is let go is closed by Python, and closing runs its `finally`.
        self.tasks: dict[SimTask, None] = {}


class Host:
    """A machine.

    Parameters
    ----------
    wall_offset_us
        By how much its wall clock is ahead of the true time at the start.
    drift_ppm
        By how many parts per million its clocks run fast. The smallest allowed is -500,000 (half speed).
    """

    def __init__(
        self,
        name: str,
        *,
        kernel: Kernel,
        streams: Streams,
        wall_offset_us: int = 0,
        drift_ppm: int = 0,
    ) -> None:
        self.name = name
        self.kernel = kernel
        self.drift_ppm = _checked_ppm(name, drift_ppm)
        # Where the present drift began, in virtual and in the host's own time.
        self._drifting_from_us = 0
        self._monotonic_then_us = 0
        self._wobble: tuple[int, int] | None = None
        self._streams = streams
        self._wall_offset_us = wall_offset_us
        self._paused_until: simpy.Event | None = None
        # Every life there has been: the dead ones' coroutines must be kept, for closing them runs code.
        self.lives: list[Incarnation] = []
        self.life = self._begin()

    def _begin(self) -> Incarnation:
        life = Incarnation(self, len(self.lives) + 1)
        self.lives.append(life)
        self.rng = self._streams.stream(f"host/{self.name}/{life.number}")
        self.clock = SimClock(life)
        return life

    @property
    def incarnation(self) -> int:
        """How often it has been started, from 1."""
        return self.life.number

    @property
    def state(self) -> HostState:
        if not self.life.alive:
            return HostState.CRASHED
        return HostState.UP if self._paused_until is None else HostState.PAUSED

    @property
    def resumed(self) -> simpy.Event | None:
        """What a paused host's tasks wait for; None when it is not paused."""
        return self._paused_until

    def monotonic_us(self) -> int:
        """Return the host's own monotonic clock: virtual time, run fast or slow by its drift."""
        since_us = self.kernel.now_us - self._drifting_from_us
        return self._monotonic_then_us + since_us * (_MILLION + self.drift_ppm) // _MILLION

    def virtual_delay_us(self, duration_us: int) -> int:
        """Return how long the world waits while this host's clock counts `duration_us`; never too short."""
        if self.drift_ppm == 0:
            return duration_us
        target_us = self.monotonic_us() + duration_us - self._monotonic_then_us
        # The first instant at which the host's clock shows the target: an exact integer inverse.
        instant_us = self._drifting_from_us - (-target_us * _MILLION // (_MILLION + self.drift_ppm))
        return max(0, instant_us - self.kernel.now_us)

    def wall_us(self) -> int:
        """Return what this host believes the date to be, in microseconds since the Unix epoch."""
        return EPOCH_US + self.monotonic_us() + self._wall_offset_us + self._swing_us()

    def _swing_us(self) -> int:
        """Return how far a wobbling wall clock is from the truth now: a triangle wave."""
        if self._wobble is None:
            return 0
        by_us, period_us = self._wobble
        quarter = 4 * (self.kernel.now_us % period_us)
        # Up to +by in the first quarter, down to -by by the third, back to 0 in the fourth.
        if quarter <= period_us:
            return by_us * quarter // period_us
        if quarter <= 3 * period_us:
            return by_us * (2 * period_us - quarter) // period_us
        return by_us * (quarter - 4 * period_us) // period_us

    def step_wall(self, by_us: int) -> None:
        """Step the wall clock, as NTP does; the monotonic clock never steps."""
        self._wall_offset_us += by_us

    def wobble_wall(self, by_us: int, period_us: int) -> None:
        """Let the wall clock swing around the truth, up to `by_us` either way, once a period."""
        self._wobble = (by_us, period_us)

    def drift(self, ppm: int) -> None:
        """Change the drift from now on. What sleeps already wakes by the drift it fell asleep with."""
        self._monotonic_then_us = self.monotonic_us()
        self._drifting_from_us = self.kernel.now_us
        self.drift_ppm = _checked_ppm(self.name, ppm)

    def crash(self) -> None:
        """Lose power."""
        self.life.alive = False
        # A pause ends with the machine; whoever waited for its end is dead and is never resumed.
        self._paused_until = None

    def restart(self) -> None:
        """Come back as a new incarnation, with nothing of the old one running."""
        if self.life.alive:
            raise SimulationError(f"host {self.name} is up; only a crashed host can be restarted")
        self.life = self._begin()

    def pause(self) -> None:
        """Stop the world on this host until `resume`. Pausing a paused or crashed host does nothing."""
        if self.state is HostState.UP:
            self._paused_until = simpy.Event(self.kernel)

    def resume(self) -> None:
        """End a pause: everything that fell due meanwhile happens now, in the order it fell due."""
        if self._paused_until is not None:
            ended, self._paused_until = self._paused_until, None
            # Before whatever else is due at this instant: what waited has waited longer.
            self.kernel.happen_first(ended)


def _checked_ppm(host: str, ppm: object) -> int:
    if type(ppm) is not int or not -500_000 <= ppm <= _MILLION:
        raise SimulationError(f"host {host}: drift of {ppm!r} ppm; an int from -500,000 to 1,000,000")
    return ppm
