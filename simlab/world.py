"""The world: one run's kernel, hosts, network, store, outside world and history, wired together.

The order of making is fixed and everything random comes from named streams, so that a seed makes the same
world wherever it runs. The world knows how to run; what happens in it is the scenario's business.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from scheduler.app import App, Client
from scheduler.jobs import Job
from scheduler.policy import WorkerSettings
from scheduler.pool import RunningJob
from scheduler.store import Store
from scheduler.worker import Worker
from simlab.clock import SimTask
from simlab.effects import Effect, EffectMode, Effects, ModelEffects
from simlab.faults import Fault, check_hosts
from simlab.history import History
from simlab.hosts import EPOCH_US, Host, Incarnation
from simlab.injector import Injector
from simlab.kernel import DecidedKernel, Kernel
from simlab.locks import LockTable, RowLocks
from simlab.network import Conditions, Latency, Network, NetworkStore
from simlab.recorder import Recorder
from simlab.store import ModelStore
from simlab.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Backend", "DatabaseClock", "OpenBackend", "World", "model_backend"]

REQUEST_TIMEOUT_US = WorkerSettings().request_timeout_us


class DatabaseClock:
    """The database's clock: virtual time, as a date, and stepped when a fault says so."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._stepped_us = 0

    def now_us(self) -> int:
        """Return microseconds since the Unix epoch."""
        return EPOCH_US + self._kernel.now_us + self._stepped_us

    def step(self, by_us: int) -> None:
        """Step the clock, forwards or back."""
        self._stepped_us += by_us


class Backend(Protocol):
    """What the world runs on: a store and an outside world, and the final look at both."""

    @property
    def store(self) -> Store: ...

    @property
    def effects(self) -> Effects: ...

    def table(self) -> list[Job]:
        """Return every row of the jobs table, ordered by identity."""

    def lock(self, job_ids: Sequence[UUID]) -> None:
        """Let an open transaction of somebody else's take rows."""

    def unlock(self) -> None:
        """End that transaction."""


@dataclass(frozen=True, slots=True)
class _ModelBackend:
    store: Store
    model: ModelStore
    effects: ModelEffects
    locks: LockTable

    def table(self) -> list[Job]:
        return self.model.table()

    def lock(self, job_ids: Sequence[UUID]) -> None:
        # Only rows that are there can be locked.
        self.locks.lock(job_id for job_id in job_ids if self.model.knows(job_id))

    def unlock(self) -> None:
        self.locks.unlock()


def model_backend(
    clock: DatabaseClock,
    locks: LockTable,
    *,
    store_class: type[ModelStore] = ModelStore,
    wrap: Callable[[Store, RowLocks], Store] | None = None,
) -> AbstractContextManager[Backend]:
    """Return the in-memory backend."""
    model = store_class(clock.now_us, locks=locks)
    store = model if wrap is None else wrap(model, locks)
    return nullcontext(_ModelBackend(store, model, ModelEffects(clock.now_us), locks))


OpenBackend = Callable[[DatabaseClock, LockTable], AbstractContextManager[Backend]]
"""Opens a backend, given the database's clock and the table of other transactions' row locks."""


class World:
    """A world to run a scenario in.

    Parameters
    ----------
    seed
        Decides everything that is random.
    open_backend
        Opens the store, given the database's clock.
    worker_class
        The worker to run; a naive one in a naive variant.
    effect_mode
        What the outside world checks.
    decisions
        Orders what is due at the same instant; empty means in the order of scheduling.
    """

    def __init__(
        self,
        *,
        seed: int,
        open_backend: OpenBackend,
        faults: Sequence[Fault] = (),
        decisions: Sequence[int] = (),
        latency: Latency | None = None,
        worker_class: type[Worker] = Worker,
        effect_mode: EffectMode = EffectMode.IDEMPOTENT,
    ) -> None:
        self.kernel = DecidedKernel(decisions) if decisions else Kernel()
        self.streams = Streams(seed)
        self.history = History()
        self.database_clock = DatabaseClock(self.kernel)
        self.recorder = Recorder(
            self.history, time_us=lambda: self.kernel.now_us, db_us=self.database_clock.now_us
        )
        self.hosts: dict[str, Host] = {}
        self.workers: list[Worker] = []
        self._faults = tuple(faults)
        self._open_backend = open_backend
        self._worker_class = worker_class
        self._effect_mode = effect_mode
        self._later: dict[str, int] = {}
        self._running: dict[Incarnation, tuple[Worker, SimTask]] = {}
        self._boots: dict[str, Callable[[Incarnation], None]] = {}
        self.database_host = Host("database", kernel=self.kernel, streams=self.streams)
        self.conditions = Conditions()
        self._locks = LockTable(self.kernel, statement_timeout_us=REQUEST_TIMEOUT_US)
        self.injector = Injector(self._faults, world=self)
        self._network = Network(
            streams=self.streams,
            far=self.database_host,
            latency=latency if latency is not None else Latency(),
            decide=self.injector.decide,
            conditions=self.conditions,
        )
        self._backend: Backend | None = None

    # What a scenario builds with.

    def add_host(
        self,
        name: str,
        boot: Callable[[Incarnation], None],
        *,
        wall_offset_us: int = 0,
        drift_ppm: int = 0,
        starts_at_us: int = 0,
    ) -> Host:
        """Add a machine; `boot` starts what runs on it, at an instant of the story and after every restart."""
        host = Host(
            name, kernel=self.kernel, streams=self.streams, wall_offset_us=wall_offset_us, drift_ppm=drift_ppm
        )
        self.hosts[name] = host
        self._boots[name] = boot
        if starts_at_us:
            self._later[name] = starts_at_us
        return host

    def start_worker(self, life: Incarnation, app: App, settings: WorkerSettings) -> Worker:
        """Start a scheduler's worker, unmodified, on one life of a host."""
        worker = self._worker_class(
            app,
            store=self.store_for(life, timeout_us=settings.request_timeout_us),
            clock=life.host.clock,
            name=life.host.name,
            settings=settings,
            failpoint=self.injector.failpoint(life),
            observe=self.recorder.observer(life),
        )
        self.workers.append(worker)
        self._running[life] = worker, self.spawn(life, worker.run(), f"{life.host.name} worker")
        return worker

    def stop_worker(self, name: str, *, at_us: int, replace_after_us: int | None = None) -> None:
        """Ask the worker of a host to stop, at an instant of the story: an operator's act, not a fault.

        Parameters
        ----------
        replace_after_us
            How long after the end of its drain a new worker starts on the host, in a new incarnation, which is
            how a deployment goes; by default none does.
        """
        self.kernel.after(at_us, lambda: self._stop(self.hosts[name], replace_after_us))

    def _stop(self, host: Host, replace_after_us: int | None) -> None:
        life = host.life
        if not life.alive or life not in self._running:
            return
        worker, run = self._running[life]
        self.recorder.stopping(life)
        worker.stop()
        if replace_after_us is not None and run.process.callbacks is not None:
            run.process.callbacks.append(lambda _: self._renew(host, life, replace_after_us))

    def _renew(self, host: Host, life: Incarnation, after_us: int) -> None:
        def renew() -> None:
            if not life.alive:
                return
            # Its worker has ended, so that switching the machine off cuts nothing short.
            host.crash()
            host.restart()
            self.boot(host)

        self.kernel.after(after_us, renew)

    def spawn(self, life: Incarnation, coroutine: Coroutine[Any, Any, None], name: str) -> SimTask:
        """Run a coroutine on a host; if it breaks, so does the run."""
        task = life.host.clock.spawn(coroutine, name)

        def ended(_: object) -> None:
            error = task.error()
            if isinstance(error, Exception):
                self.kernel.fail(error)

        assert task.process.callbacks is not None  # it has only just been made
        task.process.callbacks.append(ended)
        return task

    def store_for(self, life: Incarnation, *, timeout_us: int = REQUEST_TIMEOUT_US) -> NetworkStore:
        """Return the store as one life of a host sees it."""
        return NetworkStore(
            self.backend.store,
            network=self._network,
            life=life,
            recorder=self.recorder,
            timeout_us=timeout_us,
        )

    def client(self, life: Incarnation, app: App) -> Client:
        """Return a client on a host; identities of jobs come from a stream of their own."""
        rng = self.streams.stream(f"identities/{life.host.name}/{life.number}")
        return Client(app, self.store_for(life), rng=rng)

    async def work(self, life: Incarnation, job: RunningJob, *, n: int, service_us: int) -> None:
        """Be the handler of job number `n`: work for a while, change the world once, suffer the plan's faults.

        The first half of the work comes before the change of the world and the second after it, so that a
        handler can be stopped on either side of it.
        """
        await self.injector.handler(life, n=n, attempt=job.attempt)
        first_us = service_us // 2
        extra_us = self.injector.overrun_us(n=n, attempt=job.attempt)
        await job.sleep(timedelta(microseconds=first_us + extra_us))
        await self.effect(life, job)
        await job.sleep(timedelta(microseconds=service_us - first_us))

    async def effect(self, life: Incarnation, job: RunningJob) -> None:
        """Change the outside world for a job, through the network."""
        backend, mode, host = self.backend, self._effect_mode, life.host.name

        async def serve() -> None:
            now_us, new = await backend.effects.apply(job.job_id, token=job.token, host=host, mode=mode)
            self.recorder.effect(
                life, db_us=now_us, job=job.job_id, token=job.token, attempt=job.attempt, new=new
            )

        await self._network.call(life, "effect", serve, timeout_us=REQUEST_TIMEOUT_US)

    @property
    def backend(self) -> Backend:
        assert self._backend is not None, "the world is not open"
        return self._backend

    # Running.

    @contextmanager
    def opened(self) -> Iterator[World]:
        """Open the store; on leaving, close it and dispose of every coroutine that is left."""
        with self._open_backend(self.database_clock, self._locks) as backend:
            self._backend = backend
            try:
                yield self
            finally:
                self._bury()
                self._backend = None

    def run(
        self,
        *,
        until_us: int,
        drain_us: int,
        progress: Callable[[int], None] | None = None,
        settled: Callable[[World], bool] | None = None,
    ) -> None:
        """Boot every host, run until an instant, then ask all workers to stop and give them time to drain.

        Parameters
        ----------
        progress
            Called with the virtual time in microseconds, about a hundred times.
        settled
            Asked as often; the drain begins as soon as it says that the story is over.
        """
        check_hosts(self._faults, list(self.hosts))
        for host in self.hosts.values():
            self.injector.arm(host)
        self.injector.arm_store()
        for host in self.hosts.values():
            self._first_boot(host)
        for part in range(1, 101):
            self.kernel.run_until(until_us * part // 100)
            if progress is not None:
                progress(self.kernel.now_us)
            if settled is not None and settled(self):
                break
        for worker in self.workers:
            worker.stop()
        self.kernel.run_until(self.kernel.now_us + drain_us)

    def _first_boot(self, host: Host) -> None:
        life = host.life
        if host.name not in self._later:
            self.boot(host)
        else:
            # Unless a power cut came first: then it has been booted after that.
            self.kernel.after(self._later[host.name], lambda: self.boot(host) if life.alive else None)

    def boot(self, host: Host) -> None:
        """Start what runs on a host."""
        self._boots[host.name](host.life)

    def _bury(self) -> None:
        # What still runs will never run again. Closing a coroutine runs its `finally`; the hosts are made
        # dead first, so that whatever it says there is refused by the recorder.
        hosts = [*self.hosts.values(), self.database_host]
        lives = [life for host in hosts for life in host.lives]
        for life in lives:
            life.alive = False
        for life in lives:
            # One at a time: a clean-up may spawn another, which never begins and is disposed of in its turn.
            while life.tasks:
                next(iter(life.tasks)).close()

    def holds_jobs(self, host: Host) -> bool:
        """Say whether the worker that runs on a host now holds any job."""
        running = self._running.get(host.life)
        return running is not None and len(running[0].held) > 0

    # The end.

    def table(self) -> list[Job]:
        """Return the final rows of the jobs table, ordered by identity."""
        return self.backend.table()

    def effects(self) -> list[Effect]:
        """Return the changes made to the outside world, in order."""
        return self.backend.effects.table()
