"""Pure decisions: when to retry, how to spread, what sizes go together. No I/O, no clock, no state.

Randomness comes in as a stream, so that the same stream gives the same decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from scheduler.errors import InvalidSetting

__all__ = ["RandomStream", "Retry", "WorkerSettings", "backoff_us", "jittered_us"]

SECOND_US = 1_000_000

MAX_PAUSE_US = 36_525 * 86_400 * SECOND_US
"""The longest pause between attempts, 100 years: a sum with it is still a date in the database."""


class RandomStream(Protocol):
    """The part of ``random.Random`` that the scheduler draws from. Always seeded, never the global one."""

    def randint(self, a: int, b: int, /) -> int:
        """Return a whole number from a to b, both included."""

    def getrandbits(self, k: int, /) -> int:
        """Return a whole number of k random bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Capped exponential backoff with equal jitter.

    The pause after attempt *n* is drawn uniformly from [d/2, d] with ``d = min(base * 2**(n - 1), cap)``.
    Half of it is certain, so that a failing dependency is left alone; half is chance, so that jobs which
    failed together do not come back together ("Exponential Backoff And Jitter", AWS Architecture Blog, 2015,
    where this form is called equal jitter).
    """

    base_us: int = 1 * SECOND_US
    cap_us: int = 3600 * SECOND_US

    def __post_init__(self) -> None:
        for name, value in (("base_us", self.base_us), ("cap_us", self.cap_us)):
            if type(value) is not int or value > MAX_PAUSE_US:
                raise InvalidSetting(
                    name, value, f"must be a whole number, at most {MAX_PAUSE_US:,} (100 years)"
                )
        if self.base_us < 0:
            raise InvalidSetting("base_us", self.base_us, "a pause cannot be negative")
        if self.cap_us < self.base_us:
            raise InvalidSetting("cap_us", self.cap_us, f"must be at least base_us={self.base_us}")


def backoff_us(retry: Retry, attempt: int, rng: RandomStream) -> int:
    """Return the pause in microseconds after the given attempt (counted from 1) has failed."""
    # More doublings than this pass any cap; without the bound, 2**attempt grows without limit.
    longest = min(retry.base_us << min(attempt - 1, 63), retry.cap_us)
    return rng.randint(longest // 2, longest)


def jittered_us(interval_us: int, rng: RandomStream) -> int:
    """Return an interval shortened by up to a tenth, so that workers started together drift apart."""
    return interval_us - rng.randint(0, interval_us // 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The sizes and durations of a worker, checked together. Durations in microseconds.

    Parameters
    ----------
    concurrency
        Slots: how many handlers run at once.
    prefetch
        How many claimed jobs may wait in the heap beyond the slots.
    lookahead_us
        Jobs due within this window are claimed ahead of time and fired from the heap.
    poll_interval_us
        The pause between polls. Shorter than the lookahead, or jobs would be found only when overdue.
    lease_us
        How long a claim lives without a heartbeat.
    heartbeat_interval_us
        The pause between heartbeats. Interval plus two request times must fit in a third of the lease,
        so that a lease survives two heartbeats lost in a row.
    request_timeout_us
        How long one call of the store may take before it counts as unavailable.
    sweep_interval_us, sweep_limit
        How often, and how many at a time, expired leases are swept.
    drain_timeout_us
        How long a stopping worker waits for running handlers before it cancels them.
    store_retry_us
        The pause before a failed call of the store is tried again.
    batch
        The most jobs in one statement.
    """

    concurrency: int = 10
    prefetch: int = 10
    lookahead_us: int = 30 * SECOND_US
    poll_interval_us: int = 5 * SECOND_US
    lease_us: int = 60 * SECOND_US
    heartbeat_interval_us: int = 15 * SECOND_US
    request_timeout_us: int = 2_500_000
    sweep_interval_us: int = 5 * SECOND_US
    sweep_limit: int = 1000
    drain_timeout_us: int = 30 * SECOND_US
    store_retry_us: int = 1 * SECOND_US
    batch: int = 1000

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            lowest = 0 if name in {"prefetch", "lookahead_us", "drain_timeout_us"} else 1
            value = getattr(self, name)
            if type(value) is not int or value < lowest:
                raise InvalidSetting(name, value, f"must be a whole number of at least {lowest}")
        if self.lookahead_us and self.poll_interval_us >= self.lookahead_us:
            raise InvalidSetting(
                "poll_interval_us",
                self.poll_interval_us,
                f"must be shorter than lookahead_us={self.lookahead_us}, or jobs are found only when overdue",
            )
        beat = self.heartbeat_interval_us + 2 * self.request_timeout_us
        if 3 * beat > self.lease_us:
            raise InvalidSetting(
                "heartbeat_interval_us",
                self.heartbeat_interval_us,
                f"interval + 2 * request_timeout_us = {beat} must fit in a third of lease_us={self.lease_us}",
            )

    @property
    def capacity(self) -> int:
        """The most jobs this worker holds at once."""
        return self.concurrency + self.prefetch
