"""A run of chaos from end to end: load, acts, healing, convergence, drain, judging, and nothing left behind.

Which checks apply where nothing is simulated. All of the laboratory's checks judge the history but three:

- *retries-spread* is about jobs that fail together in one story; here they fail for a hundred reasons.
- *fence-holds* is about a resource that refuses old tokens; the outside world here deduplicates, or takes all.
- *healthy-keeps-lease* needs a machine that gives every process its turn; nobody promises that in real time.

*one-effect* judges the jobs whose handler deduplicates. What the plain ones did twice is counted and shown: that is
what at-least-once means. *never-early* and *lateness-bounded* compare this machine's clock with the database's,
which is the same clock: the server is ours, on this machine. Added here is *workers-survive*: no worker process
ends unless it was killed, or could not reach the database when it started.
"""

from __future__ import annotations

import heapq
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from scheduler.jobs import TERMINAL, Job
from scheduler.policy import WorkerSettings
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
from simlab.chaos.lateness import LatenessComparison, compare_lateness
from simlab.chaos.load import LoadClient, plan_load
from simlab.chaos.plan import Act, ActKind, plan_acts
from simlab.chaos.processes import UNREACHABLE_EXIT, Fleet, WorkerProcess, worker_dsn
from simlab.chaos.proxy import Proxy, ProxyThread
from simlab.chaos.schema import SCHEMA, chaos_schema
from simlab.chaos.story import run_now
from simlab.checks import CHECKS, CheckResult, Evidence, Verdict, judge, overall
from simlab.effects import Effect
from simlab.errors import InvalidExperiment, ServerControlError
from simlab.history import History
from simlab.hosts import EPOCH_US
from simlab.pgserver import PostgresServer, throwaway_postgres
from simlab.results import Result
from simlab.streams import Streams

__all__ = ["CHAOS_SETTINGS", "JUDGED", "ChaosResult", "run_chaos"]

CHAOS_SETTINGS = WorkerSettings(
    concurrency=8,
    prefetch=8,
    lookahead_us=1_200_000,
    poll_interval_us=200_000,
    lease_us=3_000_000,
    heartbeat_interval_us=500_000,
    request_timeout_us=250_000,
    sweep_interval_us=250_000,
    drain_timeout_us=10_000_000,
)
"""What the workers run with: a lease short enough for many of them to be lost in a minute."""

_NOT_JUDGED = frozenset({"retries-spread", "fence-holds", "healthy-keeps-lease"})

JUDGED = tuple(name for name in CHECKS if name not in _NOT_JUDGED)
"""The checks that judge a run, for the reasons above."""

JOBS_PER_SECOND = 12
"""The load where none is given: enough that something is always under way, little enough for two cores."""

MAX_MINUTES = 120.0
MAX_WORKERS = 32
MAX_JOBS = 200_000

CONVERGE_S = 60.0
"""Within what time of the healing every acknowledged job must have ended."""

LATE_AFTER_HEALING_US = 15_000_000
"""How late a job may begin, counted from the healing: what was leased has to expire first, what piled up to be run."""

AFTER_S = 2.0
"""How long the load goes on after the acts, so that some of it comes when all is well again."""

DRAIN_S = 25.0

_LOOK_S = 0.02
Progress = Callable[[float, float], None]


@dataclass(frozen=True, kw_only=True)
class ChaosResult:
    """What a run of chaos came to.

    Attributes
    ----------
    result
        The run as any other run of the laboratory: history, tables, checks, frames, pictures.
    acts
        How often each kind of act was done.
    executions, idempotent_effects, plain_effects
        How often handlers began, and how often the world was changed, with and without deduplication.
    duplicates, refused
        Changes by plain jobs beyond one a job, and those that deduplication refused.
    retried_calls
        Calls of the enqueueing client that were not answered and made again.
    converged_s
        How long after the healing the last acknowledged job had ended; None when not all had within the bound.
    lateness
        The calm run beside its prediction; None when it was left out.
    """

    result: Result
    acts: dict[str, int]
    executions: int
    idempotent_effects: int
    plain_effects: int
    duplicates: int
    refused: int
    acknowledged: int
    retried_calls: int
    lives: int
    converged_s: float | None
    lateness: LatenessComparison | None
    server: str

    @property
    def verdict(self) -> Verdict:
        """INVALID when a check says so, or the lateness is not what was predicted."""
        if self.result.verdict is Verdict.VALID and self.lateness is not None:
            return self.lateness.verdict
        return self.result.verdict

    def summary(self) -> dict[str, Any]:
        """Return what a command prints as JSON."""
        return {
            **self.result.summary(),
            "verdict": self.verdict.value,
            "acts": self.acts,
            "executions": self.executions,
            "idempotent_effects": self.idempotent_effects,
            "plain_effects": self.plain_effects,
            "duplicates": self.duplicates,
            "refused": self.refused,
            "acknowledged": self.acknowledged,
            "retried_calls": self.retried_calls,
            "worker_lives": self.lives,
            "converged_s": self.converged_s,
            "lateness": None if self.lateness is None else self.lateness.summary(),
            "server": self.server,
        }

    def story(self) -> str:
        """Return the run as lines of text; with the story of a job where a check failed."""
        acts = ", ".join(f"{count} {kind}" for kind, count in self.acts.items()) or "none"
        states = Counter(row.state.value for row in self.result.table)
        ended = (
            f"{self.converged_s:.1f} s after the healing" if self.converged_s is not None else "NOT in time"
        )
        lines = [
            f"chaos, seed {self.result.seed}: {self.verdict}, {self.result.wall_s:.0f} s of real time",
            f"  acts        {sum(self.acts.values())}: {acts}",
            f"  workers     {self.result.params['workers']}, in {self.lives} lives",
            (
                f"  jobs        {len(self.result.table):,}: "
                + ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))
            ),
            (
                f"  enqueueing  {self.acknowledged:,} acknowledged, {self.retried_calls} calls unanswered and "
                f"made again"
            ),
            f"  executions  {self.executions:,}",
            (
                f"  effects     with deduplication {self.idempotent_effects:,}, and {self.refused:,} refused as "
                f"seen before; without {self.plain_effects:,}, of them {self.duplicates:,} duplicates"
            ),
            f"  all ended   {ended}",
        ]
        lines += [
            f"  {check.verdict:<8}    {check.name}{': ' + check.says if check.says else ''}"
            for check in self.result.checks
        ]
        if self.lateness is not None:
            lines += [f"  {line}" for line in self.lateness.lines()]
        lines.append(f"  {self.server}")
        if self.result.verdict is Verdict.INVALID:
            lines += ["", self.result.story()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"<ChaosResult seed={self.result.seed}: {self.verdict}, {sum(self.acts.values())} acts, "
            f"{len(self.result.table):,} jobs, {self.duplicates} duplicates>"
        )


def run_chaos(
    minutes: float = 1.0,
    *,
    workers: int = 4,
    seed: int = 0,
    jobs: int | None = None,
    source: str | None = None,
    lateness: bool = True,
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
    progress
        Told how many seconds of how many are over.

    Raises
    ------
    InvalidExperiment
        If a size is out of bounds.
    PostgresUnavailable, ServerControlError
        If no server could be had that can be stopped and started.
    """
    count = int(60 * minutes * JOBS_PER_SECOND) if jobs is None else jobs
    _check_sizes(minutes, workers, count)
    with throwaway_postgres(source, durable=True, tcp=True) as server:
        if server.tcp_dsn is None:
            raise ServerControlError(
                f"chaos needs a server of its own, to stop and to reach over TCP; not one from {server.source!r}: "
                f"use --postgres embedded or system"
            )
        compared = compare_lateness(server, seed=seed) if lateness else None
        with tempfile.TemporaryDirectory(prefix="simlab-chaos-") as folder:
            run = _Run(server, minutes=minutes, workers=workers, seed=seed, jobs=count, folder=Path(folder))
            return run.whole(compared, progress)


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
        self, server: PostgresServer, *, minutes: float, workers: int, seed: int, jobs: int, folder: Path
    ) -> None:
        assert server.tcp_dsn is not None  # the caller has checked
        self._server = server
        self._tcp_dsn = server.tcp_dsn
        self._folder = folder
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
        self._deaths: list[str] = []
        self._writers: dict[int, str] = {}
        self._proxies: list[Proxy] = []
        self._fleet = Fleet(())
        self._start_us = 0
        self._began_us = 0

    def whole(self, lateness: LatenessComparison | None, progress: Progress | None) -> ChaosResult:
        """Run all of it."""
        began = time.monotonic()
        with ExitStack() as stack:
            dsn = stack.enter_context(chaos_schema(self._server, audited=True))
            self._fleet = self._open(stack)
            self._start_us = time.time_ns() // 1000
            self._began_us = time.monotonic_ns() // 1000
            for number in range(len(self._fleet.workers)):
                self._start_worker(number)
            client = self._client()
            stack.callback(client.give_up)
            client.start()
            self._act_until(self._acting_us, progress)
            self._heal()
            converged_s = self._converge(client, dsn)
            left = self._fleet.drain(DRAIN_S)
            self._deaths += [f"{worker.name} does not end its drain" for worker in left]
            self._look_after_ends(draining=True)
            with psycopg.connect(dsn, autocommit=True) as connection:
                story, table = self._evidence(connection, client)
        return self._judge(story, table, client, converged_s, lateness, time.monotonic() - began)

    def _open(self, stack: ExitStack) -> Fleet:
        upstream = conninfo_to_dict(self._tcp_dsn)
        network = stack.enter_context(ProxyThread())
        count = self._params["workers"]
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

    def _act_until(self, until_us: int, progress: Progress | None) -> None:
        for act in self._acts:
            heapq.heappush(self._agenda, (act.at_us, next(self._order), self._doing(act)))
        while (now_us := self._now_us()) < until_us:
            while self._agenda and self._agenda[0][0] <= now_us:
                heapq.heappop(self._agenda)[2]()
            self._look_after_ends()
            if progress is not None:
                progress(now_us / 1e6, until_us / 1e6)
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

    def _kill(self, act: Act) -> bool:
        worker = self._fleet.workers[act.worker]
        if not worker.alive:
            return False
        self._note(worker.name, "crash", incarnation=worker.incarnation)
        worker.kill()
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
            if code is None or (draining and code == 0):
                continue
            if code == UNREACHABLE_EXIT and not draining:
                worker.unreachable_starts += 1
                self._start_worker(number)
            elif code != -9 and (code != UNREACHABLE_EXIT or draining):
                self._deaths.append(
                    f"{worker.name}.{worker.incarnation} ended with {code}: {worker.last_words()}"
                )
                if not draining:
                    self._note(worker.name, "crash", incarnation=worker.incarnation)
                    self._start_worker(number)

    # The end.

    def _heal(self) -> None:
        """Undo everything that is under way: the liveness phase begins."""
        self._agenda.clear()
        if not self._server.running:
            self._server.start()
        for proxy in self._proxies:
            proxy.heal()
        for number, worker in enumerate(self._fleet.workers):
            self._wake(worker)
            self._start_worker(number)
        self._note("database", "everything is healed")

    def _converge(self, client: LoadClient, dsn: str) -> float | None:
        """Wait until every acknowledged job has ended; say how long it took, None when the time was over."""
        began = time.monotonic()
        query = "SELECT count(*) FROM scheduler_jobs WHERE state <> ALL (%s)"
        ended = [state.value for state in TERMINAL]
        with psycopg.connect(dsn, autocommit=True) as connection:
            while time.monotonic() - began < CONVERGE_S + AFTER_S:
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

    def _judge(
        self,
        story: Story,
        table: Sequence[Job],
        client: LoadClient,
        converged_s: float | None,
        lateness: LatenessComparison | None,
        wall_s: float,
    ) -> ChaosResult:
        history = build_history(story)
        rows = [rebased(job, self._start_us) for job in sorted(table, key=lambda job: job.job_id)]
        effects = [_rebased_effect(effect, self._start_us) for _, effect in story.effects]
        checks = [*judge_real(history, rows, effects), _workers_survive(self._deaths)]
        deduplicated = {row.job_id for row in rows if row.payload.get("idempotent")}
        plain = Counter(effect.job_id for effect in effects if effect.job_id not in deduplicated)
        result = Result(
            scenario="chaos",
            seed=self._seed,
            variant=None,
            store="real",
            params=self._params,
            faults=(),
            lease_us=CHAOS_SETTINGS.lease_us,
            checks=tuple(checks),
            verdict=overall(checks),
            history=history,
            table=tuple(rows),
            effects=tuple(effects),
            virtual_s=max((event.time_us for event in history), default=0) / 1e6,
            wall_s=wall_s,
        )
        return ChaosResult(
            result=result,
            acts={kind.value: self._counts[kind.value] for kind in ActKind if self._counts[kind.value]},
            executions=sum(line.kind == "executing" for line in story.journal),
            idempotent_effects=sum(effect.job_id in deduplicated for effect in effects),
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


def judge_real(history: History, table: Sequence[Job], effects: Sequence[Effect]) -> list[CheckResult]:
    """Judge a history of real processes by the simulation's checks, as far as they apply."""
    whole = Evidence(
        history, table, effects, settings=CHAOS_SETTINGS, lateness_bound_us=LATE_AFTER_HEALING_US
    )
    # Only a job whose handler deduplicates is promised one effect.
    promised = [row for row in table if row.payload.get("idempotent")]
    ids = {row.job_id for row in promised}
    deduplicated = Evidence(
        history, promised, [effect for effect in effects if effect.job_id in ids], settings=CHAOS_SETTINGS
    )
    return [judge(deduplicated if name == "one-effect" else whole, [name])[0] for name in JUDGED]


def _workers_survive(deaths: Sequence[str]) -> CheckResult:
    return CheckResult(
        name="workers-survive",
        verdict=Verdict.INVALID if deaths else Verdict.VALID,
        says=f"{len(deaths)} deaths that nobody caused: {deaths[0]}" if deaths else "",
    )


def _rebased_effect(effect: Effect, start_us: int) -> Effect:
    return Effect(
        job_id=effect.job_id,
        token=effect.token,
        host=effect.host,
        at_us=effect.at_us - start_us + EPOCH_US,
    )
