"""The applications that real worker processes of the laboratory run.

`app` has one task, for one story: it changes the outside world, a row in a table, through a connection of its own,
as a payment or a mail would go through somebody else's service. The payload says whether the handler is
idempotent. `chaos` has the tasks of a run of chaos, whose handlers also note in a journal what they do: a file
of this process's own, because an execution must be seen even when no database is there to be told of it.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta

import psycopg

from scheduler.app import App
from scheduler.clock import CancelledError
from scheduler.jobs import instant_to_us
from scheduler.policy import Retry
from scheduler.pool import RunningJob

__all__ = ["EFFECTS_TABLE", "JOURNAL_VARIABLE", "OUTSIDE_VARIABLE", "Journal", "app", "chaos"]

EFFECTS_TABLE = """
CREATE TABLE effects (
    key    text PRIMARY KEY,
    job_id uuid NOT NULL,
    token  bigint NOT NULL,
    pid    integer NOT NULL,
    at     timestamptz NOT NULL
)
"""

JOURNAL_VARIABLE = "SIMLAB_JOURNAL"
"""The environment variable that names this process's journal."""

OUTSIDE_VARIABLE = "SIMLAB_OUTSIDE_DSN"
"""The environment variable with the handlers' own way to the outside world."""

app = App()


@app.task(max_attempts=5, retry=Retry(base_us=200_000))
def charge(job: RunningJob, *, idempotent: bool) -> None:
    """Change the world once a job, or once a run, as the payload says."""
    # The job's identity is the same at every attempt; with the token in it, every attempt is a new request.
    key = str(job.job_id) if idempotent else f"{job.job_id}/{job.token}"
    with psycopg.connect(os.environ["SCHEDULER_DSN"]) as connection:
        connection.execute(
            "INSERT INTO effects (key, job_id, token, pid, at) VALUES (%s, %s, %s, %s, now()) "
            "ON CONFLICT (key) DO NOTHING",
            [key, job.job_id, job.token, os.getpid()],
        )


class Journal:
    """What the handlers of this process did, line by line, in a file.

    Each line is one write: SIGKILL loses nothing that was noted, for the kernel has it. The instant is this
    machine's clock, which is also the database's where both are on one machine.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, kind: str, job: RunningJob) -> None:
        """Note one step of a job, now."""
        due_us = instant_to_us("run_at", job.run_at)
        words = (
            time.time_ns() // 1000,
            kind,
            job.job_id,
            job.token,
            job.attempt,
            due_us,
        )
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


chaos = App()

_journals: dict[str, Journal] = {}


def _journal() -> Journal:
    path = os.environ[JOURNAL_VARIABLE]
    if path not in _journals:
        _journals[path] = Journal(path)
    return _journals[path]


_EFFECT = """
INSERT INTO effects (key, job_id, token, pid, at) VALUES (%s, %s, %s, %s, clock_timestamp())
ON CONFLICT (key) DO NOTHING
"""


async def _change_world(job: RunningJob, *, idempotent: bool) -> bool:
    """Change the outside world; say whether it had not seen this change before."""
    key = str(job.job_id) if idempotent else f"{job.job_id}/{job.token}"
    async with await psycopg.AsyncConnection.connect(
        os.environ[OUTSIDE_VARIABLE], autocommit=True
    ) as connection:
        cursor = await connection.execute(_EFFECT, [key, job.job_id, job.token, os.getpid()])
        return cursor.rowcount == 1


class _Noted:
    """Notes how an execution begins and ends, whatever ends it."""

    def __init__(self, job: RunningJob) -> None:
        self._job = job

    def __enter__(self) -> None:
        _journal().note("executing", self._job)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        aborted = kind is not None and issubclass(kind, CancelledError)
        _journal().note("executed" if kind is None else "aborted" if aborted else "raised", self._job)


@chaos.task(max_attempts=60, retry=Retry(base_us=100_000, cap_us=1_000_000))
async def work(job: RunningJob, *, n: int, service_us: int, idempotent: bool, fails: int) -> None:
    """Work for a while with a change of the world in the middle; fail the first `fails` times."""
    half = timedelta(microseconds=service_us // 2)
    with _Noted(job):
        await job.sleep(half)
        if not await _change_world(job, idempotent=idempotent):
            _journal().note("duplicate", job)
        await job.sleep(half)
        if job.attempt <= fails:
            raise RuntimeError(f"job {n} fails at attempt {job.attempt}, as it was asked to")


@chaos.task(max_attempts=60, retry=Retry(base_us=100_000, cap_us=1_000_000))
async def wait(job: RunningJob, *, service_us: int) -> None:
    """Take time and nothing else: what a measurement of lateness wants."""
    with _Noted(job):
        await job.sleep(timedelta(microseconds=service_us))


@chaos.task(max_attempts=3, retry=Retry(base_us=100_000, cap_us=1_000_000))
async def doomed(job: RunningJob, *, n: int) -> None:
    """Fail at every attempt: the job must end as a dead letter, and not before its last attempt."""
    with _Noted(job):
        raise RuntimeError(f"job {n} always fails")


@chaos.task(max_attempts=60, max_age=timedelta(seconds=4))
async def fleeting(job: RunningJob, *, service_us: int) -> None:
    """Be worth running for a few seconds only."""
    with _Noted(job):
        await job.sleep(timedelta(microseconds=service_us))
