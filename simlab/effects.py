"""Effects: what handlers do to the outside world, as a ledger that can be counted afterwards.

A ledger either deduplicates on the job's identity (what an idempotent handler relies on), or refuses a
fencing token smaller than one it has seen, or takes whatever comes. Exactly-once is impossible; the ledger
is where that shows, and where it stops mattering.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

__all__ = ["Effect", "EffectMode", "Effects", "ModelEffects"]


class EffectMode(enum.StrEnum):
    """What the outside world checks before it changes."""

    IDEMPOTENT = "idempotent"
    """One change a job, whoever asks again."""
    FENCED = "fenced"
    """No change by a smaller token than one already seen for the job."""
    PLAIN = "plain"
    """Nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One change that was made. `at_us` is by the database's clock, since the Unix epoch."""

    job_id: UUID
    token: int
    host: str
    at_us: int


class Effects(Protocol):
    """The outside world."""

    async def apply(self, job_id: UUID, *, token: int, host: str, mode: EffectMode) -> tuple[int, bool]:
        """Change the world for a job; returns the database's time and whether anything was changed."""

    def table(self) -> list[Effect]:
        """Return every change, in the order they were made."""


class ModelEffects:
    """The ledger as a list."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._effects: list[Effect] = []
        self._largest: dict[UUID, int] = {}

    async def apply(self, job_id: UUID, *, token: int, host: str, mode: EffectMode) -> tuple[int, bool]:
        now_us = self._now_us()
        seen = self._largest.get(job_id)
        refused = (mode is EffectMode.IDEMPOTENT and seen is not None) or (
            mode is EffectMode.FENCED and seen is not None and token < seen
        )
        if not refused:
            self._largest[job_id] = max(token, seen or 0)
            self._effects.append(Effect(job_id=job_id, token=token, host=host, at_us=now_us))
        return now_us, not refused

    def table(self) -> list[Effect]:
        return list(self._effects)
