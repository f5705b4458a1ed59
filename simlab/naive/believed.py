"""What time a worker believes it is, carried along with its calls of the store.

The Store port takes durations and never instants, so that no worker can impose its clock on the table. The
mistakes of judging by a worker's own clock need such an instant. It rides in a context variable, which a call
takes with it through the laboratory's network, to either store.
"""

from __future__ import annotations

from contextvars import ContextVar

from scheduler.clock import Clock
from scheduler.jobs import from_us
from scheduler.postgres import PostgresStore
from simlab.clock import SimClock

__all__ = ["SQL_BELIEVED_NOW", "BelievingPostgresStore", "believe", "believed_now_us", "wall_us"]

_believed_now_us: ContextVar[int] = ContextVar("believed_now_us")

_SETTING = "lab.believed_now"

SQL_BELIEVED_NOW = f"current_setting('{_SETTING}')::timestamptz"
"""The caller's idea of now, inside a statement of a :class:`BelievingPostgresStore`."""


def wall_us(clock: Clock) -> int:
    """Return what the date is by the wall clock of a worker's host."""
    assert isinstance(clock, SimClock)  # the laboratory's workers have no other
    return clock.wall_us()


def believe(clock: Clock) -> None:
    """Send what the host believes the date to be along with the calls that this task makes from here on."""
    _believed_now_us.set(wall_us(clock))


def believed_now_us() -> int:
    """Return the caller's idea of now, at the store's side of a call."""
    return _believed_now_us.get()


class BelievingPostgresStore(PostgresStore):
    """The real store, whose statements can be told the caller's idea of now."""

    async def _tell_now(self) -> None:
        now = from_us(believed_now_us()).isoformat()
        await self._database.fetch(f"SELECT set_config('{_SETTING}', %(now)s, false)", {"now": now})
