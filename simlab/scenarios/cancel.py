"""Jobs are cancelled at every moment of their lives, and each moment has an answer of its own.

Before it starts the cancellation wins, in the table or in a worker's heap, and the job never runs. While it runs it
is a request: the heartbeat brings it to the worker, and a handler that passes a checkpoint agrees to it; one
that never looks goes on to its end and has succeeded. After its end it is too late. Some cancellations here come
in the very milliseconds in which their job starts: either answer is right then, but what was answered must hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from scheduler.app import App, Client, JobRequest
from scheduler.errors import StoreUnavailable
from scheduler.policy import WorkerSettings
from scheduler.pool import RunningJob
from simlab.faults import Fault, ReplyLost, RequestLost
from simlab.hosts import Incarnation
from simlab.naive.cancel_of_what_ended import CANCEL_OF_WHAT_ENDED
from simlab.naive.start_unheeded import START_UNHEEDED
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US
from simlab.world import World

__all__ = ["SCENARIO"]

# Each kind of job: its task, when it is due, how long it works, and when it is cancelled; in microseconds from
# the enqueueing of its round.
_KINDS: dict[str, tuple[str, tuple[int, int], int, tuple[int, int]]] = {
    "in the table": ("work", (50 * SECOND_US, 60 * SECOND_US), SECOND_US, (5 * SECOND_US, 8 * SECOND_US)),
    "in a heap": ("work", (20 * SECOND_US, 22 * SECOND_US), SECOND_US, (17 * SECOND_US, 19 * SECOND_US)),
    "as it starts": ("work", (25 * SECOND_US, 25 * SECOND_US), SECOND_US, (24_985_000, 25_015_000)),
    "while it runs": ("work", (8 * SECOND_US, 9 * SECOND_US), 40 * SECOND_US, (12 * SECOND_US, 15 * SECOND_US)),
    "and does not look": (
        "deaf", (8 * SECOND_US, 9 * SECOND_US), 40 * SECOND_US, (12 * SECOND_US, 15 * SECOND_US)
    ),
    "after its end": ("work", (6 * SECOND_US, 7 * SECOND_US), SECOND_US, (26 * SECOND_US, 30 * SECOND_US)),
}  # fmt: skip

ROUND_US = 70 * SECOND_US
RETRY_US = 1 * SECOND_US


def _app(world: World, life: Incarnation) -> App:
    app = App()

    @app.task()
    async def work(job: RunningJob, *, n: int, service_us: int) -> None:
        await world.work(life, job, n=n, service_us=service_us)

    @app.task()
    async def deaf(job: RunningJob, *, n: int, service_us: int) -> None:
        del n
        await life.host.clock.sleep_us(service_us)
        await world.effect(life, job)

    return app


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    lost = tuple(ReplyLost(host="client", verb="cancel", nth=n) for n in (1, len(_KINDS) * sizes["n_each"]))
    return (*lost, RequestLost(host="w1", verb="heartbeat", nth=2))


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    def boot_worker(life: Incarnation) -> None:
        world.start_worker(life, _app(world, life), settings)

    def boot_client(life: Incarnation) -> None:
        client = Client(_app(world, life), world.store_for(life), rng=world.streams.stream("identities"))

        async def load() -> None:
            for number in range(sizes["n_rounds"]):
                began_us = life.host.clock.now_us()
                await _round(world, life, client, number=number, n_each=sizes["n_each"])
                await life.host.clock.sleep_us(began_us + ROUND_US - life.host.clock.now_us())

        world.spawn(life, load(), "client")

    for number in range(1, sizes["n_workers"] + 1):
        world.add_host(f"w{number}", boot_worker)
    world.add_host("client", boot_client)


async def _round(world: World, life: Incarnation, client: Client, *, number: int, n_each: int) -> None:
    """Enqueue some jobs of each kind, and cancel every one of them at its time."""
    chance = world.streams.stream(f"arrivals/{number}")
    requests, cancel_us = [], []
    for n in range(n_each * len(_KINDS)):
        task, due_us, service_us, at_us = list(_KINDS.values())[n % len(_KINDS)]
        payload = {"n": number * n_each * len(_KINDS) + n, "service_us": service_us}
        delay = timedelta(microseconds=chance.randint(*due_us))
        requests.append(JobRequest(task=task, payload=payload, delay=delay))
        cancel_us.append(chance.randint(*at_us))
    asked_us = life.host.clock.now_us()
    jobs = await client.enqueue_many(requests)
    for when_us, job in sorted(zip(cancel_us, jobs, strict=True)):
        await life.host.clock.sleep_us(max(0, asked_us + when_us - life.host.clock.now_us()))
        world.spawn(life, _cancel(world, life, [job]), f"cancel {job}")


async def _cancel(world: World, life: Incarnation, jobs: Sequence[UUID]) -> None:
    """Cancel until there is an answer: asking twice is harmless."""
    store = world.store_for(life)
    while True:
        try:
            await store.cancel(jobs)
        except StoreUnavailable:
            await life.host.clock.sleep_us(RETRY_US)
        else:
            return


SCENARIO = Scenario(
    name="cancel",
    teaches="what cancelling means before a job starts, while it runs and after it has ended",
    sizes={"n_rounds": 1, "n_each": 3, "n_workers": 2},
    settings=WorkerSettings(concurrency=10, prefetch=20),
    faults=_faults,
    build=_build,
    until_us=lambda sizes: sizes["n_rounds"] * ROUND_US + 10 * SECOND_US,
    lateness_bound_us=lambda sizes: 50_000 + sizes["n_each"] // 10 * 40 * SECOND_US,
    variants=(START_UNHEEDED, CANCEL_OF_WHAT_ENDED),
)
