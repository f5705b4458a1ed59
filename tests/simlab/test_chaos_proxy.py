"""The proxy carries, delays, cuts, falls silent, and loses replies, in front of a server that echoes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from simlab.chaos.proxy import Proxy, ProxyThread
from tests.waiting import wait_for

PATIENCE_S = 10.0
SHORT_S = 0.3


class Echo:
    """A server that sends back what it gets, and remembers it."""

    def __init__(self) -> None:
        self.heard = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1000):
                    self.heard += data
                    connection.sendall(data)
            except OSError:
                return  # The proxy has cut it.

    def close(self) -> None:
        # Closing alone would leave the thread in its accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with ProxyThread() as network:
        yield network.open("127.0.0.1", echo.port)


@pytest.fixture
def line(proxy: Proxy) -> Iterator[socket.socket]:
    with dial(proxy) as connection:
        yield connection


def dial(proxy: Proxy) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_S)
    connection.settimeout(PATIENCE_S)
    return connection


def asked(line: socket.socket, text: bytes) -> bytes:
    line.sendall(text)
    return line.recv(1000)


def is_cut(line: socket.socket) -> bool:
    try:
        return line.recv(1000) == b""
    except ConnectionResetError:
        return True


def test_it_carries_both_ways(line: socket.socket, proxy: Proxy) -> None:
    assert asked(line, b"hello") == b"hello"
    assert proxy.connections == 1


def test_a_delay_holds_for_open_connections_and_ends(line: socket.socket, proxy: Proxy) -> None:
    asked(line, b"before")
    proxy.set_delay(SHORT_S)
    began = time.monotonic()
    assert asked(line, b"slow") == b"slow"
    assert time.monotonic() - began >= 2 * SHORT_S, "there and back again"
    proxy.heal()
    assert asked(line, b"after") == b"after"
    assert proxy.connections == 1, "what was only late is not cut"


def test_a_cut_ends_what_is_open_and_refuses_what_comes(line: socket.socket, proxy: Proxy) -> None:
    asked(line, b"before")
    proxy.cut(and_refuse=True)
    assert is_cut(line)
    with dial(proxy) as late:
        assert is_cut(late)
    proxy.heal()
    with dial(proxy) as again:
        assert asked(again, b"again") == b"again"


def test_silence_carries_nothing_and_healing_cuts_what_was_silent(
    line: socket.socket, proxy: Proxy, echo: Echo
) -> None:
    asked(line, b"before")
    proxy.fall_silent()
    line.sendall(b"into the void")
    line.settimeout(SHORT_S)
    with pytest.raises(TimeoutError):
        line.recv(1000)
    assert echo.heard == b"before"
    line.settimeout(PATIENCE_S)
    proxy.heal()
    assert is_cut(line)
    with dial(proxy) as again:
        assert asked(again, b"again") == b"again"


def test_lost_replies_are_lost_though_the_request_was_served(
    line: socket.socket, proxy: Proxy, echo: Echo
) -> None:
    asked(line, b"before ")
    proxy.swallow_replies()
    line.sendall(b"during")
    wait_for(lambda: echo.heard == b"before during" and proxy.swallowed == len(b"during"))
    line.settimeout(SHORT_S)
    with pytest.raises(TimeoutError):
        line.recv(1000)
    line.settimeout(PATIENCE_S)
    proxy.heal()
    assert is_cut(line), "a reader that misses bytes must not read on"


def test_nothing_is_left_when_it_ends(echo: Echo) -> None:
    with ProxyThread() as network:
        proxy = network.open("127.0.0.1", echo.port)
        line = dial(proxy)
        asked(line, b"hello")
    with line:
        assert is_cut(line)
    with pytest.raises(OSError, match="refused"):
        dial(proxy)
    assert "simlab-proxies" not in {thread.name for thread in threading.enumerate()}
