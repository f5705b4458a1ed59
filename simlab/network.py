"""The network between a host and the database: latency, lost requests, lost replies, and cuts.

A call is a message out, work at the far end, and a message back. Losing the first means nothing happened;
losing the second means it happened and the caller will never know. The caller sees the same silence.

:class:`NetworkStore` puts this between a scheduler and any Store, and records at the store's side what the
store did, the same way whichever store it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from scheduler.errors import StoreUnavailable
from scheduler.jobs import Job, LeaseRef, NewJob
from scheduler.store import (
    CancelReply,
    ClaimReply,
    ClaimRequest,
    EnqueueReply,
    FinishReply,
    HeartbeatReply,
    Outcome,
    ReplayReply,
    StartReply,
    Stats,
    Store,
    SweepReply,
)
from simlab.clock import SimEvent
from simlab.errors import SimulationError
from simlab.hosts import Host, Incarnation

if TYPE_CHECKING:
    from scheduler.policy import RandomStream
    from simlab.recorder import Recorder
    from simlab.streams import Streams

__all__ = ["Conditions", "Fate", "Latency", "Network", "NetworkStore"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Latency:
    """A one-way travel time, uniform between two bounds in microseconds, both included."""

    low_us: int = 200
    high_us: int = 1500

    def __post_init__(self) -> None:
        whole = type(self.low_us) is int and type(self.high_us) is int
        if not whole or not 0 <= self.low_us <= self.high_us:
            raise SimulationError(
                f"latency from {self.low_us} to {self.high_us} us: must be 0 <= low <= high"
            )


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one call: which of its messages arrive, and how much later than usual."""

    request_arrives: bool = True
    reply_arrives: bool = True
    request_delay_us: int = 0
    reply_delay_us: int = 0


class Conditions:
    """What the network and the store are like just now; a laboratory changes it as the story goes.

    Attributes
    ----------
    extra_us
        By how much every call takes longer.
    down
        Whether the store is down. Calls that arrive are refused.
    connections
        Rises whenever all connections are dropped: what was under way is lost then.
    no_requests, no_replies
        The hosts whose messages do not pass, and for how many reasons each.
    """

    __slots__ = ("connections", "down", "extra_us", "no_replies", "no_requests")

    def __init__(self) -> None:
        self.extra_us = 0
        self.down = False
        self.connections = 0
        self.no_requests: Counter[str] = Counter()
        self.no_replies: Counter[str] = Counter()


class Network:
    """Carries calls from hosts to the database's host.

    Parameters
    ----------
    far
        The host that serves the calls.
    decide
        Says what becomes of a call, given the caller's host and the verb; asked once a call, at its sending.
    conditions
        What the network and the store are like, looked at whenever a message is sent or arrives.
    """

    def __init__(
        self,
        *,
        streams: Streams,
        far: Host,
        latency: Latency,
        decide: Callable[[Host, str], Fate],
        conditions: Conditions | None = None,
    ) -> None:
        self._streams = streams
        self._far = far
        self._latency = latency
        self._decide = decide
        self.conditions = conditions if conditions is not None else Conditions()
        self._chances: dict[str, RandomStream] = {}

    def _chance(self, host: str) -> RandomStream:
        if host not in self._chances:
            self._chances[host] = self._streams.stream(f"network/{host}")
        return self._chances[host]

    async def call(
        self, life: Incarnation, verb: str, serve: Callable[[], Awaitable[T]], *, timeout_us: int
    ) -> T:
        """Carry one call there and back.

        Raises
        ------
        StoreUnavailable
            If no reply came within `timeout_us` on the caller's own clock.
        """
        chance = self._chance(life.host.name)
        latency = self._latency
        # Drawn for every call and both ways, so that a lost message does not change the ones after it.
        out_us = chance.randint(latency.low_us, latency.high_us)
        back_us = chance.randint(latency.low_us, latency.high_us)
        fate = self._decide(life.host, verb)
        arrived = SimEvent(life)
        answer: list[T | StoreUnavailable] = []
        conditions, name = self.conditions, life.host.name
        connection = conditions.connections
        request_passes = fate.request_arrives and not conditions.no_requests[name]

        async def served() -> T | StoreUnavailable:
            if conditions.down or conditions.connections != connection:
                return StoreUnavailable(f"{verb}: the connection was refused or lost")
            try:
                return await serve()
            except StoreUnavailable as error:
                return error
            except Exception as error:
                # A mistake in the store or the laboratory, not an event of the story.
                self._far.kernel.fail(error)
                raise

        async def travel() -> None:
            clock = self._far.clock
            await clock.sleep_us(out_us + conditions.extra_us + fate.request_delay_us)
            if not request_passes:
                return
            reply = await served()
            reply_passes = fate.reply_arrives and not conditions.no_replies[name]
            await clock.sleep_us(back_us + fate.reply_delay_us)
            if reply_passes:
                if conditions.connections != connection:
                    reply = StoreUnavailable(f"{verb}: the connection was lost")
                answer.append(reply)
                arrived.set()

        self._far.clock.spawn(travel(), f"{verb} from {life.host.name}")
        if not await arrived.wait(timeout_us):
            raise StoreUnavailable(f"no answer to {verb} within {timeout_us / 1e6:g} s")
        reply = answer[0]
        if isinstance(reply, StoreUnavailable):
            raise reply
        return reply


class NetworkStore:
    """A Store as one life of a host sees it: through the network, and recorded."""

    def __init__(
        self, store: Store, *, network: Network, life: Incarnation, recorder: Recorder, timeout_us: int
    ) -> None:
        self._store = store
        self._network = network
        self._life = life
        self._recorder = recorder
        self._timeout_us = timeout_us

    async def _call(
        self, verb: str, ask: Callable[[], Awaitable[T]], record: Callable[[T], None] | None = None
    ) -> T:
        async def serve() -> T:
            reply = await ask()
            if record is not None:
                record(reply)
            return reply

        return await self._network.call(self._life, verb, serve, timeout_us=self._timeout_us)

    async def enqueue(self, jobs: Sequence[NewJob], /) -> EnqueueReply:
        record = self._recorder.enqueued(self._life, jobs)
        return await self._call("enqueue", lambda: self._store.enqueue(jobs), record)

    async def claim(self, request: ClaimRequest, /) -> ClaimReply:
        record = self._recorder.claimed(self._life, request)
        return await self._call("claim", lambda: self._store.claim(request), record)

    async def sweep(self, *, limit: int) -> SweepReply:
        record = self._recorder.swept(self._life)
        return await self._call("sweep", lambda: self._store.sweep(limit=limit), record)

    async def start(self, refs: Sequence[LeaseRef], /) -> StartReply:
        record = self._recorder.started(self._life, refs)
        return await self._call("start", lambda: self._store.start(refs), record)

    async def heartbeat(self, refs: Sequence[LeaseRef], /, *, lease_us: int) -> HeartbeatReply:
        record = self._recorder.renewed(self._life, refs, lease_us)
        return await self._call("heartbeat", lambda: self._store.heartbeat(refs, lease_us=lease_us), record)

    async def finish(self, outcomes: Sequence[Outcome], /) -> FinishReply:
        record = self._recorder.finished(self._life, outcomes)
        return await self._call("finish", lambda: self._store.finish(outcomes), record)

    async def cancel(self, job_ids: Sequence[UUID], /) -> CancelReply:
        record = self._recorder.cancelled(self._life)
        return await self._call("cancel", lambda: self._store.cancel(job_ids), record)

    async def replay(self, job_ids: Sequence[UUID], /) -> ReplayReply:
        record = self._recorder.replayed(self._life)
        return await self._call("replay", lambda: self._store.replay(job_ids), record)

    async def get(self, job_id: UUID, /) -> Job | None:
        return await self._call("get", lambda: self._store.get(job_id))

    async def stats(self) -> Stats:
        return await self._call("stats", self._store.stats)
