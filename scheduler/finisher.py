"""The finisher: writes outcomes in batches, and keeps writing until the store has answered.

Finished work must be recorded as finished, so an outcome is never given up while the worker lives: the guard
in the statement makes a late or a repeated write harmless. Text that JSONB or TEXT would refuse is cleaned
here, for the same reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.batcher import Batcher
from scheduler.clock import Clock
from scheduler.errors import StoreUnavailable
from scheduler.held import Observer
from scheduler.policy import WorkerSettings
from scheduler.store import Finished, Outcome, Store

__all__ = ["MAX_ERROR_CHARS", "Finisher", "clean_text", "describe_error"]

MAX_ERROR_CHARS = 2000
"""The longest error text kept in a row."""


def clean_text(text: str) -> str:
    """Return text that PostgreSQL accepts: no NUL, no lone surrogates, at most `MAX_ERROR_CHARS` long."""
    text = text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    return text.encode("utf-8", errors="replace").decode("utf-8")[:MAX_ERROR_CHARS]


def describe_error(error: BaseException) -> str:
    """Return an exception as one clean line for `last_error`; never raises, whatever its ``__str__`` does."""
    try:
        message = str(error)
    except Exception as second:  # noqa: BLE001 - a broken __str__ must not lose the outcome
        message = f"<its message could not be made: {type(second).__name__}>"
    name = type(error).__name__
    return clean_text(f"{name}: {message}" if message else name)


class Finisher:
    """Takes one outcome at a time from the slots, writes them together."""

    def __init__(self, *, clock: Clock, store: Store, settings: WorkerSettings, observe: Observer) -> None:
        self._store = store
        self._observe = observe
        self._batcher: Batcher[Outcome, Finished] = Batcher(
            clock=clock,
            write=self._write,
            limit=settings.batch,
            retry_us=settings.store_retry_us,
            on_unavailable=self._unavailable,
        )

    async def submit(self, outcome: Outcome) -> Finished:
        """Write an outcome; returns how the store took it, however long that takes."""
        finished = await self._batcher.submit(outcome, wanted=lambda: True)
        assert finished is not None  # given up only when unwanted, which an outcome never is
        return finished

    async def run(self) -> None:
        """Write until cancelled."""
        await self._batcher.run()

    async def _write(self, outcomes: Sequence[Outcome]) -> Sequence[Finished]:
        return (await self._store.finish(outcomes)).results

    def _unavailable(self, error: StoreUnavailable) -> None:
        self._observe("unavailable", None, f"finish: {error}")
