"""A PostgreSQL server to work on and throw away: taken from where it can be had, gone without trace afterwards.

Owns: the choice of a server (the one `SIMLAB_DSN` names, else the embedded wheel, a container, a system
installation), its start and its end. Nothing runs on and nothing stays on disk after a normal exit, an exception,
Ctrl-C, SIGTERM or SIGKILL of this process: a guard process sees to it, and the next start clears what even that left.
Must not: read `PG*` variables, touch anybody's data, or run anything as root.

Linux and macOS. Windows is out of scope: its server has no Unix sockets by default, no signals and no such users.

::

    choice ── which source, and why          environment ── keeping PG* out
      ├── named        SIMLAB_DSN            account     ── not as root
      ├── local        initdb and postgres   installs    ── where the programs are
      │     └── guard  ends it, whatever     directories ── whose files, and leftovers
      └── container    testcontainers        base        ── what all have in common
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from simlab.pgserver.base import Options, PostgresServer
from simlab.pgserver.choice import SourceReport, open_postgres, survey
from simlab.pgserver.directories import clear_leftovers, leftovers
from simlab.pgserver.environment import clean_environment, without_pg_variables

__all__ = [
    "PostgresServer",
    "SourceReport",
    "clean_environment",
    "clear_leftovers",
    "leftovers",
    "survey",
    "throwaway_postgres",
    "without_pg_variables",
]


@contextmanager
def throwaway_postgres(
    source: str | None = None, *, durable: bool = False, tcp: bool = False
) -> Iterator[PostgresServer]:
    """Open a PostgreSQL server for the length of a ``with`` block.

    Inside the block this process has no `PG*` variables, so that no connection takes its database from there by
    accident. Give other processes `clean_environment`.

    Parameters
    ----------
    source
        ``"embedded"``, ``"docker"``, ``"system"`` or ``"dsn"`` to use that one or fail. By default the variable
        `SIMLAB_POSTGRES` says so, else `SIMLAB_DSN` names a server, else the first that works is taken, in the
        order embedded, docker, system.
    durable
        Leave fsync and full_page_writes on. Has no say on a server that the user named.
    tcp
        Let a server that we start listen on a free port of 127.0.0.1, too, with a random password: `tcp_dsn`.

    Yields
    ------
    PostgresServer
        With `dsn`, and with `why`, one sentence that says which server was taken and why.

    Raises
    ------
    PostgresUnavailable
        When none can be had, or not the one asked for: what was tried, why not, and the mend, on one line.

    Examples
    --------
    >>> with throwaway_postgres() as server:  # doctest: +SKIP
    ...     psycopg.connect(server.dsn).execute("SELECT 1")
    """
    with (
        without_pg_variables(),
        open_postgres(source, Options(durable=durable, tcp=tcp), os.environ) as server,
    ):
        yield server
