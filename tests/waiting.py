"""Waiting in the real world: look again and again, up to a deadline; never sleep and hope."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

__all__ = ["until", "wait_for"]


async def until(true: Callable[[], bool | Awaitable[bool]], *, seconds: float = 10) -> None:
    """Look, a hundred times a second, until it is true; fail at the deadline."""
    async with asyncio.timeout(seconds):
        while True:
            found = true()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(0.01)


def wait_for(true: Callable[[], bool], *, seconds: float = 20) -> None:
    """Look, a hundred times a second, until it is true; fail at the deadline. For other processes' doings."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)
