"""A run of chaos from end to end: load, acts, healing, convergence, drain, and nothing left behind.

What it leaves is evidence, saved before anybody judges it; what it comes to is for :mod:`simlab.chaos.judging`.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from scheduler.jobs import TERMINAL, Job
from scheduler.postgres import ConnectionDatabase, PostgresStore
from simlab.chaos.audit import (
    CLIENT,
    Incident,
    Story,
    build_history,
    read_audit,
    read_effects,
    read_journals,
    rebased,
)
from simlab.chaos.judging import CHAOS_SETTINGS, CONVERGE_S, DIED, judge_again
from simlab.chaos.lateness import LatenessComparison, compare_lateness
from simlab.chaos.load import LoadClient, plan_load
from simlab.chaos.mistakes import mistakes, write_statements
from simlab.chaos.plan import Act, ActKind, plan_acts
from simlab.chaos.processes import UNREACHABLE_EXIT, Fleet, WorkerProcess, worker_dsn
from simlab.chaos.proxy import Proxy, ProxyThread
from simlab.chaos.result import ChaosResult
from simlab.chaos.schema import SCHEMA, chaos_schema
from simlab.chaos.starvation import StarvationWatch
from simlab.chaos.story import run_now
from simlab.checks import Verdict
from simlab.effects import Effect
from simlab.errors import InvalidExperiment, ServerControlError, UnknownScenario
from simlab.hosts import EPOCH_US
from simlab.pgserver import PostgresServer, throwaway_postgres
from simlab.results import Result, made_folder
from simlab.streams import Streams

__all__ = ["Progress", "run_chaos"]

JOBS_PER_SECOND = 12
"""The load where none is given: enough that something is always under way, little enough for two cores."""

MAX_MINUTES = 120.0
"""Longer runs make histories that nobody can read."""

MAX_WORKERS = 32
MAX_JOBS = 200_000

BEGIN_S = 20.0
"""How long the workers may take to begin before the acts do."""

AFTER_S = 2.0
"""How long the load goes on after the acts, so that some of it comes when all is well again."""

DRAIN_S = 25.0
"""How long the workers may take to end when they are asked to; their own limit is 10 s."""

_LOOK_S = 0.02

Progress = Callable[[str, float], None]
"""Told which part of a run is under way, and what share of it is over."""


def run_chaos(
    minutes: float = 1.0,
    *,
    workers: int = 4,
    seed: int = 0,
    jobs: int | None = None,
    source: str | None = None,
    lateness: bool = True,
    mistake: str | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> ChaosResult:
    """Let real workers run jobs while everything is done to them, and judge what came of it.

    Parameters
    ----------
    minutes
        How long the acts go on. Healing, convergence and drain come after it.
    seed
        Decides the acts and the load. What comes of them is for the machine to say: real time has no seed.
    jobs
        How many jobs; by default `JOBS_PER_SECOND`.
    source
        Where PostgreSQL comes from, as :func:`~simlab.pgserver.throwaway_postgres` has it.
    lateness
        Whether a calm run is measured first, and compared with the simulation.
    mistake
        A famous mistake that every worker makes, of those :func:`~simlab.chaos.mistakes.mistakes` knows.
    out
        A folder to save the run in, made if need be: the evidence before it is judged, and all when it is.
    progress
        Told how the run goes on.

    Raises
    ------
    InvalidExperiment
        If a size is out of bounds, or `out` cannot be made.
    UnknownScenario
        If there is no such mistake.
    PostgresUnavailable, ServerControlError
        If no server could be had that can be stopped and started.
    """
    count = max(1, int(60 * minutes * JOBS_PER_SECOND)) if jobs is None and minutes > 0 else jobs or 0
    _check_sizes(minutes, workers, count)
    if mistake is not None and mistake not in mistakes():
        raise UnknownScenario("mistake of real workers", mistake, mistakes())
    tell = progress if progress is not None else _tell_nobody
    tell("starting PostgreSQL", 0.0)
    with throwaway_postgres(source, durable=True, tcp=True) as server, _quiet_pool():
        if server.tcp_dsn is None:
            raise ServerControlError(
                f"chaos needs a server of its own, to stop and to reach over TCP; not one from {server.source!r}: "
                f"use --postgres embedded or system"
            )
        # Not before: a mistake in the call leaves nothing behind.
        kept = None if out is None else made_folder(out)
        compared = None
        if lateness:
            tell("a calm run, for its lateness", 0.0)
            compared = compare_lateness(server, seed=seed)
        with tempfile.TemporaryDirectory(prefix="simlab-chaos-") as folder:
            run = _Run(
                server,
                minutes=minutes,
                workers=workers,
                seed=seed,
                jobs=count,
                mistake=mistake,
                folder=Path(folder),
            )
            return run.whole(compared, tell, kept)


def _tell_nobody(what: str, share: float) -> None:
    """Show no progress."""


@contextmanager
def _quiet_pool() -> Iterator[None]:
    """Keep the client's connection pool from warning of connections that were lost on purpose."""
    logger = logging.getLogger("psycopg.pool")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _check_sizes(minutes: float, workers: int, jobs: int) -> None:
    if not 0 < minutes <= MAX_MINUTES:
        raise InvalidExperiment(f"minutes={minutes!r}: more than 0, at most {MAX_MINUTES:g}")
    if not 1 <= workers <= MAX_WORKERS:
        raise InvalidExperiment(f"workers={workers!r}: from 1 to {MAX_WORKERS}")
    if not 1 <= jobs <= MAX_JOBS:
        raise InvalidExperiment(f"jobs={jobs!r}: from 1 to {MAX_JOBS:,}")


class _Run:
    """One run: what is under way, and what is to be done next."""

    def __init__(
        self,
        server: PostgresServer,
        *,
        minutes: float,
        workers: int,
        seed: int,
        jobs: int,
        mistake: str | None,
        folder: Path,
    ) -> None:
        assert server.tcp_dsn is not None  # the caller has checked
        self._server = server
        self._tcp_dsn = server.tcp_dsn
        self._folder = folder
        self._mistake = mistake
        self._seed = seed
        self._params = {"workers": workers, "jobs": jobs, "seconds": round(60 * minutes)}
        self._acting_us = int(60e6 * minutes)
        self._acts = plan_acts(
            seed=seed, workers=workers, until_us=self._acting_us, lease_us=CHAOS_SETTINGS.lease_us
        )
        self._load = plan_load(seed=seed, jobs=jobs, until_us=self._acting_us + int(AFTER_S * 1e6))
        self._chance = Streams(seed).stream("chaos/targets")
        self._incidents: list[Incident] = []
        self._counts: Counter[str] = Counter()
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._busy: set[int] = set()
        self._writers: dict[int, str] = {}
        self._proxies: list[Proxy] = []
        self._fleet = Fleet(())
        self._start_us = 0
        self._began_us = 0

    def whole(self, lateness: LatenessComparison | None, tell: Progress, out: Path | None) -> ChaosResult:
        """Run all of it."""
        began = time.monotonic()
        with ExitStack() as stack:
            dsn = stack.enter_context(chaos_schema(self._server, audited=True))
            self._fleet = self._open(stack)
            watch = stack.enter_context(StarvationWatch())
            tell("the workers start", 0.0)
            self._start_us = time.time_ns() // 1000
            self._start_workers()
            self._began_us = time.monotonic_ns() // 1000
            client = self._client()
            stack.callback(client.give_up)
            client.start()
            self._act_until(self._acting_us, client, tell)
            self._heal()
            converged_s = self._converge(client, dsn, tell)
            tell("draining", 0.0)
            for worker in self._fleet.drain(DRAIN_S):
                self._note(worker.name, f"{DIED}its drain does not end", incarnation=worker.incarnation)
            self._look_after_ends(draining=True)
            with psycopg.connect(dsn, autocommit=True) as connection:
                story, table = self._evidence(connection, client)
        self._params["turn_late_ms"] = round(watch.longest_ms)
        self._params["slowdown_percent"] = round(100 * watch.slowdown)
        self._params["converged_ms"] = -1 if converged_s is None else int(1000 * converged_s)
        tell("judging", 0.0)
        evidence = self._unjudged(story, table, time.monotonic() - began)
        if out is not None:
            evidence.save(out)
        chaos = self._counted(judge_again(evidence), story, client, converged_s, lateness)
        if out is not None:
            chaos.save(out)
        return chaos

    def _open(self, stack: ExitStack) -> Fleet:
        upstream = conninfo_to_dict(self._tcp_dsn)
        network = stack.enter_context(ProxyThread())
        count = self._params["workers"]
        statements = None
        if self._mistake is not None:
            statements = self._folder / "statements.json"
            write_statements(self._mistake, statements)
        self._proxies = [
            network.open(str(upstream["host"]), int(upstream["port"] or 0)) for _ in range(count + 1)
        ]
        return stack.enter_context(
            Fleet(
                [
                    WorkerProcess(
                        f"w{number + 1}",
                        dsn=make_conninfo(self._tcp_dsn, port=self._proxies[number].port),
                        outside_dsn=self._server.dsn,
                        schema=SCHEMA,
                        settings=CHAOS_SETTINGS,
                        folder=self._folder,
                        statements=statements,
                    )
                    for number in range(count)
                ]
            )
        )

    def _client(self) -> LoadClient:
        dsn = make_conninfo(self._tcp_dsn, port=self._proxies[-1].port)
        return LoadClient(worker_dsn(dsn, writer=CLIENT, schema=SCHEMA), self._load, seed=self._seed)

    # What is done when.

    def _now_us(self) -> int:
        return time.monotonic_ns() // 1000 - self._began_us

    def _after(self, duration_us: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self._now_us() + duration_us, next(self._order), act))

    def _note(self, host: str, detail: str, *, incarnation: int = 0, for_us: int | None = None) -> None:
        self._incidents.append(
            Incident(
                at_us=time.time_ns() // 1000,
                host=host,
                incarnation=incarnation,
                detail=detail,
                for_us=for_us,
            )
        )

    def _act_until(self, until_us: int, client: LoadClient, tell: Progress) -> None:
        for act in self._acts:
            heapq.heappush(self._agenda, (act.at_us, next(self._order), self._doing(act)))
        while (now_us := self._now_us()) < until_us:
            while self._agenda and self._agenda[0][0] <= now_us:
                heapq.heappop(self._agenda)[2]()
            self._look_after_ends()
            client.look()
            tell("chaos", now_us / until_us)
            time.sleep(_LOOK_S)

    def _doing(self, act: Act) -> Callable[[], None]:
        do: dict[ActKind, Callable[[Act], bool]] = {
            ActKind.KILL: self._kill,
            ActKind.STOP: self._stop,
            ActKind.TERMINATE: self._terminate,
            ActKind.RESTART: self._restart,
        }

        def run() -> None:
            if do.get(act.kind, self._spoil_network)(act):
                self._counts[act.kind.value] += 1

        return run

    def _start_workers(self) -> None:
        """Start them all, and give them time to begin: what strikes a process that still starts teaches little."""
        for number in range(len(self._fleet.workers)):
            self._start_worker(number)
        deadline = time.monotonic() + BEGIN_S
        while not all(worker.has_begun for worker in self._fleet.workers) and time.monotonic() < deadline:
            self._look_after_ends()
            time.sleep(_LOOK_S)

    def _kill(self, act: Act) -> bool:
        worker = self._fleet.workers[act.worker]
        if not worker.alive:
            return False
        self._note(worker.name, "crash", incarnation=worker.incarnation)
        worker.kill()
        worker.wait()
        self._after(act.for_us, lambda: self._start_worker(act.worker))
        return True

    def _start_worker(self, number: int) -> None:
        worker = self._fleet.workers[number]
        if worker.alive:
            return
        worker.start()
        self._writers[worker.pid] = f"{worker.name}.{worker.incarnation}"
        if worker.incarnation:
            self._note(worker.name, "restart", incarnation=worker.incarnation)

    def _stop(self, act: Act) -> bool:
        worker = self._fleet.workers[act.worker]
        if not worker.alive or worker.stopped:
            return False
        worker.stop()
        self._note(worker.name, "pause", incarnation=worker.incarnation)
        incarnation = worker.incarnation

        def wake() -> None:
            if worker.alive and worker.incarnation == incarnation:
                self._wake(worker)

        self._after(act.for_us, wake)
        return True

    def _wake(self, worker: WorkerProcess) -> None:
        if worker.stopped:
            worker.go_on()
            self._note(worker.name, "resume", incarnation=worker.incarnation)

    def _terminate(self, act: Act) -> bool:
        with psycopg.connect(self._server.dsn, autocommit=True) as connection:
            rows = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'scheduler' ORDER BY pid"
            ).fetchall()
            chosen = [pid for (pid,) in rows if self._chance.randrange(100) < act.amount]
            connection.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [chosen])
        self._note("database", f"{len(chosen)} of {len(rows)} connections are terminated", for_us=0)
        return bool(chosen)

    def _restart(self, act: Act) -> bool:
        self._note("database", "an immediate stop")
        self._server.stop("immediate")
        time.sleep(act.for_us / 1e6)
        self._server.start()
        self._note("database", "runs again")
        return True

    def _spoil_network(self, act: Act) -> bool:
        if act.worker in self._busy:
            return False
        self._busy.add(act.worker)
        proxy = self._proxies[act.worker]
        if act.kind is ActKind.DELAY:
            proxy.set_delay(act.amount / 1e6)
        elif act.kind is ActKind.CUT:
            proxy.cut(and_refuse=True)
        elif act.kind is ActKind.SILENCE:
            proxy.fall_silent()
        else:
            proxy.swallow_replies()
        who = (
            self._fleet.workers[act.worker].name if act.worker < len(self._fleet.workers) else CLIENT
        )  # The last proxy is the client's.
        detail = f"{act.kind} by {act.amount / 1000:g} ms" if act.amount else str(act.kind)
        self._note(who, f"its network: {detail}", for_us=act.for_us)

        def heal() -> None:
            proxy.heal()
            self._busy.discard(act.worker)

        self._after(act.for_us, heal)
        return True

    def _look_after_ends(self, *, draining: bool = False) -> None:
        """Be the supervisor: start again what ended, and remember what ended for no reason of ours."""
        for number, worker in enumerate(self._fleet.workers):
            code = worker.exit_code
            # A signal that comes before Python listens to any ends a process that has not begun.
            unbegun = code == -signal.SIGTERM and not worker.has_begun
            if code is None or worker.killed or (draining and (code == 0 or unbegun)):
                continue
            if code == UNREACHABLE_EXIT and not draining:
                self._start_worker(number)
                continue
            # Told apart from what we did, and a crash to the checks like any other: its handlers ended with it.
            words = " ".join(worker.last_words().split())
            self._note(worker.name, f"{DIED}exit {code}: {words}", incarnation=worker.incarnation)
            self._note(worker.name, "crash", incarnation=worker.incarnation)
            if not draining:
                self._start_worker(number)

    # The end.

    def _heal(self) -> None:
        """Undo everything that is under way: the liveness phase begins."""
        self._agenda.clear()
        now_us = time.time_ns() // 1000
        # What was meant to last for longer is over now.
        self._incidents = [
            replace(one, for_us=None if one.for_us is None else min(one.for_us, now_us - one.at_us))
            for one in self._incidents
        ]
        if not self._server.running:
            self._server.start()
        for proxy in self._proxies:
            proxy.heal()
        for number, worker in enumerate(self._fleet.workers):
            self._wake(worker)
            self._start_worker(number)
        self._note("database", "everything is healed")

    def _converge(self, client: LoadClient, dsn: str, tell: Progress) -> float | None:
        """Wait until every acknowledged job has ended; say how long it took, None when the time was over."""
        began = time.monotonic()
        query = "SELECT count(*) FROM scheduler_jobs WHERE state <> ALL (%s)"
        ended = [state.value for state in TERMINAL]
        with psycopg.connect(dsn, autocommit=True) as connection:
            while (waited_s := time.monotonic() - began) < CONVERGE_S + AFTER_S:
                tell("healed: all must end", waited_s / (CONVERGE_S + AFTER_S))
                row = connection.execute(query, [ended]).fetchone()
                if client.done and row == (0,):
                    return time.monotonic() - began
                self._look_after_ends()
                time.sleep(5 * _LOOK_S)
        client.give_up()
        return None

    def _evidence(self, connection: psycopg.Connection[Any], client: LoadClient) -> tuple[Story, list[Job]]:
        store = PostgresStore(ConnectionDatabase(connection))
        table = run_now(store.list_jobs(limit=2 * MAX_JOBS))
        story = Story(
            start_us=self._start_us,
            audit=read_audit(connection),
            journal=read_journals(self._folder),
            incidents=self._incidents,
            effects=read_effects(connection, self._writers),
            acknowledged=client.acknowledged,
        )
        return story, table

    def _unjudged(self, story: Story, table: Sequence[Job], wall_s: float) -> Result:
        history = build_history(story)
        return Result(
            scenario="chaos",
            seed=self._seed,
            variant=self._mistake,
            store="real",
            params=self._params,
            faults=(),
            lease_us=CHAOS_SETTINGS.lease_us,
            checks=(),
            verdict=Verdict.UNKNOWN,
            history=history,
            table=tuple(rebased(job, self._start_us) for job in sorted(table, key=lambda job: job.job_id)),
            effects=tuple(_rebased_effect(effect, self._start_us) for _, effect in story.effects),
            virtual_s=max((event.time_us for event in history), default=0) / 1e6,
            wall_s=wall_s,
        )

    def _counted(
        self,
        result: Result,
        story: Story,
        client: LoadClient,
        converged_s: float | None,
        lateness: LatenessComparison | None,
    ) -> ChaosResult:
        deduplicated = {row.job_id for row in result.table if row.payload.get("idempotent")}
        plain = Counter(effect.job_id for effect in result.effects if effect.job_id not in deduplicated)
        return ChaosResult(
            result=result,
            acts={kind.value: self._counts[kind.value] for kind in ActKind if self._counts[kind.value]},
            executions=sum(line.kind == "executing" for line in story.journal),
            idempotent_effects=sum(effect.job_id in deduplicated for effect in result.effects),
            plain_effects=plain.total(),
            duplicates=sum(count - 1 for count in plain.values()),
            refused=sum(line.kind == "duplicate" for line in story.journal),
            acknowledged=len(client.acknowledged),
            retried_calls=client.retries,
            lives=sum(worker.incarnation + 1 for worker in self._fleet.workers),
            converged_s=converged_s,
            lateness=lateness,
            server=self._server.why,
        )


def _rebased_effect(effect: Effect, start_us: int) -> Effect:
    return Effect(
        job_id=effect.job_id,
        token=effect.token,
        host=effect.host,
        at_us=effect.at_us - start_us + EPOCH_US,
    )
