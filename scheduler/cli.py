"""The command line: every verb an operator needs, and the worker as a process.

Owns what only a process has: arguments, the environment, signals, exit codes, and where text goes. Results go
to stdout and nothing else does; logs and errors go to stderr. A user's mistake is one line, never a traceback.

It decides nothing about jobs: each command is one call of the store or of a :class:`~scheduler.app.Client`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import os
import random
import re
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import FrameType, ModuleType
from typing import Annotated, Any, TypeVar
from uuid import UUID

import typer

from scheduler.app import MAX_HORIZON, App, Client
from scheduler.clock import AsyncioClock
from scheduler.errors import InvalidPayload, InvalidSetting, SchedulerError, UsageError
from scheduler.failpoints import Failpoint, from_environment
from scheduler.jobs import Job, JobState, from_us, to_us
from scheduler.policy import SECOND_US, WorkerSettings
from scheduler.postgres import MIGRATIONS, PostgresStore, migrate, open_postgres
from scheduler.store import CancelResult
from scheduler.worker import Worker

__all__ = ["load_app", "main", "parse_duration_us"]

MAX_LISTED = 10_000
"""The most jobs that ``scheduler jobs`` prints."""

MAX_SLOTS = 1000
"""The most slots of one worker process; beyond that, more processes do better."""

STRAGGLERS_S = 1.0
"""How long a drained worker waits for what still runs in its process before it leaves without it."""

T = TypeVar("T")

logger = logging.getLogger("scheduler.cli")

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
        _print_json({"applied": applied, "version": MIGRATIONS[-1]})
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
        _print_json({"job_id": str(job_id)})
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
    _log_to_stderr(log_level)
    registry = load_app(app)
    if not registry.tasks:
        raise UsageError(
            "the App has no tasks, so there is nothing to run; import the modules that register them"
        )
    database = _dsn(dsn)

    def build(store: PostgresStore, clock: AsyncioClock) -> Worker:
        return _worker(registry, store, clock, name=name, settings=settings, failpoint=failpoint)

    asyncio.run(_work(database, build, settings))


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
        _print_json([_job_as_json(job) for job in found])
    else:
        _print_table(
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
        _print_json([{"job_id": str(done.job_id), "result": done.result.value} for done in reply.results])
    else:
        _print_table(("JOB", "RESULT"), [(str(done.job_id), done.result.value) for done in reply.results])
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
        _print_json([{"job_id": str(job_id), "replayed": job_id in replayed} for job_id in ids])
    else:
        words = {True: "replayed", False: "not failed"}
        _print_table(("JOB", "RESULT"), [(str(job_id), words[job_id in replayed]) for job_id in ids])
    raise typer.Exit(0 if replayed.issuperset(ids) else 1)


@cli.command("stats")
def stats_command(dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """Count jobs by state, and say how long the oldest due one has been waiting."""
    stats = _with_store(_dsn(dsn), lambda store: store.stats())
    oldest_due_s = stats.oldest_due_us / SECOND_US
    if as_json:
        counts = {state.value: count for state, count in stats.counts.items()}
        _print_json({"counts": counts, "oldest_due_s": oldest_due_s})
    else:
        rows = [(state.value, f"{count:,}") for state, count in stats.counts.items()]
        _print_table(("STATE", "JOBS"), rows)
        print(f"oldest due job waiting: {oldest_due_s:.3f} s" if stats.oldest_due_us else "no job is overdue")


# --------------------------------------------------------------------------------- the worker process


def _worker(
    app: App,
    store: PostgresStore,
    clock: AsyncioClock,
    *,
    name: str,
    settings: WorkerSettings,
    failpoint: Failpoint | None,
) -> Worker:
    worker = Worker(app, store=store, clock=clock, name=name, settings=settings, failpoint=failpoint)
    logger.info("%s runs %s in %d slots", worker.owner, ", ".join(app.tasks), settings.concurrency)
    return worker


async def _work(
    dsn: str, build: Callable[[PostgresStore, AsyncioClock], Worker], settings: WorkerSettings
) -> None:
    clock = AsyncioClock(threads=max(32, settings.concurrency))
    error: Exception | None = None
    try:
        async with open_postgres(dsn, connections=5, timeout_us=settings.request_timeout_us) as store:
            worker = build(store, clock)
            _drain_on_signals(worker)
            await worker.run()
            logger.info("%s has drained", worker.owner)
    except Exception as caught:  # noqa: BLE001 - raised again below, unless the process must be left at once
        error = caught
    if stragglers := await _stragglers(clock):
        logger.warning("leaving without %s", ", ".join(stragglers))
        code = 0 if error is None else _report(error)
        # Python would wait for these threads and tasks for ever. They are handlers that the drain has
        # interrupted already and that are due for a retry elsewhere, so ending them is what keeps the promise of
        # one run at a time. Daemon threads are no way out: they can abort an interpreter that shuts down.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)
    clock.close()
    if error is not None:
        raise error


async def _stragglers(clock: AsyncioClock) -> list[str]:
    """Cancel and wait a little for what still runs; return what does not stop, in words."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        _, tasks = await asyncio.wait(tasks, timeout=STRAGGLERS_S)
    words = [f"task {task.get_name()}, which ignores its cancellation" for task in tasks]
    if clock.running_calls:
        words.append(f"plain handlers still running in threads: {clock.running_calls}")
    return words


def _drain_on_signals(worker: Worker) -> None:
    """Drain at the first SIGTERM or SIGINT, leave at the second.

    Plain signal handlers and not the loop's, so that the second is heard even when a handler blocks the loop.
    """
    loop = asyncio.get_running_loop()
    asked = False

    def hear(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os.write(2, b"leaving at once: what still ran is retried when its lease has expired\n")
            os._exit(128 + number)
        asked = True
        os.write(2, f"{signal.Signals(number).name}: draining; once more to leave at once\n".encode())
        loop.call_soon_threadsafe(worker.stop)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hear)


def _log_to_stderr(level: str) -> None:
    levels = ("DEBUG", "INFO", "WARNING", "ERROR")
    if level.upper() not in levels:
        raise InvalidSetting("--log-level", level, f"must be one of {', '.join(levels)}")
    logging.basicConfig(
        stream=sys.stderr, level=level.upper(), format="%(asctime)s %(levelname)s %(message)s"
    )


# ------------------------------------------------------------------------------------ reading arguments

_UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "s": SECOND_US,
    "m": 60 * SECOND_US,
    "h": 3600 * SECOND_US,
    "d": 86_400 * SECOND_US,
}
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s|m|h|d)")


def parse_duration_us(name: str, text: str) -> int:
    """Read a duration such as ``90s``, ``2.5s``, ``1h30m`` or ``2d``; returns microseconds, exactly.

    Raises
    ------
    InvalidSetting
        If it does not read so, is finer than a microsecond, or is longer than `MAX_HORIZON`.
    """
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InvalidSetting(
            name, text, "is not a duration; write 90s, 5m, 1h30m or 2d (units us ms s m h d)"
        )
    total = sum((Decimal(number) * _UNITS_US[unit] for number, unit in parts), Decimal(0))
    if total > to_us(MAX_HORIZON):
        raise InvalidSetting(name, text, f"is too long; at most {MAX_HORIZON.days}d")
    if total != int(total):
        raise InvalidSetting(
            name, text, "is finer than a microsecond, which is as fine as PostgreSQL keeps time"
        )
    return int(total)


def parse_instant(name: str, text: str) -> datetime:
    """Read an instant in ISO 8601, with its time zone."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidSetting(
            name, text, "is not a date and time; write it in ISO 8601, such as 2030-01-31T09:00+01:00"
        ) from None
    if instant.utcoffset() is None:
        raise InvalidSetting(name, text, "has no time zone, so it names no instant; end it with Z or +01:00")
    return instant


def parse_payload(task: str, text: str) -> Any:
    """Read a payload; what it may hold is checked by the App.

    Raises
    ------
    InvalidPayload
        Saying at which line and column the JSON breaks.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise InvalidPayload(
            task, where, f"not JSON: {error.msg}; write it as '{{\"user_id\": 7}}'"
        ) from None
    except RecursionError:
        raise InvalidPayload(task, "$", "nested too deep to read") from None
    except ValueError as error:
        raise InvalidPayload(task, "$", str(error).partition(";")[0]) from None


def worker_settings(
    *,
    concurrency: int,
    prefetch: int,
    lease: str,
    heartbeat: str | None,
    request_timeout: str | None,
    lookahead: str | None,
    poll: str | None,
    sweep: str | None,
    drain: str,
) -> WorkerSettings:
    """Read the worker's durations; one that is not given follows from those that are, by the defaults' ratio."""
    given = WorkerSettings()

    def read(name: str, text: str | None, otherwise_us: int) -> int:
        return max(1, otherwise_us) if text is None else parse_duration_us(name, text)

    lease_us = parse_duration_us("--lease", lease)
    poll_us = read("--poll", poll, given.poll_interval_us)
    lookahead_us = read("--lookahead", lookahead, max(given.lookahead_us, 6 * poll_us))
    if poll is None and lookahead_us:
        poll_us = max(1, min(poll_us, lookahead_us // 6))
    return WorkerSettings(
        concurrency=concurrency,
        prefetch=prefetch,
        lookahead_us=lookahead_us,
        poll_interval_us=poll_us,
        lease_us=lease_us,
        heartbeat_interval_us=read("--heartbeat", heartbeat, lease_us // 4),
        request_timeout_us=read(
            "--request-timeout", request_timeout, min(given.request_timeout_us, lease_us // 24)
        ),
        sweep_interval_us=read("--sweep", sweep, min(given.sweep_interval_us, lease_us // 12)),
        drain_timeout_us=parse_duration_us("--drain", drain),
    )


def load_app(spec: str | None) -> App:
    """Import the App that ``module:name`` names; the current directory is searched first.

    Raises
    ------
    UsageError
        If there is none: no such module, an error inside it, no such name, or not an App.
    """
    if not spec:
        raise UsageError("no application named; give --app module:app or set SCHEDULER_APP")
    module_name, colon, name = spec.partition(":")
    if not (module_name and colon and name):
        raise InvalidSetting("--app", spec, "write it as module:app, such as shop.jobs:app")
    module = _import(spec, module_name)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, App):
        return found
    apps = sorted(key for key, value in vars(module).items() if isinstance(value, App))
    hint = f"it has {', '.join(apps)}" if apps else "it has no App; write `app = App()` there"
    what = "has no such name" if found is None else f"holds a {type(found).__name__} there, not an App"
    raise InvalidSetting("--app", spec, f"module {module_name!r} {what}; {hint}")


def _import(spec: str, name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        # Whatever a module prints while it is imported is not this command's result.
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's module may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            why = f"there is no module {error.name!r} in {here} or on the Python path"
        else:
            message = " ".join(str(error).split())
            why = f"importing {name!r} failed: {type(error).__name__}: {message} ({_place(error)})"
        raise InvalidSetting("--app", spec, why) from None


def _place(error: BaseException) -> str:
    """Say where in somebody else's module an error arose."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename} line {error.lineno}"
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename
    ]
    return f"{frames[-1].filename} line {frames[-1].lineno}"


def _dsn(text: str | None) -> str:
    if not text:
        raise UsageError(
            "no database named; give --dsn or set SCHEDULER_DSN, such as postgresql://user@host/name"
        )
    return text


# ---------------------------------------------------------------------------------------- printing


def _with_store(dsn: str, act: Callable[[PostgresStore], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        async with open_postgres(dsn, connections=1) as store:
            return await act(store)

    return asyncio.run(run())


def _print_json(result: object) -> None:
    print(json.dumps(result, indent=2))


def _print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = [header, *([_printable(cell) for cell in row] for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _printable(text: str) -> str:
    """Return text as one line without control characters: what a job says must not steer the terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


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


# ---------------------------------------------------------------------------------------- the entry


def _report(error: Exception) -> int:
    """Tell an error on stderr and return the exit code: one line for a user's, a traceback for one of ours."""
    told = getattr(error, "format_message", None)  # an error of the command line parser
    if isinstance(error, SchedulerError):
        message, code = str(error), error.exit_code
    elif told is not None:
        message, code = f"{told()} See `scheduler --help`.", 2
    else:
        traceback.print_exception(error)
        return 1
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0 it worked; 1 it worked for some jobs only; 2 a mistake in the call; 3 the database cannot be reached or has
    not been migrated; 130 interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # The parser returns a code after --help, and a command's own None otherwise.
        code = cli(words or ["--help"], prog_name="scheduler", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has gone, as `head` does. Python would complain once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (KeyboardInterrupt, typer.Abort):
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 - told in one line, or as the bug that it is
        return _report(error)
    return code if isinstance(code, int) else 0
