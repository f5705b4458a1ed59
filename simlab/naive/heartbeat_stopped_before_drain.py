"""The heartbeat is stopped first at a shutdown, while handlers are still given time to finish.

"Stop everything, then wait for what runs" reads well. But what runs is only the worker's for as long as its
lease is renewed: a drain that is longer than the lease gives the jobs away while they still run here.
"""

from __future__ import annotations

from typing import Any

from scheduler.clock import Task
from scheduler.heartbeat import Heartbeat
from scheduler.worker import Worker
from simlab.scenario import Variant

__all__ = ["HEARTBEAT_STOPPED_BEFORE_DRAIN"]


class _StoppableHeartbeat(Heartbeat):
    """A heartbeat whose both loops do nothing once it is stopped."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    async def beat_once(self) -> bool:
        return True if self._stopped else await super().beat_once()

    def _take_away(self, *what: Any) -> None:
        if not self._stopped:
            super()._take_away(*what)


class _StopsHeartbeatFirst(Worker):
    heartbeat_class = _StoppableHeartbeat

    async def _drain(self, poller: Task, timer: Task) -> None:
        assert isinstance(self._heartbeat, _StoppableHeartbeat)
        self._heartbeat.stop()
        await super()._drain(poller, timer)


HEARTBEAT_STOPPED_BEFORE_DRAIN = Variant(
    name="heartbeat-stopped-before-drain",
    says="a stopping worker lets its leases run out while its handlers still run",
    caught_by=("healthy-keeps-lease",),
    worker_class=_StopsHeartbeatFirst,
)
