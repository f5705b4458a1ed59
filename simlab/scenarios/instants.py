"""A run without jitter, in which every instant is known beforehand to the microsecond.

A message takes a millisecond each way. A worker that is there from the start sweeps at once, and then claims: its
claim leaves at 2 ms and reaches the store at 3 ms, where the lease begins. So it is known when that lease
ends, and what a fault must do to bring two messages to the store around that very microsecond.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from scheduler.app import JobRequest
from scheduler.policy import WorkerSettings
from simlab.hosts import Incarnation
from simlab.network import Latency
from simlab.scenarios.common import work_app
from simlab.world import World

__all__ = [
    "AROUND_US",
    "CLAIM_SENT_US",
    "CLAIM_US",
    "LATENCY",
    "TRAVEL_US",
    "add_single_workers",
    "add_sweeper",
    "jobs_in_order",
    "sweep_offset_us",
]

TRAVEL_US = 1_000
LATENCY = Latency(TRAVEL_US, TRAVEL_US)

CLAIM_SENT_US = 2 * TRAVEL_US
CLAIM_US = 3 * TRAVEL_US
"""When the first claim of a worker that is there from the start leaves it, and when it reaches the store."""

AROUND_US = (-1, 0, 1, 1_500, 2_500, 4_500)
"""Offsets from an instant that is raced for: a microsecond either side of it, the instant itself, and then between
the steps of whoever wins it by a sweep: between sweep and claim, between claim and start, after the start."""

_SWEEPS_US = (-1, 0, 1, 2)


def sweep_offset_us(world: World) -> int:
    """Return by how much a sweep misses the instant it is meant for: within two microseconds, as the seed has it."""
    return _SWEEPS_US[world.streams.stream("sweep").randint(0, len(_SWEEPS_US) - 1)]


def add_single_workers(world: World, count: int, settings: WorkerSettings) -> None:
    """Add hosts w1, w2, … whose workers hold one job at a time: the first job in line goes to w1, and so on."""
    one = replace(settings, concurrency=1, prefetch=0)

    def boot(life: Incarnation) -> None:
        world.start_worker(life, work_app(world, life), one)

    for number in range(1, count + 1):
        world.add_host(f"w{number}", boot)


def add_sweeper(world: World, settings: WorkerSettings, *, at_us: int, name: str = "late") -> None:
    """Add a host whose worker starts just so that its first sweep reaches the store at an instant."""

    def boot(life: Incarnation) -> None:
        world.start_worker(life, work_app(world, life), settings)

    world.add_host(name, boot, starts_at_us=at_us - TRAVEL_US)


def jobs_in_order(count: int, *, due_us: int, service_us: list[int], apart_us: int) -> list[JobRequest]:
    """Return jobs numbered from 0, each due `apart_us` after the one before."""
    return [
        JobRequest(
            task="work",
            payload={"n": n, "service_us": service_us[n]},
            delay=timedelta(microseconds=due_us + n * apart_us),
        )
        for n in range(count)
    ]
