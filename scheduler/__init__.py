"""A delayed-job scheduler on PostgreSQL: at least once, at the time you said, cancellable, and honest.

::

    import random
    from datetime import timedelta
    from scheduler import App, Client, open_postgres

    app = App()

    @app.task(max_attempts=5)
    async def remind(job, *, user_id):
        ...                      # may run more than once: must be safe to repeat for job.job_id

    async with open_postgres(dsn) as store:
        client = Client(app, store, rng=random.SystemRandom())
        await client.enqueue("remind", {"user_id": 7}, delay=timedelta(hours=2))

Run the jobs with ``scheduler worker --app module:app``, or with :class:`Worker` in a loop of your own.
"""

from scheduler.app import App, Client, JobRequest
from scheduler.clock import AsyncioClock, Clock
from scheduler.errors import (
    IdempotencyConflict,
    InvalidPayload,
    InvalidSetting,
    JobCancelled,
    LeaseLost,
    MissingMigration,
    NaiveDatetime,
    SchedulerError,
    StoreUnavailable,
    TooMany,
    UnknownTask,
    UsageError,
)
from scheduler.jobs import Job, JobState
from scheduler.policy import Retry, WorkerSettings
from scheduler.pool import RunningJob
from scheduler.postgres import PostgresStore, migrate, open_postgres
from scheduler.store import CancelResult, Store
from scheduler.worker import Worker

__all__ = [
    "App",
    "AsyncioClock",
    "CancelResult",
    "Client",
    "Clock",
    "IdempotencyConflict",
    "InvalidPayload",
    "InvalidSetting",
    "Job",
    "JobCancelled",
    "JobRequest",
    "JobState",
    "LeaseLost",
    "MissingMigration",
    "NaiveDatetime",
    "PostgresStore",
    "Retry",
    "RunningJob",
    "SchedulerError",
    "Store",
    "StoreUnavailable",
    "TooMany",
    "UnknownTask",
    "UsageError",
    "Worker",
    "WorkerSettings",
    "migrate",
    "open_postgres",
]
