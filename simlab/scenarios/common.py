"""What most stories are told with: a fleet of workers, one task, and a client that enqueues.

A story that needs something else builds it itself; nothing here knows any particular story.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from scheduler.app import App, Client, JobRequest
from scheduler.errors import StoreUnavailable
from scheduler.policy import Retry, WorkerSettings
from scheduler.pool import RunningJob
from simlab.hosts import Incarnation
from simlab.world import World

__all__ = ["SECOND_US", "Treatment", "add_client", "add_workers", "jobs_due", "plain_build", "work_app"]

SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """How the jobs of a story are treated: the parameters of the task."""

    max_attempts: int = 5
    retry: Retry | None = None
    max_age: timedelta | None = None


def work_app(world: World, life: Incarnation, treatment: Treatment | None = None) -> App:
    """Return an application with one task, ``work``, whose handler works, changes the world once, and obeys the plan.

    The payload is ``{"n": number, "service_us": how long it works}``.
    """
    app = App()
    given = treatment if treatment is not None else Treatment()

    @app.task(max_attempts=given.max_attempts, retry=given.retry, max_age=given.max_age)
    async def work(job: RunningJob, *, n: int, service_us: int) -> None:
        await world.work(life, job, n=n, service_us=service_us)

    return app


def add_workers(
    world: World, count: int, settings: WorkerSettings, treatment: Treatment | None = None
) -> None:
    """Add hosts w1, w2, …, each with one worker that is started again after a crash."""

    def boot(life: Incarnation) -> None:
        world.start_worker(life, work_app(world, life, treatment), settings)

    for number in range(1, count + 1):
        world.add_host(f"w{number}", boot)


def add_client(
    world: World,
    load: Callable[[Client], Awaitable[None]],
    treatment: Treatment | None = None,
    *,
    name: str = "client",
) -> None:
    """Add a host that runs `load` with a client of the store; its clock is ``world.hosts[name].clock``."""

    def boot(life: Incarnation) -> None:
        client = world.client(life, work_app(world, life, treatment))

        async def run() -> None:
            try:
                await load(client)
            except StoreUnavailable as error:
                # It gives up, as a client may: what it did not hear of may be in the table or not.
                world.recorder.observer(life)("unavailable", None, str(error))

        world.spawn(life, run(), name)

    world.add_host(name, boot)


def jobs_due(
    world: World, count: int, *, due_us: tuple[int, int], service_us: tuple[int, int], first: int = 0
) -> list[JobRequest]:
    """Return jobs numbered from `first`, due after and working for times drawn uniformly from two ranges."""
    arrivals = world.streams.stream(f"arrivals/{first}")
    service = world.streams.stream(f"service/{first}")
    return [
        JobRequest(
            task="work",
            payload={"n": n, "service_us": service.randint(*service_us)},
            delay=timedelta(microseconds=arrivals.randint(*due_us)),
        )
        for n in range(first, first + count)
    ]


def plain_build(
    *, due_us: tuple[int, int], service_us: tuple[int, int], treatment: Treatment | None = None
) -> Callable[[World, Mapping[str, int], WorkerSettings], None]:
    """Return how a plain story is built: ``n_workers`` workers, and a client that enqueues ``n_jobs`` jobs at once.

    Parameters
    ----------
    due_us, service_us
        The ranges from which :func:`jobs_due` draws.
    """

    def build(world: World, sizes: Mapping[str, int], settings: WorkerSettings) -> None:
        async def load(client: Client) -> None:
            await client.enqueue_many(jobs_due(world, sizes["n_jobs"], due_us=due_us, service_us=service_us))

        add_workers(world, sizes["n_workers"], settings, treatment)
        add_client(world, load, treatment)

    return build
