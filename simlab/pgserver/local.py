"""A server that we start ourselves from a set of programs, and the guard beside it.

Owns: the server's directory, its `postgres` process, and their ordered start, stop and end.
Must not: choose which programs to use, or write anywhere outside the server's directory.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg

from simlab.errors import ServerControlError
from simlab.pgserver import guard
from simlab.pgserver.account import identity, server_account
from simlab.pgserver.base import Options, PostgresServer, StopMode, Unusable
from simlab.pgserver.cluster import (
    DATABASE,
    USER,
    complaint,
    free_port,
    make_cluster,
    server_environment,
    write_settings,
)
from simlab.pgserver.directories import clear_leftovers, create
from simlab.pgserver.environment import clean_environment, explicit_dsn
from simlab.pgserver.installs import Install, copy_embedded

__all__ = ["LocalServer"]

START_S = 60.0
STOP_S = 30.0
KILLED_S = 1.0
"""How long a process that was just sent SIGKILL may take to disappear."""

PORT_TRIES = 3
"""Another program may take a free port between our asking for it and the server's."""

POLL_S = 0.005


class LocalServer(PostgresServer):
    """A server of our own, on a socket in a private directory, removed without trace at the end.

    A forked child may keep the object, but only the process that made it stops the server.

    Parameters
    ----------
    install
        The programs.
    options
        How to set it up.

    Raises
    ------
    Unusable
        When the server cannot be set up or started; nothing of it remains.
    """

    def __init__(self, install: Install, options: Options) -> None:
        clear_leftovers()
        self._owner = os.getpid()
        self._options = options
        self._account = server_account()
        self._closed = False
        self._last_log = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._directory = create(self._account)
        self._guard = _start_guard(self._directory)
        try:
            self._set_up(install)
        except (OSError, subprocess.SubprocessError, ServerControlError) as error:
            self.close()
            raise Unusable(f"the server could not be started ({_first_line(error)})") from error
        except BaseException:
            self.close()
            raise

    def _set_up(self, install: Install) -> None:
        if install.must_copy:
            install = copy_embedded(install, self._directory / "install")
        self._bin_dir = install.bin_dir
        self._password = secrets.token_urlsafe(18)
        make_cluster(
            self._directory,
            install.bin_dir,
            account=self._account,
            options=self._options,
            password=self._password,
        )
        self._port = free_port() if self._options.tcp else 5432
        self._start_on_free_port()
        dsn = self._dsn(host=str(self._directory / "socket"))
        tcp_dsn = self._dsn(host="127.0.0.1", password=self._password) if self._options.tcp else None
        super().__init__(
            source=install.source, origin=install.origin, dsn=dsn, version=_ask_version(dsn), tcp_dsn=tcp_dsn
        )

    def _start_on_free_port(self) -> None:
        for tries_left in reversed(range(PORT_TRIES)):
            write_settings(self._directory, options=self._options, port=self._port)
            try:
                self.start()
            except ServerControlError:
                if not (tries_left and self._options.tcp and "could not bind" in self.log_tail()):
                    raise
                self._port = free_port()
            else:
                return

    def _dsn(self, *, host: str, password: str = "") -> str:
        return explicit_dsn(
            {
                "host": host,
                "port": self._port,
                "user": USER,
                "dbname": DATABASE,
                "password": password,
                "sslmode": "disable",
            }
        )

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerControlError("the server is stopped and has no process id; call start() first")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        if self._closed:
            raise ServerControlError("the server is closed and its data deleted; open another one")
        self._leave_the_dead_behind()
        with (self._directory / "log").open("ab") as log:
            # A session of its own: Ctrl-C at the terminal reaches us, and we stop the server in order.
            self._process = subprocess.Popen(
                [str(self._bin_dir / "postgres"), "-D", str(self._directory / "data")],
                cwd=self._directory,
                env=server_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **identity(self._account),
            )
        self._wait_until_ready()

    def _leave_the_dead_behind(self) -> None:
        """Make way for a new postmaster: no old one, and no backend that outlived it.

        A backend in a long query does not notice at once that its postmaster was killed, and as long as it
        lives, the shared memory is in use and a new postmaster refuses to start.
        """
        if self._process is not None:
            try:
                self._process.wait(KILLED_S)
            except subprocess.TimeoutExpired:
                raise ServerControlError("the server is already running; call stop() first") from None
            self._process = None
        deadline = time.monotonic() + STOP_S
        while orphans := guard.processes_of(self._directory):
            for orphan in orphans:
                _send(orphan, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise ServerControlError(f"processes {sorted(orphans)} of the killed server do not end")
            time.sleep(POLL_S)
        # The lock file of a killed postmaster would otherwise say "starting" or "ready" for the new one.
        (self._directory / "data" / "postmaster.pid").unlink(missing_ok=True)

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        lock_file = self._directory / "data" / "postmaster.pid"
        deadline = time.monotonic() + START_S
        while self._process.poll() is None:
            if _status(lock_file) == "ready":
                return
            if time.monotonic() > deadline:
                self.stop("immediate")
                raise ServerControlError(
                    f"postgres was not ready after {START_S:.0f} s: {complaint(self.log_tail())}"
                )
            time.sleep(POLL_S)
        code, self._process = self._process.returncode, None
        raise ServerControlError(f"postgres ended with {code}: {complaint(self.log_tail())}")

    def stop(self, mode: StopMode = "fast") -> None:
        signals = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
        if mode not in signals:
            raise ServerControlError(
                f"a server cannot be stopped in mode {mode!r}; use 'fast' or 'immediate'"
            )
        process = self._process
        if process is None:
            return
        for what in (signals[mode], signal.SIGQUIT, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(what)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                continue
            self._process = None
            return

    def close(self) -> None:
        if self._closed or os.getpid() != self._owner:
            return
        self.stop("immediate")
        self._last_log = self.log_tail(200)
        _end_guard(self._guard)
        guard.end(self._directory)  # In case somebody killed the guard.
        self._closed = True

    def log_tail(self, lines: int = 40) -> str:
        try:
            told = (self._directory / "log").read_text(errors="replace")
        except OSError:
            told = self._last_log
        return "\n".join(told.splitlines()[-lines:])


def _start_guard(directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", guard.__file__, str(directory), str(os.getpid())],
        cwd="/",
        env=clean_environment(),
        stdin=subprocess.PIPE,
        # Not ours: whoever reads our output would wait for the guard, too.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _end_guard(process: subprocess.Popen[bytes]) -> None:
    try:
        # Said aloud, because a forked child may hold the pipe open.
        process.communicate(b"end", timeout=guard.QUIT_S + guard.KILL_S + guard.REMOVE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _status(lock_file: Path) -> str:
    """Read the postmaster's own word on itself, the eighth line of its lock file."""
    try:
        return lock_file.read_text().splitlines()[7].strip()
    except (OSError, IndexError):
        return ""


def _ask_version(dsn: str) -> int:
    try:
        with psycopg.connect(dsn) as connection:
            return connection.info.server_version
    except psycopg.Error as error:
        raise ServerControlError(f"the server does not answer: {_first_line(error)}") from error


def _send(pid: int, what: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, what)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
