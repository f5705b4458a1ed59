"""Worker processes of the ``scheduler worker`` command, and what can be done to them from outside.

Owns every process it starts: all are gone when the fleet is left, however it is left, stopped ones too; and a leash
ends them should this process be killed. Must not: decide when anything is done.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from psycopg.conninfo import make_conninfo

from scheduler.policy import WorkerSettings
from simlab.chaos import leash
from simlab.chaos_app import JOURNAL_VARIABLE, OUTSIDE_VARIABLE
from simlab.pgserver import clean_environment

__all__ = ["WRITER_SETTING", "Fleet", "WorkerProcess", "worker_dsn", "worker_options"]

WRITER_SETTING = "simlab.writer"
"""The session setting that tells the audit who is writing."""

UNREACHABLE_EXIT = 3
"""What ``scheduler worker`` ends with when the database cannot be reached at its start."""

END_S = 10.0
"""How long a process that was sent SIGKILL may take to disappear on a busy machine."""


def worker_dsn(dsn: str, *, writer: str, schema: str, **more: object) -> str:
    """Return a DSN under whose sessions the audit knows the writer."""
    # A value in the options may hold no blank; the names made here never do.
    options = f"-c search_path={schema} -c {WRITER_SETTING}={writer}"
    return make_conninfo(dsn, options=options, **{name: str(value) for name, value in more.items()})


def worker_options(settings: WorkerSettings) -> list[str]:
    """Return the settings as options of ``scheduler worker``."""
    durations = {
        "--lease": settings.lease_us,
        "--heartbeat": settings.heartbeat_interval_us,
        "--request-timeout": settings.request_timeout_us,
        "--lookahead": settings.lookahead_us,
        "--poll": settings.poll_interval_us,
        "--sweep": settings.sweep_interval_us,
        "--drain": settings.drain_timeout_us,
    }
    options = [word for name, us in durations.items() for word in (name, f"{us}us")]
    return [*options, "--concurrency", str(settings.concurrency), "--prefetch", str(settings.prefetch)]


class WorkerProcess:
    """One worker's place in the fleet: a process now, perhaps others before it.

    Parameters
    ----------
    name
        The host it plays, such as ``w1``; each process is called ``w1.0``, ``w1.1``, … to tell its lives apart.
    dsn
        How it reaches the database.
    outside_dsn
        How its handlers reach the outside world, past whatever is done to the worker's own connections.
    folder
        Where it writes its journal and its log.
    statements
        A file of statements to replace the scheduler's, for a famous mistake; None for the real scheduler.

    Attributes
    ----------
    incarnation
        The number of the present or the last process, from 0.
    stopped, killed
        Whether the last thing done to that process was SIGSTOP, or SIGKILL.
    """

    def __init__(
        self,
        name: str,
        *,
        dsn: str,
        outside_dsn: str,
        schema: str,
        settings: WorkerSettings,
        folder: Path,
        statements: Path | None = None,
    ) -> None:
        self.name = name
        self.incarnation = -1
        self.stopped = False
        self.killed = False
        self._statements = statements
        self._dsn = dsn
        self._outside_dsn = outside_dsn
        self._schema = schema
        self._settings = settings
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """Whether a process is there, stopped or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """What the last process ended with; None while it runs, and before the first."""
        return None if self._process is None else self._process.poll()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the next process."""
        assert not self.alive
        self.incarnation += 1
        self.stopped = self.killed = False
        name = f"{self.name}.{self.incarnation}"
        program = (
            ["-m", "scheduler"]
            if self._statements is None
            # Without the folder of the program on the path: it is full of names that others may import.
            else ["-P", str(Path(__file__).with_name("mistaken.py")), str(self._statements)]
        )
        worker = [*program, "worker", "--app", "simlab.chaos_app:chaos", "--name", name]
        command: Sequence[str] = [
            *(sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), sys.executable),
            *worker,
            *worker_options(self._settings),
        ]
        environment: Mapping[str, str] = {
            **clean_environment(),
            "SCHEDULER_DSN": worker_dsn(self._dsn, writer=name, schema=self._schema),
            OUTSIDE_VARIABLE: worker_dsn(self._outside_dsn, writer=name, schema=self._schema),
            JOURNAL_VARIABLE: str(self._folder / f"{name}.journal"),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        with (self._folder / f"{name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """SIGKILL; a stopped process goes, too."""
        if self._process is not None:
            self._process.kill()
        self.stopped, self.killed = False, True

    def wait(self) -> None:
        """See a killed process gone.

        Raises
        ------
        subprocess.TimeoutExpired
            If it is still there after `END_S`.
        """
        if self._process is not None:
            self._process.wait(END_S)

    def stop(self) -> None:
        """SIGSTOP."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self.stopped = True

    def go_on(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self.stopped = False

    def drain(self) -> None:
        """SIGTERM: the graceful end."""
        if self._process is not None:
            self._process.terminate()

    @property
    def has_begun(self) -> bool:
        """Whether the present or last process has come so far as to say that it runs."""
        return " runs " in self.last_words(lines=10_000)

    def last_words(self, lines: int = 8) -> str:
        """Return the end of its log."""
        path = self._folder / f"{self.name}.{self.incarnation}.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.strip().splitlines()[-lines:]) or "nothing"


class Fleet:
    """The workers of a run. A context manager: leaving it leaves no process behind."""

    def __init__(self, workers: Sequence[WorkerProcess]) -> None:
        self.workers = tuple(workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # All of them first: one that will not go must not keep the others.
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.wait()

    def drain(self, timeout_s: float) -> list[WorkerProcess]:
        """Ask every worker to end; return those that have not within the time."""
        for worker in self.workers:
            worker.drain()
        deadline = time.monotonic() + timeout_s
        while any(worker.alive for worker in self.workers) and time.monotonic() < deadline:
            time.sleep(0.02)
        return [worker for worker in self.workers if worker.alive]
