"""Which user the server runs as. PostgreSQL refuses to run as root, so root hands it to another user.

Owns: choosing that user, starting programs as that user, and finding out what that user can reach.
Must not: create users or change the permissions of anything that is not ours.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simlab.pgserver.base import Unusable

__all__ = ["Account", "can_reach", "server_account"]

CANDIDATES = ("postgres", "nobody")
"""Unprivileged users that exist on the usual systems, the fitting one first."""


@dataclass(frozen=True, slots=True)
class Account:
    """An unprivileged user to run the server as."""

    name: str
    uid: int
    gid: int


def server_account() -> Account | None:
    """Choose the user to run the server as.

    Returns
    -------
    Account or None
        None when we are not root, and the server simply runs as we do.

    Raises
    ------
    Unusable
        When we are root and none of the usual users exists.
    """
    if os.geteuid() != 0:
        return None
    for name in CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise Unusable(
        f"PostgreSQL does not run as root, and there is no user {' or '.join(CANDIDATES)} to run it as"
    )


def identity(account: Account | None) -> dict[str, Any]:
    """Give the arguments that make `subprocess` run a program as the account."""
    if account is None:
        return {"umask": 0o077}
    return {"user": account.uid, "group": account.gid, "extra_groups": [], "umask": 0o077}


def can_reach(account: Account | None, paths: Iterable[Path]) -> bool:
    """Find out whether the account can really read each path, every directory on the way included.

    The question is put to the system, by asking as that user, because permission bits alone know nothing of
    access lists or of how a volume is mounted. Directories and programs must be executable, too.

    Parameters
    ----------
    account
        The user the server will run as; None for ourselves.
    paths
        Files and directories.

    Returns
    -------
    bool
        False when at least one is out of reach.

    Raises
    ------
    Unusable
        When we may not run anything as that user, as in a container without the right to change users.
    """
    paths = list(paths)
    needs_x = {path for path in paths if path.is_dir() or path.parent.name == "bin"}
    if account is None:
        return all(os.access(path, os.R_OK | (os.X_OK if path in needs_x else 0)) for path in paths)
    tests = [["-r", path] for path in paths] + [["-x", path] for path in needs_x]
    script = 'while test $# -gt 0; do test "$1" "$2" || exit 1; shift 2; done'
    try:
        asked = subprocess.run(
            ["/bin/sh", "-c", script, "sh", *(str(word) for test in tests for word in test)],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            **identity(account),
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unusable(
            f"PostgreSQL does not run as root, and switching to user {account.name} failed ({error})"
        ) from error
    return asked.returncode == 0
