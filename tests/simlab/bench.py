"""What the laboratory's own tests are made with: a bare host, and a small world whose time the test moves."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import simpy

from scheduler.app import App
from scheduler.clock import CancelledError
from scheduler.held import HeldJob, Phase
from scheduler.jobs import Job, Lease, LeaseRef, NewJob
from scheduler.policy import WorkerSettings
from scheduler.store import CancelResult, ClaimRequest
from scheduler.worker import Worker
from simlab.clock import SimClock, SimTask
from simlab.faults import Fault, check_hosts
from simlab.history import Event
from simlab.hosts import EPOCH_US, Host, Incarnation
from simlab.kernel import Kernel
from simlab.network import Latency
from simlab.store import ModelStore
from simlab.streams import Streams
from simlab.world import World, model_backend

__all__ = [
    "MS",
    "SECOND",
    "Bench",
    "Story",
    "at_once",
    "held_job",
    "job_id",
    "opened_story",
    "run_dry",
    "working_app",
]

T = TypeVar("T")

MS = 1_000
SECOND = 1_000_000


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, such as a verb of the ModelStore."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("it waited for something")


def run_dry(kernel: Kernel) -> None:
    """Take steps until nothing is left to happen."""
    with suppress(simpy.core.EmptySchedule):
        while True:
            kernel.step()


def job_id(number: int) -> UUID:
    """Return the identity of the n-th job."""
    return UUID(int=number)


class Bench:
    """One kernel, hosts on it, and no scheduler: for what SimClock and the hosts promise by themselves."""

    def __init__(self, *, seed: int = 1, max_steps_at_one_instant: int = 100_000) -> None:
        self.kernel = Kernel(max_steps_at_one_instant=max_steps_at_one_instant)
        self.streams = Streams(seed)
        self.host = self.add("w1")

    def add(self, name: str, *, drift_ppm: int = 0, wall_offset_us: int = 0) -> Host:
        return Host(
            name, kernel=self.kernel, streams=self.streams, drift_ppm=drift_ppm, wall_offset_us=wall_offset_us
        )

    @property
    def clock(self) -> SimClock:
        return self.host.clock

    @property
    def now_us(self) -> int:
        return self.kernel.now_us

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str = "task") -> SimTask:
        return self.clock.spawn(coroutine, name)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, and return or raise what it does."""
        result: list[T] = []

        async def kept() -> None:
            result.append(await coroutine)

        task = self.spawn(kept(), "main")
        self.kernel.run_until_done(task.process)
        error = task.error()
        if error is not None:
            raise error
        return result[0]

    def until(self, us: int) -> None:
        self.kernel.run_until(us)

    def bury(self) -> None:
        """Close what is left, as a world does when it is over."""
        for life in self.host.lives:
            life.alive = False
        for life in self.host.lives:
            while life.tasks:
                next(iter(life.tasks)).close()


def held_job(
    number: int = 1,
    *,
    fire_at_us: int = 0,
    lease_until_us: int = 60 * SECOND,
    task: str = "work",
    token: int = 1,
    attempt: int = 1,
) -> HeldJob:
    """Return a held job without a store behind it."""
    lease = Lease(
        ref=LeaseRef(job_id(number), "w1/0", token),
        task=task,
        payload={},
        attempt=attempt,
        max_attempts=3,
        due_in_us=0,
        run_at_us=EPOCH_US,
    )
    job = HeldJob(lease, fire_at_us=fire_at_us, lease_until_us=lease_until_us)
    assert job.phase is Phase.WAITING
    return job


SETTINGS = WorkerSettings(concurrency=2, prefetch=2)


@dataclass
class Story:
    """A world on the model, with workers, whose time the test moves; virtual seconds throughout."""

    world: World
    app: App
    settings: WorkerSettings
    seen: list[Any] = field(default_factory=list)
    workers: dict[str, list[Worker]] = field(default_factory=dict)
    numbers: int = 0

    # Building.

    def worker(self, name: str = "w1", *, drift_ppm: int = 0) -> Host:
        """Add a host that runs a worker, now and after every restart."""
        return self.world.add_host(name, partial(self._boot, name), drift_ppm=drift_ppm)

    def _boot(self, name: str, life: Incarnation) -> None:
        worker = self.world.start_worker(life, self.app, self.settings)
        self.workers.setdefault(name, []).append(worker)

    def start(self) -> None:
        """Switch every host on."""
        hosts = list(self.world.hosts.values())
        check_hosts(self.world._faults, [host.name for host in hosts])
        for host in hosts:
            self.world.injector.arm(host)
        self.world.injector.arm_store()
        for host in hosts:
            self.world.boot(host)

    @property
    def store(self) -> ModelStore:
        store = self.world.backend.store
        assert isinstance(store, ModelStore)
        return store

    # Acting at an instant, on the table itself.

    def enqueue(self, *, task: str = "work", delay_s: float = 0, **fields: Any) -> UUID:
        self.numbers += 1
        fields.setdefault("max_attempts", 3)
        new = NewJob(
            job_id=job_id(self.numbers),
            task=task,
            payload=fields.pop("payload", {}),
            delay_us=round(delay_s * SECOND),
            **fields,
        )
        at_once(self.store.enqueue([new]))
        return new.job_id

    def cancel(self, job: UUID) -> CancelResult:
        return at_once(self.store.cancel([job])).results[0].result

    def steal(self, *, lease_us: int = 60 * SECOND) -> list[Lease]:
        """Claim what is free as somebody else, for ever so long."""
        request = ClaimRequest(owner="thief/0", tasks=("work",), limit=100, lookahead_us=0, lease_us=lease_us)
        return list(at_once(self.store.claim(request)).leases)

    def to(self, second: float) -> None:
        """Run until an instant."""
        self.world.kernel.run_until(round(second * SECOND))

    def stop(self, name: str = "w1") -> None:
        self.workers[name][-1].stop()

    # Looking.

    @property
    def now_s(self) -> float:
        return self.world.kernel.now_us / SECOND

    def row(self, job: UUID) -> Job:
        row = at_once(self.store.get(job))
        assert row is not None
        return row

    def events(self, *kinds: str, job: UUID | None = None) -> list[Event]:
        return [
            event
            for event in self.world.history
            if (not kinds or event.kind in kinds) and (job is None or event.job == job)
        ]

    def kinds(self, job: UUID) -> list[str]:
        """Return the kinds of a job's events, but the renewals."""
        return [event.kind for event in self.events(job=job) if event.kind != "renewed"]

    def times_s(self, kind: str, job: UUID | None = None) -> list[float]:
        return [event.time_us / SECOND for event in self.events(kind, job=job)]


@contextmanager
def opened_story(
    *,
    app: App | None = None,
    settings: WorkerSettings = SETTINGS,
    faults: Sequence[Fault] = (),
    latency: Latency | None = None,
    seed: int = 1,
    store_class: type[ModelStore] = ModelStore,
    workers: Mapping[str, int] | Sequence[str] = ("w1",),
    worker_class: type[Worker] = Worker,
    begin: Callable[[Story], None] | None = None,
) -> Iterator[Story]:
    """Open a world with workers switched on; closed, with all that is left in it, at the end.

    The network takes a millisecond each way unless said otherwise. `workers` maps names to drifts.
    """
    world = World(
        seed=seed,
        open_backend=partial(model_backend, store_class=store_class),
        faults=faults,
        latency=latency if latency is not None else Latency(1 * MS, 1 * MS),
        worker_class=worker_class,
    )
    with world.opened():
        story = Story(world, app if app is not None else working_app(), settings)
        for name in workers:
            story.worker(name, drift_ppm=workers[name] if isinstance(workers, Mapping) else 0)
        if begin is not None:
            begin(story)
        story.start()
        yield story


def working_app(*, seconds: float = 1, seen: list[Any] | None = None, max_attempts: int = 3) -> App:
    """Return an application whose one task sleeps, and tells `seen` what became of it."""
    app = App()
    told = seen if seen is not None else []

    @app.task("work", max_attempts=max_attempts)
    async def work(job: Any, **payload: Any) -> None:
        told.append(("began", job.job_id, job.attempt))
        try:
            await job.sleep(timedelta(seconds=payload.get("seconds", seconds)))
        except CancelledError:
            told.append(("cancelled", job.job_id, job.attempt))
            raise
        told.append(("ended", job.job_id, job.attempt))

    return app
