"""Keeps the user's own PostgreSQL settings out: `PG*` variables, and the defaults libpq would take from them.

Owns: environments without `PG*`, and connection strings that say everything libpq would otherwise look up.
Must not: read any `PG*` variable. Nobody's real database is touched because a shell happened to name it.

A connection string cannot cover all of it: ``PGSERVICE`` has no neutral value, and ``PGTZ``, ``PGDATESTYLE`` and
``PGGEQO`` are sent with every connection whatever the string says
(https://www.postgresql.org/docs/current/libpq-envars.html). Hence both measures.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from psycopg.conninfo import make_conninfo

__all__ = ["clean_environment", "explicit_dsn", "without_pg_variables"]

_NEUTRAL = {
    "hostaddr": "",
    "password": "",
    "options": "",
    "client_encoding": "UTF8",
    "connect_timeout": "10",
    "sslmode": "prefer",
    "gssencmode": "disable",
    "channel_binding": "prefer",
    "target_session_attrs": "any",
    "requirepeer": "",
}
"""Every setting that decides where a connection goes or whether it succeeds, at libpq's own default."""


def clean_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Copy an environment without its `PG*` variables; for every process that is to use a throwaway server.

    Parameters
    ----------
    environ
        The environment to copy; this process's own when not given.

    Returns
    -------
    dict
        The copy.
    """
    original = os.environ if environ is None else environ
    return {name: value for name, value in original.items() if not name.startswith("PG")}


@contextmanager
def without_pg_variables() -> Iterator[None]:
    """Take the `PG*` variables out of this process's environment, and put them back at the end."""
    taken = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PG")}
    try:
        yield
    finally:
        os.environ.update(taken)


def explicit_dsn(settings: Mapping[str, str | int | None]) -> str:
    """Make a connection string in which libpq's environment has no say.

    Parameters
    ----------
    settings
        At least ``host``, ``port``, ``user`` and ``dbname``; anything else overrides the neutral value.

    Returns
    -------
    str
        A ``key=value`` connection string.
    """
    missing = {name: value for name, value in _NEUTRAL.items() if name not in settings}
    return make_conninfo("", **{**settings, **missing})
