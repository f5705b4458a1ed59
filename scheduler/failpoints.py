"""Failpoints: named places in the worker where a crash tells a story.

The core awaits the failpoint at each place when one is set; in production none is, and the price is one
``is None``. What happens there is the setter's: a laboratory crashes a simulated host, and
:func:`from_environment` lets a real process kill itself with SIGKILL, which no handler, ``finally`` or
``atexit`` survives.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Protocol

from scheduler.errors import InvalidSetting
from scheduler.held import HeldJob

__all__ = ["ENVIRONMENT", "FAILPOINTS", "Failpoint", "from_environment"]

FAILPOINTS = (
    "after_claim",
    "before_start",
    "after_start",
    "before_execute",
    "after_execute",
    "before_finish",
    "after_finish",
    "before_heartbeat",
    "after_heartbeat",
)
"""Every failpoint, in the order a job meets them. The heartbeat's two are not about one job."""

ENVIRONMENT = "SCHEDULER_FAILPOINTS"
"""The environment variable: ``after_execute=kill`` or ``after_execute=kill@3`` (at the third time), comma-separated."""


class Failpoint(Protocol):
    """Awaited at each named place; may never return."""

    async def __call__(self, name: str, job: HeldJob | None, /) -> None: ...


def from_environment(environment: Mapping[str, str]) -> Failpoint | None:
    """Return the failpoint that the environment asks for, or None.

    Raises
    ------
    InvalidSetting
        If the variable does not read as ``NAME=kill`` or ``NAME=kill@COUNT``.
    """
    text = environment.get(ENVIRONMENT, "").strip()
    return _KillAt(_parse(text)) if text else None


def _parse(text: str) -> dict[str, int]:
    at: dict[str, int] = {}
    for part in text.split(","):
        name, _, action = part.strip().partition("=")
        verb, _, count = action.partition("@")
        count = count or "1"
        if name not in FAILPOINTS:
            raise InvalidSetting(
                ENVIRONMENT, text, f"no failpoint {name!r}; there are {', '.join(FAILPOINTS)}"
            )
        if verb != "kill" or not count.isdecimal() or int(count) < 1:
            raise InvalidSetting(
                ENVIRONMENT, text, "write NAME=kill or NAME=kill@COUNT, with COUNT at least 1"
            )
        at[name] = int(count)
    return at


class _KillAt:
    def __init__(self, at: dict[str, int]) -> None:
        self._left = at

    async def __call__(self, name: str, job: HeldJob | None, /) -> None:
        if name in self._left:
            self._left[name] -= 1
            if self._left[name] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
