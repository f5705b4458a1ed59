"""The injector: carries out a plan of faults on the hosts and the network of a world."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler.failpoints import Failpoint
from scheduler.held import HeldJob
from simlab.faults import At, Crash, Fault, Pause, Reached, ReplyLost, RequestLost
from simlab.hosts import Host, HostState, Incarnation
from simlab.network import Fate
from simlab.recorder import Recorder

__all__ = ["Injector"]


class Injector:
    """Watches for the moments a plan names, and acts.

    Parameters
    ----------
    reboot
        Starts a crashed host again, with what ran on it.
    """

    def __init__(
        self, faults: Sequence[Fault], *, recorder: Recorder, reboot: Callable[[Host], None]
    ) -> None:
        self._faults = tuple(faults)
        self._recorder = recorder
        self._reboot = reboot
        self._reached: dict[tuple[str, str], int] = {}
        self._called: dict[tuple[str, str], int] = {}

    def arm(self, host: Host) -> None:
        """Set the timers of the faults that strike this host at an instant."""
        for fault in self._faults:
            if isinstance(fault, Crash | Pause) and fault.host == host.name and isinstance(fault.when, At):
                host.kernel.after(fault.when.at_us, lambda fault=fault: self._strike(fault, host))  # type: ignore[misc]

    def failpoint(self, life: Incarnation) -> Failpoint | None:
        """Return the failpoint of one life of a host; None when the plan has none for it."""
        host = life.host
        mine = [
            fault
            for fault in self._faults
            if isinstance(fault, Crash | Pause)
            and fault.host == host.name
            and isinstance(fault.when, Reached)
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

    def decide(self, host: Host, verb: str) -> Fate:
        """Say what becomes of a host's call."""
        count = self._called[host.name, verb] = self._called.get((host.name, verb), 0) + 1
        lost = [
            fault
            for fault in self._faults
            if isinstance(fault, RequestLost | ReplyLost)
            and (fault.host, fault.verb, fault.nth) == (host.name, verb, count)
        ]
        for fault in lost:
            self._recorder.fault(host.life, str(fault))
        return Fate(
            request_arrives=not any(isinstance(fault, RequestLost) for fault in lost),
            reply_arrives=not any(isinstance(fault, ReplyLost) for fault in lost),
        )

    def _strike(self, fault: Crash | Pause, host: Host) -> None:
        if host.state is HostState.CRASHED:
            return
        if isinstance(fault, Pause):
            self._recorder.fault(host.life, "pause")
            host.pause()
            host.kernel.after(fault.for_us, lambda: self._resume(host))
            return
        self._recorder.fault(host.life, "crash")
        host.crash()
        if fault.restart_after_us is not None:
            host.kernel.after(fault.restart_after_us, lambda: self._restart(host))

    def _resume(self, host: Host) -> None:
        if host.state is HostState.PAUSED:
            self._recorder.fault(host.life, "resume")
            host.resume()

    def _restart(self, host: Host) -> None:
        if host.state is HostState.CRASHED:
            host.restart()
            self._recorder.fault(host.life, "restart")
            self._reboot(host)
