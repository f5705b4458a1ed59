"""What every source of a server has in common: the handle that users hold, the options, and the inner error.

Owns: `PostgresServer`, the interface; `Options`; `Unusable`.
Must not: start anything, or know how a particular source works.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from psycopg.conninfo import conninfo_to_dict

from simlab.errors import ServerControlError

__all__ = [
    "OLDEST_VERSION",
    "Options",
    "PostgresServer",
    "SourceName",
    "StopMode",
    "Unusable",
    "version_text",
]

SourceName = Literal["dsn", "embedded", "docker", "system"]
StopMode = Literal["fast", "immediate"]

OLDEST_VERSION = 130000
"""PostgreSQL 13 brought ``DROP DATABASE ... WITH (FORCE)``, on which cleaning up relies."""


class Unusable(Exception):
    """A source cannot be used; the text says why, in a few words. Never leaves the package."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a server that we start ourselves is to be set up.

    Parameters
    ----------
    durable
        Leave fsync and full_page_writes on, as in production. Off by default: a throwaway server outlives the
        death of its processes either way, and only a power cut of the whole machine makes the difference.
    tcp
        Also listen on a free port of 127.0.0.1, with a random password.
    """

    durable: bool = False
    tcp: bool = False


def version_text(version: int) -> str:
    """Write a ``server_version_num`` as people do: 180006 as ``18.6``."""
    return f"{version // 10000}.{version % 10000}"


class PostgresServer(ABC):
    """A PostgreSQL server to work on and throw away. Also a context manager: leaving it closes it.

    Parameters
    ----------
    source
        Where it came from: ``"dsn"``, ``"embedded"``, ``"docker"`` or ``"system"``.
    origin
        The same in words, with the place or the package.
    dsn
        Connection string; says everything libpq needs, so that no `PG*` variable changes it.
    version
        The server's ``server_version_num``, such as 180006.
    tcp_dsn
        Connection string over 127.0.0.1, when the server was asked to listen there.

    Attributes
    ----------
    why
        One sentence: which server was taken, and why this one.
    """

    def __init__(
        self, *, source: SourceName, origin: str, dsn: str, version: int, tcp_dsn: str | None = None
    ) -> None:
        self.source: SourceName = source
        self.origin = origin
        self.dsn = dsn
        self.version = version
        self.tcp_dsn = tcp_dsn
        self.why = f"{source}: PostgreSQL {version_text(version)}, {origin}."

    def __repr__(self) -> str:
        # Without the password.
        where = conninfo_to_dict(self.dsn)
        told = " ".join(f"{name}={where[name]}" for name in ("host", "port", "dbname") if where.get(name))
        return f"<PostgresServer {self.source} {version_text(self.version)} {told}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Stop what was started, remove what was made. Calling it again does nothing."""

    @abstractmethod
    def log_tail(self, lines: int = 40) -> str:
        """Give the last lines of the server's log, or the empty string when it cannot be had."""

    @property
    def pid(self) -> int:
        """Process id of the postmaster, to send signals to.

        Raises
        ------
        ServerControlError
            When the server is stopped, or was not started by us.
        """
        raise self._not_ours("its process id")

    @property
    def running(self) -> bool:
        """Whether the postmaster is alive, as far as we can know."""
        return True

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and keep its data, for a later `start`.

        Parameters
        ----------
        mode
            ``"fast"`` disconnects everyone and shuts down in order; ``"immediate"`` is PostgreSQL's own crash:
            the next start has to recover from the log.

        Raises
        ------
        ServerControlError
            When the server was not started by us.
        """
        raise self._not_ours("stopping it")

    def start(self) -> None:
        """Start the server again after `stop` or after its postmaster was killed: same data, same `dsn`.

        Raises
        ------
        ServerControlError
            When it still runs, does not come up, or was not started by us.
        """
        raise self._not_ours("starting it")

    def _not_ours(self, what: str) -> ServerControlError:
        return ServerControlError(
            f"{what} is not possible on a server from source {self.source!r}; "
            "use source='embedded' or 'system', where the laboratory starts the server itself"
        )
