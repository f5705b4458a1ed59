"""A request is held up in the network until its sender has lost the job, and the next owner is at work on it.

A network may keep a message for as long as it likes, and deliver it after its sender has given up, died or moved on.
Each worker here has one job and one such message: a start, a heartbeat, a retry, an outcome. Then it is cut off, so
that its lease runs out and the job goes to somebody else; and then the old message arrives. Its token is too small.
"""

from __future__ import annotations

from scheduler.app import Client
from scheduler.policy import WorkerSettings
from simlab.faults import At, Delayed, Fault, HandlerRaises, Partition
from simlab.naive.heartbeat_without_guard import HEARTBEAT_WITHOUT_GUARD
from simlab.naive.unguarded_finish import UNGUARDED_FINISH
from simlab.naive.unguarded_retry import UNGUARDED_RETRY
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, add_client
from simlab.scenarios.instants import LATENCY, add_single_workers, add_sweeper, jobs_in_order
from simlab.world import World

__all__ = ["SCENARIO"]

DUE_US = 5 * SECOND_US
TAKEN_OVER_AT_US = 61 * SECOND_US
HEALED_AT_US = 110 * SECOND_US

# Each kind of message: the call, when it is sent, when it arrives, and how long its job takes. By the time it
# arrives the job has been running elsewhere since the takeover, and still is.
_KINDS = (
    ("start", 5 * SECOND_US, 75 * SECOND_US, 30 * SECOND_US),
    ("heartbeat", 15 * SECOND_US, 80 * SECOND_US, 120 * SECOND_US),
    ("finish", 5 * SECOND_US, 85 * SECOND_US, 35 * SECOND_US),  # a retry
    ("finish", 13 * SECOND_US, 65 * SECOND_US, 8 * SECOND_US),
)
_RETRY = 2


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    plan: list[Fault] = []
    for number in range(sizes["n_workers"]):
        host = f"w{number + 1}"
        verb, sent_us, arrives_us, _ = _KINDS[number % len(_KINDS)]
        cut_us = sent_us + SECOND_US // 2
        plan.append(Delayed(host=host, verb=verb, request_us=arrives_us - sent_us))
        plan.append(Partition(host=host, when=At(cut_us), for_us=HEALED_AT_US - cut_us))
        if number % len(_KINDS) == _RETRY:
            plan.append(HandlerRaises(job=number))
    return tuple(plan)


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    async def load(client: Client) -> None:
        count, chance = sizes["n_workers"], world.streams.stream("service")
        service_us = [
            _KINDS[n % len(_KINDS)][3] + chance.randint(-SECOND_US // 2, SECOND_US // 2) for n in range(count)
        ]
        await client.enqueue_many(jobs_in_order(count, due_us=DUE_US, service_us=service_us, apart_us=1))

    add_single_workers(world, sizes["n_workers"], settings)
    add_sweeper(world, settings, at_us=TAKEN_OVER_AT_US, name="next")
    add_client(world, load)


SCENARIO = Scenario(
    name="stale-request",
    teaches="why every write carries its token: a request may arrive after its sender has lost the job",
    sizes={"n_workers": 4},
    settings=WorkerSettings(concurrency=64, prefetch=0),
    faults=_faults,
    build=_build,
    until_us=lambda sizes: HEALED_AT_US + (120 + sizes["n_workers"]) * SECOND_US,
    lateness_bound_us=lambda sizes: (10 + sizes["n_workers"]) * SECOND_US,
    latency=LATENCY,
    variants=(HEARTBEAT_WITHOUT_GUARD, UNGUARDED_RETRY, UNGUARDED_FINISH),
)
