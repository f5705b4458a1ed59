"""The application that real worker processes of the laboratory run.

Its one task changes the outside world: a row in a table, through a connection of its own, as a payment or a
mail would go through somebody else's service. The payload says whether the handler is idempotent.
"""

from __future__ import annotations

import os

import psycopg

from scheduler.app import App
from scheduler.policy import Retry
from scheduler.pool import RunningJob

__all__ = ["EFFECTS_TABLE", "app"]

EFFECTS_TABLE = """
CREATE TABLE effects (
    key    text PRIMARY KEY,
    job_id uuid NOT NULL,
    token  bigint NOT NULL,
    pid    integer NOT NULL,
    at     timestamptz NOT NULL
)
"""

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
