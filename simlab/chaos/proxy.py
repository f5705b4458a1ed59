"""A TCP proxy on loopback in front of PostgreSQL: the network that can be made to fail in each of its ways.

All proxies of a run live on one event loop in one thread. Conditions are set from any thread and hold for
connections that are open as well as for new ones. Must not: listen or connect anywhere but on this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["Proxy", "ProxyThread"]

_CHUNK = 65_536

LOOK_S = 0.02
"""How often a connection in silence looks whether it is over."""

START_S = 10.0
"""How long the thread, or a listener, may take to be there."""


class Proxy:
    """One listening port, and what happens to the bytes that pass.

    Attributes
    ----------
    swallowed
        How many bytes of the server's were never passed on.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str, port: int) -> None:
        self._loop = loop
        self._upstream = (host, port)
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self.delay_s = 0.0
        self.silent = False
        self.refusing = False
        self.swallowing = False
        self.swallowed = 0
        self.port = 0

    async def open(self) -> None:
        """Listen on a free port of 127.0.0.1."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and cut everything."""
        if self._server is not None:
            self._server.close()
        for link in tuple(self._links):
            link.cut()

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._links)

    # What a laboratory does, from any thread.

    def set_delay(self, seconds: float) -> None:
        """Let every byte, both ways, come later by so much; 0 for at once."""
        self._soon(lambda: setattr(self, "delay_s", seconds))

    def cut(self, *, and_refuse: bool = False) -> None:
        """Cut every connection now; with `and_refuse` also every new one, until `heal`."""

        def act() -> None:
            self.refusing = and_refuse
            self._cut_all()

        self._soon(act)

    def fall_silent(self) -> None:
        """Keep connections open and carry nothing either way, until `heal`, which cuts what was silent."""
        self._soon(lambda: setattr(self, "silent", True))

    def swallow_replies(self) -> None:
        """Carry requests and no replies, until `heal`, which cuts the connections that lost one."""
        self._soon(lambda: setattr(self, "swallowing", True))

    def heal(self) -> None:
        """Carry everything again. Connections from which bytes are missing are cut."""

        def act() -> None:
            self.delay_s, self.refusing = 0.0, False
            self.silent = self.swallowing = False
            for link in tuple(self._links):
                if link.lost:
                    link.cut()

        self._soon(act)

    def _soon(self, act: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            act()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait(START_S)

    def _cut_all(self) -> None:
        for link in tuple(self._links):
            link.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            _abort(writer)
            return
        link = _Link(self, writer)
        self._links.add(link)
        try:
            # Cancelled only when all of it ends; a stream's callback in asyncio would report that as an error.
            with contextlib.suppress(asyncio.CancelledError):
                await link.carry(reader, self._upstream)
        finally:
            self._links.discard(link)


class _Link:
    """One connection through a proxy: two directions, cut together."""

    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = client
        self._server: asyncio.StreamWriter | None = None
        self.lost = False

    async def carry(self, from_client: asyncio.StreamReader, upstream: tuple[str, int]) -> None:
        try:
            from_server, self._server = await asyncio.open_connection(*upstream)
            if self._proxy.refusing:
                return
            await asyncio.gather(
                self._pump(from_client, self._server, replies=False),
                self._pump(from_server, self._client, replies=True),
            )
        except OSError:
            pass  # The other side is gone: that is told by cutting this one.
        finally:
            self.cut()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool
    ) -> None:
        proxy = self._proxy
        while data := await reader.read(_CHUNK):
            if proxy.delay_s:
                await asyncio.sleep(proxy.delay_s)
            while proxy.silent:
                self.lost = True
                await asyncio.sleep(LOOK_S)
            # What has once lost bytes makes no sense to its reader any more: nothing passes until it is cut.
            if replies and (proxy.swallowing or self.lost):
                self.lost = True
                proxy.swallowed += len(data)
                continue
            writer.write(data)
            await writer.drain()
        self.cut()

    def cut(self) -> None:
        """Reset both sides."""
        _abort(self._client)
        if self._server is not None:
            _abort(self._server)


def _abort(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        writer.transport.abort()


class ProxyThread:
    """The event loop, in a thread, on which the proxies of a run live. A context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="simlab-proxies", daemon=True)
        self._proxies: list[Proxy] = []

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S)
        self._loop.close()

    async def _end(self) -> None:
        for proxy in self._proxies:
            await proxy.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def open(self, host: str, port: int) -> Proxy:
        """Open one more proxy in front of a server on this machine."""
        proxy = Proxy(self._loop, host, port)
        asyncio.run_coroutine_threadsafe(proxy.open(), self._loop).result(START_S)
        self._proxies.append(proxy)
        return proxy
