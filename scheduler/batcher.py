"""Group commit: many callers, one write at a time, each write carrying all that gathered meanwhile.

No timer decides when a batch is full. The first item goes out at once; what arrives while that write is in
flight forms the next batch, so batches grow with load and add no delay without it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from scheduler.clock import Clock, Event
from scheduler.errors import StoreUnavailable

__all__ = ["Batcher"]

Item = TypeVar("Item")
Reply = TypeVar("Reply")


class _Ticket(Generic[Item, Reply]):
    __slots__ = ("done", "item", "reply", "wanted")

    def __init__(self, item: Item, done: Event, wanted: Callable[[], bool]) -> None:
        self.item = item
        self.done = done
        self.wanted = wanted
        self.reply: Reply | None = None


class Batcher(Generic[Item, Reply]):
    """Writes items in batches, and each batch again until the store answers.

    Parameters
    ----------
    write
        Takes a batch, returns one reply per item in the same order; raises StoreUnavailable when it cannot
        tell what happened. It must be safe to repeat.
    limit
        The most items in one batch.
    retry_us
        The pause before an unanswered batch is tried again.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        write: Callable[[Sequence[Item]], Awaitable[Sequence[Reply]]],
        limit: int,
        retry_us: int,
        on_unavailable: Callable[[StoreUnavailable], None],
    ) -> None:
        self._clock = clock
        self._write = write
        self._limit = limit
        self._retry_us = retry_us
        self._on_unavailable = on_unavailable
        self._waiting: deque[_Ticket[Item, Reply]] = deque()
        self._arrived = clock.event()

    async def submit(self, item: Item, *, wanted: Callable[[], bool]) -> Reply | None:
        """Write one item and return its reply; None when it was given up because no longer `wanted`."""
        ticket: _Ticket[Item, Reply] = _Ticket(item, self._clock.event(), wanted)
        self._waiting.append(ticket)
        self._arrived.set()
        await ticket.done.wait()
        return ticket.reply

    async def run(self) -> None:
        """Write batches until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(self._limit, len(self._waiting)))]
                await self._flush(batch)

    async def _flush(self, batch: list[_Ticket[Item, Reply]]) -> None:
        while batch:
            for ticket in batch:
                if not ticket.wanted():
                    ticket.done.set()
            batch = [ticket for ticket in batch if ticket.wanted()]
            if not batch:
                return
            try:
                replies = await self._write([ticket.item for ticket in batch])
            except StoreUnavailable as error:
                self._on_unavailable(error)
                await self._clock.sleep_us(self._retry_us)
                continue
            for ticket, reply in zip(batch, replies, strict=True):
                ticket.reply = reply
                ticket.done.set()
            return
