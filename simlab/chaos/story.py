"""Real time, real processes, real signals: the story of a crash told without any simulation.

A throwaway server, worker processes of the ``scheduler worker`` command, and SIGKILL. Everything is bounded
in time, and every process is gone at the end, however it ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from psycopg.conninfo import make_conninfo

from scheduler.app import Client
from scheduler.clock import AsyncioClock
from scheduler.failpoints import ENVIRONMENT
from scheduler.jobs import Job, JobState
from scheduler.postgres import ConnectionDatabase, PostgresStore, apply_migrations
from simlab.chaos_app import EFFECTS_TABLE, app
from simlab.errors import SimlabError
from simlab.pgserver import PostgresServer, clean_environment

__all__ = ["CrashStory", "StoryFailed", "crash_after_execution"]

T = TypeVar("T")

PATIENCE_S = 30.0
"""How long any one step of a story may take before it counts as failed."""

LEASE = "2s"
"""Short, so that the story is over soon: the second worker has to wait it out."""

_SCHEMA = "lab_real"


class StoryFailed(SimlabError):
    """A story with real processes did not go as it must; says at which step."""

    exit_code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashStory:
    """What real processes came to.

    Attributes
    ----------
    killed_by
        The signal that ended the first worker.
    effects
        How often the outside world was changed for the one job.
    attempts
        How often the job was claimed.
    seconds
        Real time, from the first worker's start to the job's end.
    """

    idempotent: bool
    killed_by: str
    state: JobState
    attempts: int
    effects: int
    seconds: float

    @property
    def as_expected(self) -> bool:
        """Whether the job ended well, at its second attempt, with one effect or with two."""
        return (
            self.killed_by == "SIGKILL"
            and self.state is JobState.SUCCEEDED
            and self.attempts == 2
            and self.effects == (1 if self.idempotent else 2)
        )


def crash_after_execution(server: PostgresServer, *, idempotent: bool) -> CrashStory:
    """Let a worker process kill itself between the work and the record, and a second one take over.

    Parameters
    ----------
    server
        A server to make a schema of its own in, dropped at the end.
    idempotent
        Whether the handler deduplicates its effect by the job's identity.

    Raises
    ------
    StoryFailed
        If a process does not do its part in time.
    """
    with _schema(server.dsn) as (dsn, connection):
        store = PostgresStore(ConnectionDatabase(connection))
        job_id = run_now(_enqueue(store, idempotent=idempotent))
        began = time.monotonic()
        with _worker(dsn, "first", failpoints="after_execute=kill") as first:
            code = _ended(first, "the first worker kills itself after executing the job")
        with _worker(dsn, "second") as second:
            job = _finished(store, job_id, second)
            seconds = time.monotonic() - began
            second.send_signal(signal.SIGTERM)
            if _ended(second, "the second worker drains") != 0:
                raise StoryFailed(f"the second worker ended with {second.returncode}: {_said(second)}")
        row = connection.execute("SELECT count(*) FROM effects WHERE job_id = %s", [job_id]).fetchone()
    return CrashStory(
        idempotent=idempotent,
        killed_by=signal.Signals(-code).name if code < 0 else f"exit {code}",
        state=job.state,
        attempts=job.attempt,
        effects=row[0] if row else 0,
        seconds=seconds,
    )


async def _enqueue(store: PostgresStore, *, idempotent: bool) -> UUID:
    clock = AsyncioClock()
    client = Client(app, store, rng=clock.rng)
    return await client.enqueue("charge", {"idempotent": idempotent})


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of a store on a plain connection: it never waits, so it needs no event loop."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    raise AssertionError("a store on a plain connection never waits")


@contextmanager
def _schema(dsn: str) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
    """Make a schema of our own with the tables in it, and drop it at the end."""
    own = make_conninfo(dsn, options=f"-c search_path={_SCHEMA}")
    with psycopg.connect(own, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {_SCHEMA} CASCADE")
        connection.execute(f"CREATE SCHEMA {_SCHEMA}")
        try:
            apply_migrations(connection)
            connection.execute(EFFECTS_TABLE)
            yield own, connection
        finally:
            connection.execute(f"DROP SCHEMA IF EXISTS {_SCHEMA} CASCADE")


@contextmanager
def _worker(dsn: str, name: str, *, failpoints: str = "") -> Iterator[subprocess.Popen[str]]:
    """Run one worker process, and see that it is gone at the end."""
    command = [sys.executable, "-m", "scheduler", "worker", "--app", "simlab.chaos_app:app"]
    options = {"--name": name, "--lease": LEASE, "--poll": "100ms", "--sweep": "100ms", "--concurrency": "2"}
    environment: Mapping[str, str] = {
        **clean_environment(),
        "SCHEDULER_DSN": dsn,
        ENVIRONMENT: failpoints,
        # The workers run the packages that this process runs, installed or not.
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    process = subprocess.Popen(
        command + [word for option in options.items() for word in option],
        env=dict(environment),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _ended(process: subprocess.Popen[str], step: str) -> int:
    try:
        return process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise StoryFailed(f"not within {PATIENCE_S:g} s: {step}; it said: {_said(process)}") from None


def _finished(store: PostgresStore, job_id: UUID, worker: subprocess.Popen[str]) -> Job:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        job = run_now(store.get(job_id))
        if job is not None and job.finished_at_us is not None:
            return job
        if worker.poll() is not None:
            raise StoryFailed(f"the second worker ended by itself: {_said(worker)}")
        time.sleep(0.02)
    raise StoryFailed(f"not within {PATIENCE_S:g} s: the second worker finishes the job")


def _said(process: subprocess.Popen[str]) -> str:
    """Return the last line an ended process wrote to stderr."""
    text = process.stderr.read() if process.stderr is not None and process.poll() is not None else ""
    return (text.strip().splitlines() or ["nothing"])[-1]
