"""The network: latency within its bounds, silence after a lost message, and chance that a fault leaves alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import StoreUnavailable
from simlab.clock import SimTask
from simlab.errors import SimulationError
from simlab.hosts import Host
from simlab.network import Fate, Latency, Network
from tests.simlab.bench import MS, SECOND, Bench


class Wire:
    """Two hosts, a far end that counts what it served, and a fate for each call in turn."""

    def __init__(self, *, latency: Latency, fates: dict[int, Fate] | None = None, seed: int = 1) -> None:
        self.bench = Bench(seed=seed)
        self.far = self.bench.add("database")
        self.other = self.bench.add("w2")
        self.fates = fates if fates is not None else {}
        self.asked = 0
        self.served: list[tuple[str, int]] = []
        self.heard: list[tuple[str, int]] = []
        self.network = Network(streams=self.bench.streams, far=self.far, latency=latency, decide=self._decide)

    def _decide(self, host: Host, verb: str) -> Fate:
        del host, verb
        self.asked += 1
        return self.fates.get(self.asked, Fate())

    def call(self, name: str, *, host: Host | None = None, timeout_us: int = SECOND) -> SimTask:
        source = host if host is not None else self.bench.host

        async def serve() -> str:
            self.served.append((name, self.bench.now_us))
            return f"reply to {name}"

        async def asks() -> None:
            reply = await self.network.call(source.life, "claim", serve, timeout_us=timeout_us)
            assert reply == f"reply to {name}"
            self.heard.append((name, self.bench.now_us))

        return source.clock.spawn(asks(), name)


# Latency.


@given(seed=st.integers(0, 10**6), low=st.integers(0, 1000), more=st.integers(0, 1000))
def test_each_way_takes_between_the_bounds(seed, low, more):
    wire = Wire(latency=Latency(low, low + more), seed=seed)
    for number in range(20):
        began_us = wire.bench.now_us
        wire.call(str(number))
        wire.bench.until(began_us + 10 * MS)
        out_us = wire.served[-1][1] - began_us
        back_us = wire.heard[-1][1] - wire.served[-1][1]
        assert low <= out_us <= low + more
        assert low <= back_us <= low + more
    assert len(wire.served) == len(wire.heard) == 20


def test_both_bounds_are_reached():
    wire = Wire(latency=Latency(3, 5))
    for number in range(100):
        wire.call(str(number))
    wire.bench.until(100)
    assert {at for _, at in wire.served} == {3, 4, 5}


@pytest.mark.parametrize(("low", "high"), [(-1, 5), (6, 5), (0.5, 2), (1, 2.0), (True, 2)])
def test_an_impossible_latency_is_refused(low, high):
    with pytest.raises(SimulationError, match="latency from"):
        Latency(low, high)


# Losing messages.


def test_a_lost_request_means_that_nothing_happened():
    wire = Wire(latency=Latency(100, 100), fates={1: Fate(request_arrives=False)})
    task = wire.call("first")
    wire.bench.until(2 * SECOND)
    assert wire.served == []
    assert isinstance(task.error(), StoreUnavailable)
    assert str(task.error()) == "no answer to claim within 1 s"


def test_a_lost_reply_means_that_it_happened_and_nobody_can_know():
    wire = Wire(latency=Latency(100, 100), fates={1: Fate(reply_arrives=False)})
    task = wire.call("first")
    wire.bench.until(2 * SECOND)
    assert wire.served == [("first", 100)]
    assert isinstance(task.error(), StoreUnavailable)


def test_the_two_losses_are_the_same_silence_to_the_caller():
    silences = []
    for fate in (Fate(request_arrives=False), Fate(reply_arrives=False)):
        wire = Wire(latency=Latency(100, 100), fates={1: fate})
        task = wire.call("first")
        while not task.done():
            wire.bench.kernel.step()
        silences.append((wire.bench.now_us, str(task.error())))
    assert silences[0] == silences[1]
    assert silences[0][0] == SECOND


def test_a_late_reply_is_ignored_and_the_next_call_has_its_own():
    wire = Wire(latency=Latency(100, 100), fates={1: Fate(reply_delay_us=3 * SECOND)})
    first = wire.call("first")
    wire.bench.until(SECOND + 1)
    assert isinstance(first.error(), StoreUnavailable)
    wire.call("second", timeout_us=10 * SECOND)
    wire.bench.until(10 * SECOND)
    assert [name for name, _ in wire.heard] == ["second"]
    assert wire.heard[0][1] == SECOND + 1 + 200
    assert [name for name, _ in wire.served] == ["first", "second"]


def test_a_late_request_still_acts_after_its_caller_gave_up():
    wire = Wire(latency=Latency(100, 100), fates={1: Fate(request_delay_us=3 * SECOND)})
    task = wire.call("first")
    wire.bench.until(SECOND + 1)
    assert task.done()
    assert wire.served == []
    wire.bench.until(10 * SECOND)
    assert wire.served == [("first", 3 * SECOND + 100)]


def test_the_timeout_is_by_the_callers_own_clock():
    wire = Wire(latency=Latency(100, 100), fates={1: Fate(request_arrives=False)})
    fast = wire.bench.add("fast", drift_ppm=1_000_000)
    task = wire.call("first", host=fast)
    wire.bench.until(SECOND // 2)
    assert not task.done()
    wire.bench.until(SECOND // 2 + 1)
    assert task.done()


# Chance.


def times(wire: Wire, host: Host, *, calls: int) -> list[int]:
    """Return when each of some calls, one a second, arrived at the far end."""
    arrived = []
    for number in range(calls):
        wire.bench.until((number + 1) * SECOND)
        before = len(wire.served)
        wire.call(str(number), host=host, timeout_us=SECOND // 2)
        wire.bench.until((number + 1) * SECOND + 10 * MS)
        arrived += [at - wire.bench.now_us for _, at in wire.served[before:]] or [-1]
    return arrived


def test_a_lost_message_does_not_change_the_latencies_after_it():
    healthy = Wire(latency=Latency(0, 1000))
    expected = times(healthy, healthy.bench.host, calls=20)
    for fate in (Fate(request_arrives=False), Fate(reply_arrives=False), Fate(reply_delay_us=5)):
        wire = Wire(latency=Latency(0, 1000), fates={5: fate})
        got = times(wire, wire.bench.host, calls=20)
        assert got[:4] + got[5:] == expected[:4] + expected[5:]


def test_one_hosts_calls_do_not_change_anothers_latencies():
    alone = Wire(latency=Latency(0, 1000))
    expected = times(alone, alone.other, calls=10)
    busy = Wire(latency=Latency(0, 1000))
    for number in range(50):
        busy.call(f"noise {number}")
    busy.bench.until(SECOND // 2)
    assert times(busy, busy.other, calls=10) == expected


def test_two_hosts_have_latencies_of_their_own():
    wire = Wire(latency=Latency(0, 4000))
    first = times(wire, wire.bench.host, calls=5)
    second_wire = Wire(latency=Latency(0, 4000))
    second = times(second_wire, second_wire.other, calls=5)
    assert first != second


# Trouble at the far end.


def test_the_stores_own_unavailability_travels_back_as_the_same_object():
    bench = Bench()
    refused = StoreUnavailable("the server is starting up")
    network = Network(
        streams=bench.streams, far=bench.add("database"), latency=Latency(100, 100), decide=lambda *_: Fate()
    )

    async def serve() -> None:
        raise refused

    async def asks() -> StoreUnavailable:
        with pytest.raises(StoreUnavailable) as told:
            await network.call(bench.host.life, "claim", serve, timeout_us=SECOND)
        return told.value

    assert bench.run(asks()) is refused
    assert bench.now_us == 200


def test_a_mistake_at_the_far_end_ends_the_run_and_is_not_a_silence():
    bench = Bench()
    network = Network(
        streams=bench.streams, far=bench.add("database"), latency=Latency(100, 100), decide=lambda *_: Fate()
    )

    async def serve() -> None:
        raise KeyError("a mistake in the laboratory")

    async def asks() -> None:
        await network.call(bench.host.life, "claim", serve, timeout_us=SECOND)

    bench.spawn(asks())
    with pytest.raises(KeyError, match="a mistake in the laboratory"):
        bench.until(SECOND)
    bench.bury()
