"""The command line: every verb an operator needs, and the worker as a process.

Owns the commands and their options. It decides nothing about jobs: each command is one call of the store or of a :class:`~scheduler.app.Client`.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Annotated, Any, TypeVar
from uuid import UUID

import typer

from scheduler.app import Client
from scheduler.arguments import load_app, parse_duration_us, parse_instant, parse_payload, worker_settings
from scheduler.console import print_json, print_table, run_command_line
from scheduler.errors import SchedulerError, UsageError
from scheduler.failpoints import from_environment
from scheduler.jobs import Job, JobState, from_us
from scheduler.policy import SECOND_US
from scheduler.postgres import MIGRATIONS, PostgresStore, migrate, open_postgres
from scheduler.process import log_to_stderr, run_worker_process
from scheduler.store import CancelResult

__all__ = ["main"]

MAX_LISTED = 10_000
"""The most jobs that ``scheduler jobs`` prints."""

MAX_SLOTS = 1000
"""The most slots of one worker process; beyond that, more processes do better."""

T = TypeVar("T")

cli = typer.Typer(
    name="scheduler",
    help="Delayed jobs on PostgreSQL.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# ----------------------------------------------------------------------------------- shared options

DsnOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        envvar="SCHEDULER_DSN",
        metavar="DSN",
        help="The database, as postgresql://user@host/name or host=... dbname=... "
        "A password is safer in the environment: other users see a command's arguments.",
    ),
]
AppOption = Annotated[
    str | None,
    typer.Option(
        "--app", envvar="SCHEDULER_APP", metavar="MODULE:APP", help="Where the App with the tasks is."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
IdsArgument = Annotated[list[UUID], typer.Argument(metavar="ID...", help="The jobs' identities.")]


# ------------------------------------------------------------------------------------------ commands


@cli.command("migrate")
def migrate_command(dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """Create the tables, or bring them up to this version. Safe to repeat, and at any time."""
    applied = migrate(_dsn(dsn))
    if as_json:
        print_json({"applied": applied, "version": MIGRATIONS[-1]})
    elif applied:
        print(f"applied {', '.join(f'{number:04d}' for number in applied)}; now at {MIGRATIONS[-1]:04d}")
    else:
        print(f"nothing to do; at {MIGRATIONS[-1]:04d} already")


@cli.command("enqueue")
def enqueue_command(
    task: Annotated[str, typer.Argument(metavar="TASK", help="The name of a registered task.")],
    payload: Annotated[
        str, typer.Option(metavar="JSON", help="A JSON object, the handler's arguments.")
    ] = "{}",
    delay: Annotated[
        str | None,
        typer.Option("--in", metavar="DURATION", help="From now by the database: 90s, 5m, 1h30m, 2d."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="INSTANT", help="ISO 8601 with its zone: 2030-01-31T09:00+01:00."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="An idempotency key: the same key, the same job."),
    ] = None,
    app: AppOption = None,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Enqueue one job and print its identity. Without --in and --at it is due at once."""
    run_at = None if at is None else parse_instant("--at", at)
    after = None if delay is None else timedelta(microseconds=parse_duration_us("--in", delay))
    arguments = parse_payload(task, payload)
    registry = load_app(app)
    # Before the database is asked: a mistake in the arguments is told even when there is none.
    registry.definition(task)

    async def act(store: PostgresStore) -> UUID:
        client = Client(registry, store, rng=random.SystemRandom())
        return await client.enqueue(task, arguments, run_at=run_at, delay=after, idempotency_key=key)

    job_id = _with_store(_dsn(dsn), act)
    if as_json:
        print_json({"job_id": str(job_id)})
    else:
        print(job_id)


@cli.command("worker")
def worker_command(
    *,
    app: AppOption = None,
    dsn: DsnOption = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="A name for people, in the lease's owner.")
    ] = "worker",
    concurrency: Annotated[
        int, typer.Option(metavar="N", min=1, max=MAX_SLOTS, help="How many handlers run at once.")
    ] = 10,
    prefetch: Annotated[
        int, typer.Option(metavar="N", min=0, max=MAX_LISTED, help="How many more jobs are held, waiting.")
    ] = 10,
    lease: Annotated[
        str, typer.Option(metavar="DURATION", help="How long a silent worker keeps its jobs.")
    ] = "60s",
    heartbeat: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Between renewals.  [default: a quarter of the lease]"),
    ] = None,
    request_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="For one call of the database.  [default: a 24th of the lease, at most 2.5s]",
        ),
    ] = None,
    lookahead: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Jobs due so soon are claimed.  [default: 6 polls, 30s]"),
    ] = None,
    poll: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Between polls.  [default: a 6th of the lookahead, at most 5s]"
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Between sweeps of expired leases.  [default: a 12th of the lease, at most 5s]",
        ),
    ] = None,
    drain: Annotated[
        str, typer.Option(metavar="DURATION", help="How long running handlers may go on after SIGTERM.")
    ] = "30s",
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Run jobs until SIGTERM or SIGINT, then drain; a second signal leaves at once.

    Draining gives back what has not started and lets running handlers end. Handlers still running when the time
    is over are interrupted and retried elsewhere.
    """
    settings = worker_settings(
        concurrency=concurrency,
        prefetch=prefetch,
        lease=lease,
        heartbeat=heartbeat,
        request_timeout=request_timeout,
        lookahead=lookahead,
        poll=poll,
        sweep=sweep,
        drain=drain,
    )
    failpoint = from_environment(os.environ)
    log_to_stderr(log_level)
    registry = load_app(app)
    if not registry.tasks:
        raise UsageError(
            "the App has no tasks, so there is nothing to run; import the modules that register them"
        )
    asyncio.run(run_worker_process(registry, _dsn(dsn), name=name, settings=settings, failpoint=failpoint))


@cli.command("jobs")
def jobs_command(
    state: Annotated[
        JobState | None, typer.Option(case_sensitive=False, help="Only jobs of this state.")
    ] = None,
    job_id: Annotated[UUID | None, typer.Option("--id", metavar="ID", help="Only this job.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_LISTED, help="At most so many.")] = 100,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, soonest first."""

    async def act(store: PostgresStore) -> list[Job]:
        if job_id is None:
            return await store.list_jobs(state=state, limit=limit)
        job = await store.get(job_id)
        if job is None:
            raise UsageError(f"no job {job_id}; `scheduler jobs` lists those there are")
        return [job] if state is None or job.state is state else []

    found = _with_store(_dsn(dsn), act)
    if as_json:
        print_json([_job_as_json(job) for job in found])
    else:
        print_table(
            ("JOB", "TASK", "STATE", "ATTEMPT", "RUN AT (UTC)", "LAST ERROR"),
            [
                (
                    str(job.job_id),
                    job.task,
                    job.state.value + (" (cancel asked)" if _asked_to_stop(job) else ""),
                    f"{job.attempt}/{job.max_attempts}",
                    f"{from_us(job.run_at_us):%Y-%m-%d %H:%M:%S}",
                    job.last_error or "",
                )
                for job in found
            ],
        )


@cli.command("cancel")
def cancel_command(ids: IdsArgument, dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """Cancel jobs that have not started; ask running ones to stop.

    Ends with 1 when a job is unknown or had already ended.
    """
    reply = _with_store(_dsn(dsn), lambda store: store.cancel(ids))
    if as_json:
        print_json([{"job_id": str(done.job_id), "result": done.result.value} for done in reply.results])
    else:
        print_table(("JOB", "RESULT"), [(str(done.job_id), done.result.value) for done in reply.results])
    missed = {CancelResult.TOO_LATE, CancelResult.UNKNOWN}
    raise typer.Exit(1 if any(done.result in missed for done in reply.results) else 0)


@cli.command("replay")
def replay_command(ids: IdsArgument, dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """Give FAILED jobs all their attempts again, due now.

    Ends with 1 when a job is not FAILED, or unknown; it is left as it is.
    """
    reply = _with_store(_dsn(dsn), lambda store: store.replay(ids))
    replayed = set(reply.replayed)
    if as_json:
        print_json([{"job_id": str(job_id), "replayed": job_id in replayed} for job_id in ids])
    else:
        words = {True: "replayed", False: "not failed"}
        print_table(("JOB", "RESULT"), [(str(job_id), words[job_id in replayed]) for job_id in ids])
    raise typer.Exit(0 if replayed.issuperset(ids) else 1)


@cli.command("stats")
def stats_command(dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """Count jobs by state, and say how long the oldest due one has been waiting."""
    stats = _with_store(_dsn(dsn), lambda store: store.stats())
    oldest_due_s = stats.oldest_due_us / SECOND_US
    if as_json:
        counts = {state.value: count for state, count in stats.counts.items()}
        print_json({"counts": counts, "oldest_due_s": oldest_due_s})
    else:
        rows = [(state.value, f"{count:,}") for state, count in stats.counts.items()]
        print_table(("STATE", "JOBS"), rows)
        print(f"oldest due job waiting: {oldest_due_s:.3f} s" if stats.oldest_due_us else "no job is overdue")


def _dsn(text: str | None) -> str:
    if not text:
        raise UsageError(
            "no database named; give --dsn or set SCHEDULER_DSN, such as postgresql://user@host/name"
        )
    return text


def _with_store(dsn: str, act: Callable[[PostgresStore], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        async with open_postgres(dsn, connections=1) as store:
            return await act(store)

    return asyncio.run(run())


def _asked_to_stop(job: Job) -> bool:
    return job.cancel_requested and job.state is JobState.RUNNING


def _job_as_json(job: Job) -> dict[str, Any]:
    def instant(us: int | None) -> str | None:
        return None if us is None else from_us(us).isoformat()

    return {
        "job_id": str(job.job_id),
        "task": job.task,
        "payload": job.payload,
        "state": job.state.value,
        "run_at": instant(job.run_at_us),
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "expires_at": instant(job.expires_at_us),
        "lease_owner": job.lease_owner,
        "lease_token": job.lease_token,
        "lease_expires_at": instant(job.lease_expires_at_us),
        "idempotency_key": job.idempotency_key,
        "cancel_requested": job.cancel_requested,
        "last_error": job.last_error,
        "created_at": instant(job.created_at_us),
        "finished_at": instant(job.finished_at_us),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0 it worked; 1 it worked for some jobs only; 2 a mistake in the call; 3 the database cannot be reached or has
    not been migrated; 130 interrupted.
    """
    return run_command_line(cli, arguments, program="scheduler", own=(SchedulerError,))
