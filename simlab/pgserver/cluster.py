"""The data directory of a server that we start ourselves: how it is made and what its settings are.

Owns: `initdb`, `postgresql.conf`, who may connect, and the environment the server's programs run in.
Must not: start the server, or write anywhere outside the server's directory.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

from simlab.errors import ServerControlError
from simlab.pgserver.account import Account, identity
from simlab.pgserver.base import Options
from simlab.pgserver.environment import clean_environment

__all__ = [
    "DATABASE",
    "USER",
    "complaint",
    "free_port",
    "make_cluster",
    "server_environment",
    "write_settings",
]

USER = "simlab"
DATABASE = "postgres"

INITDB_S = 120.0
"""How long making a data directory may take; usually about half a second."""

_SETTINGS = {
    "max_connections": "100",
    "shared_buffers": "16MB",
    "autovacuum": "on",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "logging_collector": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    # Files of the data directory instead of /dev/shm, where they would outlive a killed server.
    "dynamic_shared_memory_type": "mmap",
    # A commit that was acknowledged survives the death of every process of the server, always.
    "synchronous_commit": "on",
}


def make_cluster(
    directory: Path, bin_dir: Path, *, account: Account | None, options: Options, password: str
) -> None:
    """Make ``data``, ``socket`` and ``log`` in a server directory.

    Everybody who can reach the socket is trusted, and only the server's user can. Over TCP, which every user of the
    machine can reach, a password is asked for.

    Parameters
    ----------
    directory
        The server directory, empty.
    bin_dir
        Where `initdb` is.
    account
        The user the server runs as.
    options
        Whether TCP is wanted.
    password
        For TCP.

    Raises
    ------
    ServerControlError
        When `initdb` fails; the log says why.
    """
    for name in ("data", "socket"):
        made = directory / name
        made.mkdir(mode=0o700)
        _hand_over(made, account)
    (directory / "log").touch(mode=0o600)
    command = [str(bin_dir / "initdb"), "-D", str(directory / "data"), "--username", USER]
    command += ["--encoding=UTF8", "--no-locale", "--no-sync", "--auth-local=trust"]
    if not options.tcp:
        _run_initdb([*command, "--auth-host=reject"], directory, account)
        return
    password_file = directory / "password"
    password_file.touch(mode=0o600)
    password_file.write_text(f"{password}\n")
    _hand_over(password_file, account)
    _run_initdb([*command, "--auth-host=scram-sha-256", f"--pwfile={password_file}"], directory, account)
    password_file.unlink()


def _hand_over(path: Path, account: Account | None) -> None:
    if account is not None:
        shutil.chown(path, account.uid, account.gid)


def _run_initdb(command: list[str], directory: Path, account: Account | None) -> None:
    with (directory / "log").open("ab") as log:
        done = subprocess.run(
            command,
            cwd=directory,
            env=server_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=INITDB_S,
            check=False,
            start_new_session=True,
            **identity(account),
        )
    if done.returncode != 0:
        said = complaint((directory / "log").read_text(errors="replace"))
        raise ServerControlError(f"initdb ended with {done.returncode}: {said}")


def complaint(log: str) -> str:
    """Pick the line of a log that says what went wrong last."""
    told = [line for line in log.splitlines() if line.strip()]
    bad = [line for line in told if "FATAL" in line or "error:" in line]
    return (bad or told or ["it said nothing"])[-1]


def write_settings(directory: Path, *, options: Options, port: int) -> None:
    """Append our settings to ``postgresql.conf``; what is said last counts.

    Parameters
    ----------
    directory
        The server directory.
    options
        Whether to be durable and whether to listen on TCP.
    port
        Of the TCP address, and in the socket's name.
    """
    synced = "on" if options.durable else "off"
    settings = _SETTINGS | {
        "listen_addresses": "127.0.0.1" if options.tcp else "",
        "port": str(port),
        "unix_socket_directories": str(directory / "socket"),
        # Shown in the process table, by which the guard knows this server's processes.
        "cluster_name": directory.name,
        "fsync": synced,
        "full_page_writes": synced,
    }
    lines = [f"{name} = '{value}'" for name, value in settings.items()]
    with (directory / "data" / "postgresql.conf").open("a") as file:
        file.write("\n".join(["", "# Written by simlab.pgserver", *lines, ""]))


def server_environment() -> dict[str, str]:
    """Give the environment for PostgreSQL's own programs: no `PG*`, no locale, UTC."""
    # With TZ set, initdb need not compare the machine's clock with every zone on earth.
    kept = {name: value for name, value in clean_environment().items() if not name.startswith("LC_")}
    return kept | {"LC_ALL": "C", "LANG": "C", "TZ": "UTC"}


def free_port() -> int:
    """Find a port of 127.0.0.1 that is free now. Another program may take it before the server does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
