"""A worker as a process: its signals, its end, and what of it will not end.

Owns what only a process has. The first SIGTERM or SIGINT drains, the second leaves at once; a handler stuck in a
thread does not keep a drained process alive.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from types import FrameType

from scheduler.app import App
from scheduler.clock import AsyncioClock
from scheduler.console import report_error
from scheduler.errors import InvalidSetting, SchedulerError
from scheduler.failpoints import Failpoint
from scheduler.policy import WorkerSettings
from scheduler.postgres import open_postgres
from scheduler.worker import Worker

__all__ = ["log_to_stderr", "run_worker_process"]

STRAGGLERS_S = 1.0
"""How long a drained worker waits for what still runs in its process before it leaves without it."""

logger = logging.getLogger("scheduler.process")


async def run_worker_process(
    app: App, dsn: str, *, name: str, settings: WorkerSettings, failpoint: Failpoint | None
) -> None:
    """Run a worker until a signal says to drain; may end the process instead of returning.

    Raises
    ------
    StoreUnavailable
        If the database cannot be reached at the start, or has not been migrated.
    """
    clock = AsyncioClock(threads=max(32, settings.concurrency))
    error: Exception | None = None
    try:
        async with open_postgres(dsn, connections=5, timeout_us=settings.request_timeout_us) as store:
            worker = Worker(app, store=store, clock=clock, name=name, settings=settings, failpoint=failpoint)
            logger.info("%s runs %s in %d slots", worker.owner, ", ".join(app.tasks), settings.concurrency)
            _drain_on_signals(worker)
            await worker.run()
            logger.info("%s has drained", worker.owner)
    except Exception as caught:  # noqa: BLE001 - raised again below, unless the process must be left at once
        error = caught
    if stragglers := await _stragglers(clock):
        logger.warning("leaving without %s", ", ".join(stragglers))
        code = 0 if error is None else report_error(error, "scheduler", SchedulerError)
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


def log_to_stderr(level: str) -> None:
    """Send logs of a level and above to stderr."""
    levels = ("DEBUG", "INFO", "WARNING", "ERROR")
    if level.upper() not in levels:
        raise InvalidSetting("--log-level", level, f"must be one of {', '.join(levels)}")
    logging.basicConfig(
        stream=sys.stderr, level=level.upper(), format="%(asctime)s %(levelname)s %(message)s"
    )
