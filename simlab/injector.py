"""The injector: carries out a plan of faults on the hosts, the network, the store and the handlers of a world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler.failpoints import Failpoint
from scheduler.held import HeldJob
from simlab.faults import (
    At,
    ClockDrift,
    ClockOffset,
    ClockStep,
    ClockWobble,
    Crash,
    Delayed,
    Fault,
    HandlerBlocks,
    HandlerFault,
    HandlerKills,
    HandlerOverruns,
    HandlerRaises,
    HostFault,
    LockHeld,
    Partition,
    Pause,
    Reached,
    ReplyLost,
    RequestLost,
    SlowStore,
    StoreClockStep,
    StoreFault,
    StoreRestart,
    duration_us,
)
from simlab.hosts import Host, HostState, Incarnation
from simlab.network import Fate

if TYPE_CHECKING:
    from simlab.world import World

__all__ = ["HandlerFailed", "Injector"]


class HandlerFailed(Exception):
    """What a handler raises when a plan says that it raises."""


class Injector:
    """Watches for the moments a plan names, and acts on the world."""

    def __init__(self, faults: Sequence[Fault], *, world: World) -> None:
        self._faults = tuple(faults)
        self._world = world
        self._reached: dict[tuple[str, str], int] = {}
        self._called: dict[tuple[str, str], int] = {}
        # How many faults keep a host paused: it resumes when the last of them ends.
        self._pauses: dict[Incarnation, int] = {}
        self._struck: set[Fault] = set()  # Only ever asked what is in it, never gone through.

    def never_struck(self) -> tuple[Fault, ...]:
        """Return the faults of the plan that did nothing: their moment or their job did not come."""
        return tuple(fault for fault in self._faults if fault not in self._struck)

    # Faults of hosts.

    def arm(self, host: Host) -> None:
        """Set a host's clocks, and the timers of the faults that strike it at an instant."""
        for fault in self._faults:
            if isinstance(fault, ClockOffset) and fault.host == host.name:
                self._struck.add(fault)
                host.step_wall(fault.by_us)
            elif isinstance(fault, ClockWobble) and fault.host == host.name:
                self._struck.add(fault)
                host.wobble_wall(fault.by_us, fault.period_us)
            elif isinstance(fault, HostFault) and fault.host == host.name and isinstance(fault.when, At):
                self._at(fault.when, host, fault)

    def _at(self, when: At, host: Host, fault: HostFault) -> None:
        host.kernel.after(when.at_us, lambda: self._strike(fault, host))

    def failpoint(self, life: Incarnation) -> Failpoint | None:
        """Return the failpoint of one life of a host; None when the plan has none for it."""
        host = life.host
        mine = [
            fault
            for fault in self._faults
            if isinstance(fault, HostFault) and fault.host == host.name and isinstance(fault.when, Reached)
        ]
        if not mine:
            return None

        async def reached(name: str, job: HeldJob | None, /) -> None:
            del job
            count = self._reached[host.name, name] = self._reached.get((host.name, name), 0) + 1
            struck = [fault for fault in mine if fault.when == Reached(name, count)]
            for fault in struck:
                self._strike(fault, host)
            if struck:
                # Stand still here: for ever after a crash, until the end of a pause.
                await host.clock.sleep_us(0)

        return reached

    def _strike(self, fault: HostFault, host: Host) -> None:
        if host.state is HostState.CRASHED:
            return
        self._struck.add(fault)
        match fault:
            case Crash():
                self._crash(host, fault.restart_after_us)
            case Pause():
                self._pause(host, fault.for_us)
            case ClockDrift():
                self._note(host, str(fault))
                host.drift(fault.ppm)
            case ClockStep():
                self._note(host, str(fault))
                host.step_wall(fault.by_us)
            case Partition():
                self._cut(host, fault)

    def _crash(self, host: Host, restart_after_us: int | None) -> None:
        self._note(host, "crash")
        host.crash()
        if restart_after_us is not None:
            host.kernel.after(restart_after_us, lambda: self._restart(host))

    def _restart(self, host: Host) -> None:
        if host.state is HostState.CRASHED:
            host.restart()
            self._note(host, "restart")
            self._world.boot(host)

    def _pause(self, host: Host, for_us: int) -> None:
        life = host.life
        self._pauses[life] = self._pauses.get(life, 0) + 1
        if host.state is HostState.UP:
            self._note(host, "pause")
            host.pause()
        host.kernel.after(for_us, lambda: self._resume(life))

    def _resume(self, life: Incarnation) -> None:
        self._pauses[life] -= 1
        if self._pauses[life] == 0 and life.alive:
            self._note(life.host, "resume")
            life.host.resume()

    def _cut(self, host: Host, fault: Partition) -> None:
        conditions = self._world.conditions
        cut = {
            "both": (conditions.no_requests, conditions.no_replies),
            "requests": (conditions.no_requests,),
            "replies": (conditions.no_replies,),
        }[fault.lose]
        for messages in cut:
            messages[host.name] += 1
        self._note(host, f"cut off ({fault.lose})", for_us=fault.for_us)

        def heal() -> None:
            for messages in cut:
                messages[host.name] -= 1
            self._note(host, f"reconnected ({fault.lose})")

        host.kernel.after(fault.for_us, heal)

    # Faults of single calls.

    def decide(self, host: Host, verb: str) -> Fate:
        """Say what becomes of a host's call."""
        count = self._called[host.name, verb] = self._called.get((host.name, verb), 0) + 1
        struck = [
            fault
            for fault in self._faults
            if isinstance(fault, RequestLost | ReplyLost | Delayed)
            and (fault.host, fault.verb, fault.nth) == (host.name, verb, count)
        ]
        for fault in struck:
            self._struck.add(fault)
            for_us = fault.request_us + fault.reply_us if isinstance(fault, Delayed) else None
            self._note(host, str(fault), for_us=for_us)
        return Fate(
            request_arrives=not any(isinstance(fault, RequestLost) for fault in struck),
            reply_arrives=not any(isinstance(fault, ReplyLost) for fault in struck),
            request_delay_us=sum(fault.request_us for fault in struck if isinstance(fault, Delayed)),
            reply_delay_us=sum(fault.reply_us for fault in struck if isinstance(fault, Delayed)),
        )

    # Faults of the store.

    def arm_store(self) -> None:
        """Set the timers of the faults that strike the store."""
        for fault in self._faults:
            if isinstance(fault, StoreFault):
                self._at_store(fault)

    def _at_store(self, fault: StoreFault) -> None:
        self._world.kernel.after(fault.when.at_us, lambda: self._strike_store(fault))

    def _strike_store(self, fault: StoreFault) -> None:
        world, after = self._world, self._world.kernel.after
        if not isinstance(fault, LockHeld) or fault.job < len(world.recorder.enqueued_jobs):
            self._struck.add(fault)
        steps = isinstance(fault, StoreClockStep)
        self._note_store(str(fault), for_us=None if steps else duration_us(fault))
        match fault:
            case SlowStore():
                world.conditions.extra_us += fault.extra_us
                after(fault.for_us, lambda: self._faster(fault.extra_us))
            case StoreRestart():
                world.conditions.down = True
                world.conditions.connections += 1
                world.backend.unlock()
                after(fault.down_us, self._store_up)
            case StoreClockStep():
                world.database_clock.step(fault.by_us)
            case LockHeld():
                self._lock(fault)

    def _faster(self, by_us: int) -> None:
        self._world.conditions.extra_us -= by_us

    def _store_up(self) -> None:
        self._world.conditions.down = False
        self._note_store("the store is up again")

    def _lock(self, fault: LockHeld) -> None:
        jobs = self._world.recorder.enqueued_jobs
        if fault.job < len(jobs):
            self._world.backend.lock([jobs[fault.job]])
            self._world.kernel.after(fault.for_us, self._world.backend.unlock)

    # Faults of handlers.

    async def handler(self, life: Incarnation, *, n: int, attempt: int) -> None:
        """Make the handler of a job block its loop, kill its worker, or raise, as the plan says."""
        for fault in self._of_handler(n, attempt):
            self._struck.add(fault)
            if isinstance(fault, HandlerBlocks):
                self._pause(life.host, fault.for_us)
                await life.host.clock.sleep_us(0)
            elif isinstance(fault, HandlerKills):
                self._crash(life.host, fault.restart_after_us)
                await life.host.clock.sleep_us(0)
            elif isinstance(fault, HandlerRaises):
                raise HandlerFailed(f"job {n} fails in its attempt {attempt}")

    def overrun_us(self, *, n: int, attempt: int) -> int:
        """Return by how much the handler of a job takes longer than it should."""
        return sum(
            fault.by_us for fault in self._of_handler(n, attempt) if isinstance(fault, HandlerOverruns)
        )

    def _of_handler(self, n: int, attempt: int) -> list[HandlerFault]:
        return [
            fault
            for fault in self._faults
            if isinstance(fault, HandlerFault) and fault.job == n and attempt <= fault.attempts
        ]

    def _note(self, host: Host, detail: str, *, for_us: int | None = None) -> None:
        self._world.recorder.fault(host.life, detail, for_us=for_us)

    def _note_store(self, detail: str, *, for_us: int | None = None) -> None:
        self._note(self._world.database_host, detail, for_us=for_us)
