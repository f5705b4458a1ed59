"""A server in a container, by testcontainers, where a Docker engine answers.

Owns: the container. Testcontainers' own reaper removes it when this process is killed.
Must not: import docker or testcontainers before it is asked to; both are optional.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import secrets
import socket
from typing import Any

import psycopg

from simlab.pgserver.base import Options, PostgresServer, Unusable
from simlab.pgserver.environment import explicit_dsn

__all__ = ["ContainerServer", "docker_engine"]

IMAGE = "postgres:18-alpine"
USER = "simlab"
PORT = 5432

DEFAULT_ENGINE = "unix:///var/run/docker.sock"

ENGINE_S = 3
"""How long a Docker engine may take to answer before it counts as none."""


def docker_engine() -> str:
    """Ask the Docker engine for its version.

    Returns
    -------
    str
        The version it tells.

    Raises
    ------
    Unusable
        When testcontainers is not installed, or no engine answers.
    """
    if not all(importlib.util.find_spec(package) for package in ("testcontainers", "docker")):
        raise Unusable("the package testcontainers is not installed")
    address = _engine_address()
    if address.startswith("unix://"):
        _knock(address.removeprefix("unix://"))
    try:
        docker = importlib.import_module("docker")
        client = docker.from_env(timeout=ENGINE_S, environment={**os.environ, "DOCKER_HOST": address})
        try:
            return str(client.version()["Version"])
        finally:
            client.close()
    except Exception as error:  # docker, requests and urllib3 each raise their own.
        raise Unusable(f"no Docker engine answers ({type(error).__name__})") from error


def _engine_address() -> str:
    """Ask testcontainers which engine it would use: its settings, `DOCKER_HOST`, or the current Docker context."""
    client = importlib.import_module("testcontainers.core.docker_client")
    ask = getattr(client, "get_docker_host", lambda: os.environ.get("DOCKER_HOST"))
    return str(ask() or DEFAULT_ENGINE)


def _knock(path: str) -> None:
    """Find out cheaply that nobody listens on a socket; docker's client would leave one of its own open."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(ENGINE_S)
        try:
            probe.connect(path)
        except OSError as error:
            raise Unusable(f"no Docker engine answers at {path} ({error.strerror or error})") from error


def _container_class() -> Any:
    """Import testcontainers' class from where its version has it."""
    try:
        return importlib.import_module("testcontainers.community.postgres").PostgresContainer
    except ModuleNotFoundError:
        return importlib.import_module("testcontainers.postgres").PostgresContainer


class ContainerServer(PostgresServer):
    """A server in a container of its own, on a random port of the engine's host, with a random password.

    Parameters
    ----------
    options
        How to set it up; it listens on TCP whatever they say, and the two connection strings are the same.

    Raises
    ------
    Unusable
        When no engine answers or the container does not start.
    """

    def __init__(self, options: Options) -> None:
        engine = docker_engine()
        self._owner = os.getpid()
        self._closed = False
        synced = "on" if options.durable else "off"
        settings = {"fsync": synced, "full_page_writes": synced, "timezone": "UTC", "jit": "off"}
        password = secrets.token_urlsafe(18)
        container = _container_class()(IMAGE, username=USER, password=password, dbname=USER, driver=None)
        container.with_env("POSTGRES_INITDB_ARGS", "--encoding=UTF8 --no-locale --no-sync")
        container.with_command(["postgres", *(f"-c{name}={value}" for name, value in settings.items())])
        self._container = container
        try:
            container.start()
            where = {"host": container.get_container_host_ip(), "port": container.get_exposed_port(PORT)}
            dsn = explicit_dsn(
                {**where, "user": USER, "dbname": USER, "password": password, "sslmode": "disable"}
            )
            with psycopg.connect(dsn) as connection:
                version = connection.info.server_version
        except Exception as error:
            self.close()
            told = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise Unusable(f"the container of {IMAGE} did not start ({told})") from error
        except BaseException:
            self.close()
            raise
        super().__init__(
            source="docker",
            origin=f"in a container of {IMAGE} on Docker engine {engine}",
            dsn=dsn,
            version=version,
            tcp_dsn=dsn,
        )

    def close(self) -> None:
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        self._container.stop()

    def log_tail(self, lines: int = 40) -> str:
        if self._closed:
            return ""
        told = b"".join(self._container.get_logs()).decode(errors="replace")
        return "\n".join(told.splitlines()[-lines:])
