"""The guard: ends a throwaway server and removes its directory when the process that started it is gone.

Owns: how a server directory is ended from its path alone (find its processes, stop them, give back shared memory,
delete the files), and the tiny process that waits for the moment to do so.

Why a process of its own: no `finally` and no `atexit` runs after SIGKILL. The kernel's parent-death signal would do
on Linux, but it is cleared when the server changes user, it fires when the *thread* that started the server
ends, macOS has none, and it deletes no files. A pipe needs none of that: its end is seen when the last holder
of the other end is gone. A forked child of the parent may still hold that other end, so the guard also watches for its
own parent to change.

Must not: import anything outside the standard library, or anything of this package. It is run by its path with
``python -I -S`` so that it starts in milliseconds and works whatever the parent did to ``sys.path``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["end", "lock", "processes_of"]

WATCH_S = 0.25
"""How often the guard looks whether its parent is still the same process."""

QUIT_S = 8.0
"""How long an immediate shutdown may take: PostgreSQL itself kills stubborn backends after 5 seconds."""

KILL_S = 5.0
"""How long killed processes may take to disappear."""

REMOVE_S = 5.0
"""How long to go on deleting files that a dying process may still be writing."""

LATE_S = 0.2
"""A child caught between fork and exec when its parent died shows itself within this time."""

POLL_S = 0.01

_PROGRAMS = {"initdb": "initdb", "postmaster": "postgres"}
"""What a process is to us, and the program it runs."""


def processes_of(directory: Path) -> dict[int, str]:
    """Find the living processes of the server in `directory`.

    They are known by what they show in the process table: `initdb` and the postmaster by their data directory,
    the postmaster's children by the server's `cluster_name`, which is the directory's name. So neither a
    reused process id nor another server is ever taken for one of these.

    Parameters
    ----------
    directory
        The server directory, the one that holds ``data``.

    Returns
    -------
    dict
        Process id to ``"initdb"``, ``"postmaster"`` or ``"child"``.
    """
    programs = {role: f"/{program} -D {directory / 'data'} " for role, program in _PROGRAMS.items()}
    found = {}
    for pid, command in _commands():
        if command.startswith(f"postgres: {directory.name}: "):
            found[pid] = "child"
        for role, mark in programs.items():
            if mark in f"{command} ":
                found[pid] = role
    return found


def _commands() -> Iterator[tuple[int, str]]:
    """Give (process id, command line) of every process; a zombie has no command line."""
    table = Path("/proc")
    if not (table / "self" / "cmdline").exists():
        yield from _commands_from_ps()
        return
    for entry in table.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                yield (
                    int(entry.name),
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"),
                )


def _commands_from_ps() -> Iterator[tuple[int, str]]:
    import subprocess  # Here, because Linux never needs it and the guard should start fast.  # noqa: PLC0415

    table = subprocess.run(
        ["/bin/ps", "-axww", "-o", "pid=,command="],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    for line in table.stdout.decode(errors="replace").splitlines():
        pid, _, command = line.strip().partition(" ")
        if pid.isdigit():
            yield int(pid), command


def end(directory: Path) -> bool:
    """Stop whatever runs in a server directory, and delete the directory.

    The data is to be thrown away, so the shutdown is PostgreSQL's immediate one (no checkpoint).

    Parameters
    ----------
    directory
        The server directory.

    Returns
    -------
    bool
        Whether the directory is gone.
    """
    _stop_processes(directory)
    _remove_shared_memory(directory / "data")
    deadline = time.monotonic() + REMOVE_S
    while True:
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists() or time.monotonic() > deadline:
            return not directory.exists()
        time.sleep(POLL_S)


def _stop_processes(directory: Path) -> None:
    for postmaster_signal, patience_s in ((signal.SIGQUIT, QUIT_S), (signal.SIGKILL, KILL_S)):
        running = processes_of(directory)
        orphaned = "postmaster" not in running.values()
        for pid, role in running.items():
            if role == "postmaster":
                _send(pid, postmaster_signal)
            elif role == "initdb" or orphaned or postmaster_signal is signal.SIGKILL:
                _send(pid, signal.SIGKILL)
        if _wait_until_gone(directory, patience_s):
            return


def _send(pid: int, what: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, what)


def _wait_until_gone(directory: Path, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while processes_of(directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _remove_shared_memory(data: Path) -> None:
    """Give back the System V segment of a postmaster that was killed; one that stopped has removed its own.

    The lock file names the segment's key and id on its seventh line (PostgreSQL, `src/include/utils/pidfile.h`).
    Both must still belong together, so that a reused id is never removed.
    """
    try:
        key, segment = (int(word) for word in (data / "postmaster.pid").read_text().splitlines()[6].split())
    except (OSError, ValueError, IndexError):
        return
    import ctypes  # Needed only after a postmaster was killed.  # noqa: PLC0415

    remove = 0  # IPC_RMID, on Linux and macOS alike.
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        if libc.shmget(ctypes.c_int(key), ctypes.c_size_t(0), 0) == segment:
            libc.shmctl(segment, remove, None)


@contextlib.contextmanager
def lock(directory: Path) -> Iterator[bool]:
    """Hold the right to end a directory; gives False when another process holds it."""
    try:
        handle = os.open(directory / "guard.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # The directory is being deleted.
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def _wait_for_the_end(parent: int) -> None:
    """Return when the parent says so, closes the pipe, or is gone."""
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], WATCH_S)
        if readable:
            os.read(0, 16)  # Either the word to end or the end of the pipe: both mean the same.
            return


def _main(directory: Path, parent: int) -> None:
    # A signal sent to every process of the user must not take the guard before its work is done.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    with lock(directory):
        _wait_for_the_end(parent)
        asked = os.getppid() == parent
        end(directory)
        if not asked:
            time.sleep(LATE_S)
            end(directory)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]))
