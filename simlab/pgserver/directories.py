"""Server directories: where they are made, whose they are, and the clearing of those a killed process left.

Owns: the name ``simlab-pg-<uid>-<pid>-<start>-<random>``, which is the whole registry. It names the owner by
process id and start time, so there is no moment at which a directory exists and its owner is unknown, and a reused
process id is not taken for the owner.
Must not: touch a directory whose owner lives, whose guard lives, or that belongs to another user.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
import tempfile
import time
from calendar import timegm
from collections.abc import Iterator
from pathlib import Path

from simlab.pgserver import guard
from simlab.pgserver.account import Account, can_reach, server_account
from simlab.pgserver.base import Unusable

__all__ = ["clear_leftovers", "create", "is_alive", "leftovers", "process_start"]

SOCKET_PATH_LIMIT = 100
"""Bytes; the kernel's limit is 107 on Linux and 103 on macOS."""

_NAME = re.compile(r"simlab-pg-(?P<uid>\d+)-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]{8}")


def create(account: Account | None) -> Path:
    """Make an empty server directory, in the first temporary place that fits.

    Parameters
    ----------
    account
        The user the server runs as; it can pass through the directory, not list or change it.

    Returns
    -------
    Path
        The directory, owned by us.

    Raises
    ------
    Unusable
        When no place is short enough for a socket, writable for us and reachable for the account.
    """
    start = process_start(os.getpid()) or 0
    name = f"simlab-pg-{os.geteuid()}-{os.getpid()}-{start}-{secrets.token_hex(4)}"
    for place in _places():
        directory = place / name
        longest = directory / "socket" / ".s.PGSQL.65535"
        if len(os.fsencode(longest)) > SOCKET_PATH_LIMIT or not can_reach(account, [place]):
            continue
        with contextlib.suppress(OSError):
            directory.mkdir(mode=0o700)
            directory.chmod(0o711 if account else 0o700)
            return directory
    tried = " nor ".join(str(place) for place in _places())
    raise Unusable(
        f"neither {tried} is writable, short enough for a socket and reachable for the server's user"
    )


def _places() -> list[Path]:
    # The real path, because a server shows that in the process table.
    return list(dict.fromkeys(Path(place).resolve() for place in (tempfile.gettempdir(), "/tmp")))  # noqa: S108


def leftovers() -> list[Path]:
    """List the server directories of this user whose owner is dead, and whose guard is too.

    Returns
    -------
    list of Path
        Usually empty: the guard of a killed process removes its directory within a second or so.
    """
    return [directory for directory in _abandoned() if _guard_is_gone(directory)]


def clear_leftovers() -> list[Path]:
    """Stop the servers and delete the directories that killed processes of this user left.

    Returns
    -------
    list of Path
        What was cleared.
    """
    cleared = []
    for directory in _abandoned():
        with guard.lock(directory) as free:
            if free and guard.end(directory):
                cleared.append(directory)
    return cleared


def _guard_is_gone(directory: Path) -> bool:
    if not (directory / "guard.lock").exists():
        return True
    with guard.lock(directory) as free:
        return free


def _abandoned() -> Iterator[Path]:
    account = server_account()
    owners = {os.geteuid(), account.uid if account else os.geteuid()}
    for place in _places():
        for entry in place.glob("simlab-pg-*"):
            named = _NAME.fullmatch(entry.name)
            if named is None or int(named["uid"]) != os.geteuid() or not _is_our_directory(entry, owners):
                continue
            if not is_alive(int(named["pid"]), int(named["start"])):
                yield entry


def _is_our_directory(path: Path, owners: set[int]) -> bool:
    try:
        return path.is_dir() and not path.is_symlink() and path.lstat().st_uid in owners
    except OSError:
        return False


def is_alive(pid: int, start: int) -> bool:
    """Tell whether the process that had this id at that start time still runs.

    Parameters
    ----------
    pid
        Process id.
    start
        What `process_start` said then; 0 when it could not tell, and then any process with the id counts.
    """
    now = process_start(pid)
    return now is not None and start in {0, now}


def process_start(pid: int) -> int | None:
    """Give the start time of a process, in a unit that only means something on this machine.

    Returns
    -------
    int or None
        None when there is no such process, or only its zombie.
    """
    if Path("/proc/self/stat").exists():
        return _start_from_proc(pid)
    return _start_from_ps(pid)


def _start_from_proc(pid: int) -> int | None:
    try:
        told = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold anything, so fields are counted after the last parenthesis (proc(5)).
    state, *fields = told.rpartition(")")[2].split()
    return None if state in {"Z", "X"} else int(fields[18])


def _start_from_ps(pid: int) -> int | None:
    told = subprocess.run(
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)],
        env={"LC_ALL": "C", "TZ": "UTC"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split(maxsplit=1)
    if len(told) != 2 or told[0].startswith("Z"):
        return None
    return timegm(time.strptime(told[1].strip(), "%a %b %d %H:%M:%S %Y"))
