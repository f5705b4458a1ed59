"""Lateness in real time, laid over what the simulation predicts for the same load.

A calm run: nobody is killed and no network fails. Real workers run jobs with given run times and service times, and
how late each began is compared with a simulation of the same workers, settings and jobs, whose network takes as long
as the real connection was measured to take. The load comes in bursts, so that jobs wait for one another: then the
distribution is decided by the scheduler, by what it claims and when it starts what. What is left to the machine, the
few milliseconds that an operating system takes to wake a process, is below the resolution of the comparison.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import psycopg
from psycopg import sql

from scheduler.app import App, Client, JobRequest
from scheduler.jobs import TERMINAL
from scheduler.policy import WorkerSettings
from scheduler.pool import RunningJob
from scheduler.postgres import ConnectionDatabase, PostgresStore
from simlab.chaos.audit import read_journals
from simlab.chaos.processes import Fleet, WorkerProcess
from simlab.chaos.schema import SCHEMA, chaos_schema
from simlab.chaos.starvation import StarvationWatch
from simlab.chaos.story import StoryFailed, run_now
from simlab.chaos_app import chaos
from simlab.checks import Verdict
from simlab.frames import lateness_frame
from simlab.hosts import Incarnation
from simlab.network import Latency
from simlab.pgserver import PostgresServer
from simlab.scenarios.common import SECOND_US
from simlab.streams import Streams
from simlab.world import World, model_backend

__all__ = ["CALM_SETTINGS", "LatenessComparison", "compare_lateness", "ks_distance", "predict_lateness_ms"]

Milliseconds = npt.NDArray[np.float64]

CALM_SETTINGS = WorkerSettings(
    concurrency=3,
    prefetch=3,
    lookahead_us=1_200_000,
    poll_interval_us=200_000,
    lease_us=30_000_000,
    heartbeat_interval_us=5_000_000,
    request_timeout_us=2_000_000,
    sweep_interval_us=2_000_000,
)

WORKERS = 2
BURST = 26
BURST_US = 100_000
SERVICE_US = (50_000, 250_000)
"""Every second 26 jobs of 0.15 s come due within 0.1 s, on 6 slots: two thirds of the time a slot is busy."""

WARM_UP_US = 1_500_000
"""The first job is due so long after all are enqueued."""

MEASURE_S = 10.0
PREDICTIONS = 5
"""Simulated with so many seeds: what is predicted is a distribution, not one of its samples."""

RESOLUTION_MS = 10.0
"""Lateness is compared in steps of so much: as fine as a machine with other things to do keeps its promises."""

DISTANCE_TOLERANCE = 0.15
"""The largest distance of the two distribution functions that counts as the same.

Simulations of one load with several seeds come within 0.07 of what they come to together; so does a quiet machine.
"""

QUANTILE_TOLERANCE_MS = 40.0
"""How far apart the medians may be: less than the mean time for which a job keeps its slot, by a factor of almost 4."""

TRIES = 2
"""A machine that is busy with something else is late for reasons no simulation knows: the best of so many runs."""

MAX_SLOWDOWN = 1.5
"""On a machine of which the calm run has most, work takes less than so many times as long as on an idle one."""

PROBES = 100
PATIENCE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class LatenessComparison:
    """Two samples of lateness in milliseconds, and how far apart they are.

    Attributes
    ----------
    tolerance, resolution_ms
        How far apart they may be, and in what steps they are compared.
    measured_ms, predicted_ms
        Each sorted.
    round_trip_ms
        Median and 90 % quantile of a small transaction on the real connection.
    tries
        How often the calm run was made.
    slowdown
        How many times longer than on an idle machine a piece of work took on this one meanwhile.
    """

    tolerance: ClassVar[float] = DISTANCE_TOLERANCE
    resolution_ms: ClassVar[float] = RESOLUTION_MS

    measured_ms: Milliseconds
    predicted_ms: Milliseconds
    round_trip_ms: tuple[float, float]
    tries: int
    slowdown: float

    @property
    def distance(self) -> float:
        """The two-sample Kolmogorov-Smirnov statistic, at the resolution of the comparison."""
        return ks_distance(
            np.ceil(self.measured_ms / RESOLUTION_MS), np.ceil(self.predicted_ms / RESOLUTION_MS)
        )

    def quantiles_ms(self) -> dict[str, tuple[float, float]]:
        """Return median, 90 % and 99 % quantile, measured and predicted."""
        return {
            f"p{100 * share:g}": (
                float(np.quantile(self.measured_ms, share)),
                float(np.quantile(self.predicted_ms, share)),
            )
            for share in (0.5, 0.9, 0.99)
        }

    @property
    def starved(self) -> bool:
        """Whether the machine had so much else to do that its lateness says nothing about the scheduler."""
        return self.slowdown > MAX_SLOWDOWN

    @property
    def verdict(self) -> Verdict:
        """VALID when distance and medians are within their tolerances; if not, UNKNOWN on a starved machine."""
        measured, predicted = self.quantiles_ms()["p50"]
        if self.distance <= DISTANCE_TOLERANCE and abs(measured - predicted) <= QUANTILE_TOLERANCE_MS:
            return Verdict.VALID
        return Verdict.UNKNOWN if self.starved else Verdict.INVALID

    def frame(self) -> pd.DataFrame:
        """Return both samples as a tidy frame: `world` (measured or predicted) and `lateness_ms`."""
        samples = {"measured": self.measured_ms, "predicted": self.predicted_ms}
        return pd.concat(
            [pd.DataFrame({"world": name, "lateness_ms": sample}) for name, sample in samples.items()],
            ignore_index=True,
        )

    def summary(self) -> dict[str, Any]:
        """Return what a command prints as JSON."""
        return {
            "verdict": self.verdict.value,
            "distance": round(self.distance, 4),
            "tolerance": DISTANCE_TOLERANCE,
            "measured_jobs": len(self.measured_ms),
            "predicted_jobs": len(self.predicted_ms),
            "round_trip_ms": [round(value, 3) for value in self.round_trip_ms],
            "quantiles_ms": {
                name: {"measured": round(measured, 2), "predicted": round(predicted, 2)}
                for name, (measured, predicted) in self.quantiles_ms().items()
            },
            "tries": self.tries,
            "slowdown": round(self.slowdown, 3),
        }

    def lines(self) -> list[str]:
        """Return the comparison as lines of text."""
        quantiles = ", ".join(
            f"{name} {measured:.1f} ms measured and {predicted:.1f} ms predicted"
            for name, (measured, predicted) in self.quantiles_ms().items()
        )
        why = (
            f"            this machine was busy with something else: work took {self.slowdown:.1f} times as long "
            f"as on an idle one, at most {MAX_SLOWDOWN:g} times is fair"
        )
        return [
            (
                f"lateness    {self.verdict}: distance {self.distance:.3f} of the two distributions, at most "
                f"{DISTANCE_TOLERANCE:g} allowed ({len(self.measured_ms)} jobs, run {self.tries} of at most {TRIES})"
            ),
            f"            {quantiles}",
            (
                f"            round trip: median {self.round_trip_ms[0]:.2f} ms, 90 % within "
                f"{self.round_trip_ms[1]:.2f} ms"
            ),
            *([why] if self.verdict is Verdict.UNKNOWN else []),
        ]


@dataclass(frozen=True, slots=True)
class _CalmJob:
    due_us: int
    service_us: int


def compare_lateness(
    server: PostgresServer, *, seed: int, seconds: float = MEASURE_S, tries: int = TRIES
) -> LatenessComparison:
    """Measure lateness in a calm run of real workers, and compare it with the prediction.

    Parameters
    ----------
    server
        With TCP; a schema of our own is made there, and dropped.
    seed
        Decides the load.
    seconds
        How long jobs come due.
    tries
        How often to measure, until the two are within the tolerances.

    Raises
    ------
    StoryFailed
        If the workers do not run the jobs at all.
    """
    load = _plan(seed, seconds)
    best: LatenessComparison | None = None
    for number in range(1, tries + 1):
        with StarvationWatch() as watch:
            measured_ms, trips_ms = _measure(server, load, seed)
        low_us, high_us = (int(1000 * np.quantile(trips_ms, share) / 2) for share in (0.1, 0.9))
        predicted = [
            predict_lateness_ms(load, seed=seed * PREDICTIONS + n, latency=Latency(low_us, high_us))
            for n in range(PREDICTIONS)
        ]
        compared = LatenessComparison(
            measured_ms=measured_ms,
            predicted_ms=np.sort(np.concatenate(predicted)),
            round_trip_ms=(float(np.quantile(trips_ms, 0.5)), float(np.quantile(trips_ms, 0.9))),
            tries=number,
            slowdown=watch.slowdown,
        )
        if best is None or compared.distance < best.distance:
            best = compared
        if compared.verdict is Verdict.VALID:
            return compared
    assert best is not None, "there is at least one try"
    return best


def ks_distance(one: Milliseconds, other: Milliseconds) -> float:
    """Return the largest difference of two empirical distribution functions.

    The two-sample Kolmogorov-Smirnov statistic (https://en.wikipedia.org/wiki/Kolmogorov-Smirnov_test).
    """
    at = np.concatenate([one, other])
    shares = [np.searchsorted(np.sort(sample), at, side="right") / len(sample) for sample in (one, other)]
    return float(np.max(np.abs(shares[0] - shares[1])))


def _plan(seed: int, seconds: float) -> list[_CalmJob]:
    chance = Streams(seed).stream("chaos/calm")
    due_us = sorted(
        second * SECOND_US + chance.randint(0, BURST_US)
        for second in range(max(1, round(seconds)))
        for _ in range(BURST)
    )
    return [_CalmJob(WARM_UP_US + at_us, chance.randint(*SERVICE_US)) for at_us in due_us]


def _requests(load: Sequence[_CalmJob]) -> list[JobRequest]:
    return [
        JobRequest(
            task="wait",
            payload={"service_us": job.service_us},
            delay=timedelta(microseconds=job.due_us),
        )
        for job in load
    ]


# In virtual time.


def predict_lateness_ms(load: Sequence[_CalmJob], *, seed: int, latency: Latency) -> Milliseconds:
    """Simulate the calm run; return how late each job begins, sorted."""
    world = World(seed=seed, open_backend=model_backend, latency=latency)

    def application() -> App:
        app = App()

        @app.task()
        async def wait(job: RunningJob, *, service_us: int) -> None:
            await job.sleep(timedelta(microseconds=service_us))

        return app

    def boot(life: Incarnation) -> None:
        world.start_worker(life, application(), CALM_SETTINGS)

    def boot_client(life: Incarnation) -> None:
        client = Client(application(), world.store_for(life), rng=Streams(seed).stream("identities"))

        async def enqueue() -> None:
            await client.enqueue_many(_requests(load))

        world.spawn(life, enqueue(), "client")

    for number in range(1, WORKERS + 1):
        world.add_host(f"w{number}", boot)
    world.add_host("client", boot_client)
    with world.opened():
        world.run(until_us=load[-1].due_us + 10 * SECOND_US, drain_us=SECOND_US)
    return np.sort(lateness_frame(world.history)["lateness_ms"].to_numpy(dtype=np.float64))


# In real time.


def _measure(
    server: PostgresServer, load: Sequence[_CalmJob], seed: int
) -> tuple[Milliseconds, Milliseconds]:
    """Run the load on real workers; return how late each job began, and round trips, both sorted."""
    assert server.tcp_dsn is not None  # the caller has asked for it
    with (
        chaos_schema(server, audited=False) as dsn,
        tempfile.TemporaryDirectory(prefix="simlab-calm-") as folder,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        workers = [
            WorkerProcess(
                f"w{number}",
                dsn=server.tcp_dsn,
                outside_dsn=server.tcp_dsn,
                schema=SCHEMA,
                settings=CALM_SETTINGS,
                folder=Path(folder),
            )
            for number in range(1, WORKERS + 1)
        ]
        with Fleet(workers) as fleet:
            for worker in workers:
                worker.start()
            _wait(lambda: all(worker.has_begun for worker in workers), "the workers start")
            trips_ms = asyncio.run(_probe(server.tcp_dsn))
            client = Client(chaos, PostgresStore(ConnectionDatabase(connection)), rng=random.Random(seed))
            run_now(client.enqueue_many(_requests(load)))
            ended = [state.value for state in TERMINAL]
            query = "SELECT count(*) FROM scheduler_jobs WHERE state = ANY (%s)"
            _wait(
                lambda: connection.execute(query, [ended]).fetchone() == (len(load),),
                "the workers run the jobs",
                look_s=0.2,
            )
            fleet.drain(PATIENCE_S)
        began = [line for line in read_journals(Path(folder)) if line.kind == "executing"]
    lateness_ms = np.array([(line.at_us - line.due_us) / 1e3 for line in began])
    return np.sort(lateness_ms), trips_ms


async def _probe(dsn: str) -> Milliseconds:
    """Time small transactions that write, as a worker's are."""
    trips = []
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        # Not a temporary one, whose writes need not reach the log.
        table = sql.Identifier(SCHEMA, "probe")
        await connection.execute(sql.SQL("CREATE TABLE {} (n integer)").format(table))
        insert = sql.SQL("INSERT INTO {} VALUES (%s) RETURNING n").format(table)
        for n in range(PROBES):
            began = time.perf_counter_ns()
            cursor = await connection.execute(insert, [n])
            await cursor.fetchall()
            trips.append((time.perf_counter_ns() - began) / 1e6)
    return np.sort(np.array(trips))


def _wait(true: Any, step: str, *, look_s: float = 0.02) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise StoryFailed(f"not within {PATIENCE_S:g} s: {step}")
        time.sleep(look_s)
