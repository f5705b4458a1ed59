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
        if type(drift_ppm) is not int or not -500_000 <= drift_ppm <= _MILLION:
            raise SimulationError(
                f"host {name}: drift of {drift_ppm!r} ppm; an int from -500,000 to 1,000,000"
            )
        self.name = name
        self.kernel = kernel
        self.drift_ppm = drift_ppm
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
        return self.kernel.now_us * (_MILLION + self.drift_ppm) // _MILLION

    def virtual_delay_us(self, duration_us: int) -> int:
        """How long the world waits while this host's clock counts `duration_us`; never too short."""
        if self.drift_ppm == 0:
            return duration_us
        target_us = self.monotonic_us() + duration_us
        # The first instant at which the host's clock shows the target: an exact integer inverse.
        instant_us = -(-target_us * _MILLION // (_MILLION + self.drift_ppm))
        return max(0, instant_us - self.kernel.now_us)

    def wall_us(self) -> int:
        """Return what this host believes the date to be, in microseconds since the Unix epoch."""
        return EPOCH_US + self.monotonic_us() + self._wall_offset_us

    def step_wall(self, by_us: int) -> None:
        """Step the wall clock, as NTP does; the monotonic clock never steps."""
        self._wall_offset_us += by_us

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
            ended.succeed()
