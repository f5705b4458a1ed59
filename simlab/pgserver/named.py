"""A server that the user names in `SIMLAB_DSN`: the laboratory works there in a database of its own.

Owns: that database (or, where making one is not permitted, a schema), made at the start and dropped at the end; and the
dropping of those that killed processes of this machine left, which their names tell.
Must not: write to any other database or schema of that server, change its settings, or show the password.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import socket
from collections.abc import Mapping

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict

from simlab.errors import ServerUnreachable
from simlab.pgserver.base import OLDEST_VERSION, PostgresServer, Unusable, version_text
from simlab.pgserver.directories import is_alive, process_start
from simlab.pgserver.environment import clean_environment, explicit_dsn, without_pg_variables

__all__ = ["DSN_VARIABLE", "NamedServer", "find_named"]

DSN_VARIABLE = "SIMLAB_DSN"

DROP_TIMEOUT = "10s"
"""How long dropping may wait for the locks of somebody who still uses what is dropped."""

_MEND = (
    f"correct {DSN_VARIABLE}, or unset it to use a throwaway server (PG* variables are ignored on purpose)"
)

_log = logging.getLogger(__name__)


def find_named(environ: Mapping[str, str]) -> dict[str, str | int | None]:
    """Read the connection settings that the user gave.

    Parameters
    ----------
    environ
        The environment with `SIMLAB_DSN`.

    Returns
    -------
    dict
        libpq settings by name.

    Raises
    ------
    Unusable
        When the variable is not set, or cannot be read. Its text is not shown: it may hold a password.
    """
    dsn = environ.get(DSN_VARIABLE, "").strip()
    if not dsn:
        raise Unusable(f"{DSN_VARIABLE} is not set")
    try:
        return dict(conninfo_to_dict(dsn))
    except psycopg.ProgrammingError:
        shapes = "postgresql://user@host:5432/dbname or 'host=... dbname=...'"
        raise Unusable(f"{DSN_VARIABLE} cannot be read as a connection string such as {shapes}") from None


def connect_named(environ: Mapping[str, str]) -> psycopg.Connection:
    """Connect to the database that the user named.

    Raises
    ------
    Unusable
        When there is nothing to connect to: not set, unreadable, or too old.
    ServerUnreachable
        When the server does not answer, or refuses.
    """
    settings = find_named(environ)
    try:
        with without_pg_variables():
            connection = psycopg.connect(explicit_dsn(settings), autocommit=True)
    except psycopg.Error as error:
        told = " ".join(str(error).split())
        raise ServerUnreachable(
            f"the server named by {DSN_VARIABLE} cannot be used: {told}", mend=_MEND
        ) from None
    if connection.info.server_version < OLDEST_VERSION:
        version = version_text(connection.info.server_version)
        connection.close()
        raise Unusable(f"PostgreSQL {version} is too old, {version_text(OLDEST_VERSION)} or newer is needed")
    return connection


class NamedServer(PostgresServer):
    """A place of our own on a server that the user named.

    Parameters
    ----------
    environ
        The environment with `SIMLAB_DSN`.

    Attributes
    ----------
    place
        Name of the database or schema made for the laboratory.

    Raises
    ------
    Unusable, ServerUnreachable
        As `connect_named`; also when neither a database nor a schema may be made.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._owner = os.getpid()
        self._environ = clean_environment(environ)
        settings = find_named(environ)
        with connect_named(environ) as connection:
            self._drop_leftovers(connection)
            self.place = f"{_prefix()}{os.getpid()}_{process_start(os.getpid()) or 0}_{secrets.token_hex(4)}"
            self._kind = self._make_place(connection)
            info = connection.info
            version = info.server_version
            where = f"{info.host or 'a local socket'}:{info.port}"
            reached: dict[str, str | int | None] = {
                "host": info.host,
                "port": info.port,
                "user": info.user,
                "dbname": info.dbname,
            }
        if settings.get("hostaddr"):
            reached["hostaddr"] = _address_of(settings, reached)
        if self._kind == "DATABASE":
            reached["dbname"] = self.place
        else:
            reached["options"] = f"{settings.get('options') or ''} -c search_path={self.place}".strip()
        super().__init__(
            source="dsn",
            origin=f"at {where}, in a {self._kind.lower()} of its own, {self.place}",
            dsn=explicit_dsn({**settings, **reached}),
            version=version,
        )
        self._closed = False

    def _make_place(self, connection: psycopg.Connection) -> str:
        name = sql.Identifier(self.place)
        refusals = (errors.InsufficientPrivilege, errors.FeatureNotSupported)
        try:
            connection.execute(
                sql.SQL(
                    "CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'"
                ).format(name)
            )
        except refusals:
            pass
        except psycopg.Error as error:
            raise _unreachable("a database could not be made", error) from None
        else:
            return "DATABASE"
        try:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
        except psycopg.Error as error:
            raise _unreachable("its user may make neither a database nor a schema", error) from None
        return "SCHEMA"

    def _drop_leftovers(self, connection: psycopg.Connection) -> None:
        """Drop what killed processes of this machine left; whatever is in use or not ours to drop, stays."""
        for kind, query in (
            ("DATABASE", "SELECT datname FROM pg_catalog.pg_database WHERE starts_with(datname, %s)"),
            ("SCHEMA", "SELECT nspname FROM pg_catalog.pg_namespace WHERE starts_with(nspname, %s)"),
        ):
            for (name,) in connection.execute(query, [_prefix()]).fetchall():
                named = re.fullmatch(rf"{_prefix()}(\d+)_(\d+)_[0-9a-f]{{8}}", name)
                if named and not is_alive(int(named[1]), int(named[2])):
                    _drop(connection, kind, name, force=False)

    def close(self) -> None:
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        try:
            with connect_named(self._environ) as connection:
                _drop(connection, self._kind, self.place, force=True)
        except (ServerUnreachable, Unusable) as error:
            _log.warning(
                "%s %s is left behind, the next start drops it: %s", self._kind.lower(), self.place, error
            )

    def log_tail(self, lines: int = 40) -> str:
        return ""


def _address_of(settings: Mapping[str, object], reached: Mapping[str, object]) -> str:
    """Pick the address that belongs to the host that was reached, when the user named several."""
    hosts = str(settings.get("host") or "").split(",")
    addresses = str(settings["hostaddr"]).split(",")
    return addresses[hosts.index(str(reached["host"]))] if reached["host"] in hosts else addresses[0]


def _prefix() -> str:
    """Begin the names of what this machine makes, so that another machine's are never taken for leftovers."""
    return f"simlab_{hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]}_"


def _drop(connection: psycopg.Connection, kind: str, name: str, *, force: bool) -> None:
    statement = {
        ("DATABASE", True): "DROP DATABASE IF EXISTS {} WITH (FORCE)",
        ("DATABASE", False): "DROP DATABASE IF EXISTS {}",
        ("SCHEMA", True): "DROP SCHEMA IF EXISTS {} CASCADE",
        ("SCHEMA", False): "DROP SCHEMA IF EXISTS {} CASCADE",
    }[kind, force]
    try:
        connection.execute(sql.SQL("SET lock_timeout = {}").format(DROP_TIMEOUT))
        connection.execute(sql.SQL(statement).format(sql.Identifier(name)))
    except psycopg.Error as error:
        _log.warning("could not drop %s %s: %s", kind.lower(), name, str(error).strip())


def _unreachable(problem: str, error: psycopg.Error) -> ServerUnreachable:
    told = str(error).strip().splitlines()[0]
    return ServerUnreachable(
        f"the server named by {DSN_VARIABLE} cannot be used: {problem} ({told})",
        mend=f"grant its user CREATEDB, or CREATE on the database, or unset {DSN_VARIABLE}",
    )
