"""Faults as data: frozen, printable, JSON-able. A plan of faults plus a seed is a whole experiment.

A fault says when (:class:`At` an instant, or when a host has :class:`Reached` a failpoint), where, and for how
long. What it does to the world is :mod:`simlab.injector`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from scheduler.failpoints import FAILPOINTS
from simlab.errors import InvalidExperiment

__all__ = [
    "FAULTS",
    "VERBS",
    "At",
    "ClockDrift",
    "ClockOffset",
    "ClockStep",
    "ClockWobble",
    "Crash",
    "Delayed",
    "Fault",
    "HandlerBlocks",
    "HandlerKills",
    "HandlerOverruns",
    "HandlerRaises",
    "LockHeld",
    "Partition",
    "Pause",
    "Reached",
    "ReplyLost",
    "RequestLost",
    "SlowStore",
    "StoreClockStep",
    "StoreRestart",
    "When",
    "check_hosts",
    "duration_us",
    "fault_from_dict",
    "fault_to_dict",
]

VERBS = ("enqueue", "claim", "sweep", "start", "heartbeat", "finish", "cancel", "replay", "effect")
"""The calls that cross the network."""


def _seconds(duration_us: int) -> str:
    return f"{duration_us / 1e6:g} s"


def _whole(name: str, value: object, lowest: int | None, highest: int | None = None) -> None:
    ok = type(value) is int and (lowest is None or value >= lowest) and (highest is None or value <= highest)
    if not ok:
        least = "" if lowest is None else f" of at least {lowest:,}"
        most = "" if highest is None else f" and at most {highest:,}"
        raise InvalidExperiment(f"{name}={value!r}: must be a whole number{least}{most}")


@dataclass(frozen=True, slots=True)
class At:
    """At an instant: microseconds of virtual time from the start."""

    at_us: int

    def __post_init__(self) -> None:
        _whole("at_us", self.at_us, 0)

    def __str__(self) -> str:
        return f"at {self.at_us / 1e6:g} s"


@dataclass(frozen=True, slots=True)
class Reached:
    """When the host reaches a failpoint for the n-th time, counted over all its lives."""

    failpoint: str
    nth: int = 1

    def __post_init__(self) -> None:
        if self.failpoint not in FAILPOINTS:
            raise InvalidExperiment(f"no failpoint {self.failpoint!r}; there are {', '.join(FAILPOINTS)}")
        _whole("nth", self.nth, 1)

    def __str__(self) -> str:
        return f"at {self.failpoint}" + (f" number {self.nth}" if self.nth > 1 else "")


When = At | Reached


def _moment(when: object, *kinds: type[When]) -> None:
    # A moment that is none would never come, and the run would look healthy.
    if not isinstance(when, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise InvalidExperiment(f"when={when!r}: must be {names}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """Power loss of a host; it comes back after `restart_after_us`, or never when that is None."""

    host: str
    when: When
    restart_after_us: int | None = None

    def __post_init__(self) -> None:
        _moment(self.when, At, Reached)
        if self.restart_after_us is not None:
            _whole("restart_after_us", self.restart_after_us, 0)

    def __str__(self) -> str:
        back = (
            "never back" if self.restart_after_us is None else f"back after {self.restart_after_us / 1e6:g} s"
        )
        return f"{self.host} loses power {self.when}, {back}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Stop-the-world on a host: a long garbage collection, a frozen virtual machine, SIGSTOP."""

    host: str
    when: When
    for_us: int

    def __post_init__(self) -> None:
        _moment(self.when, At, Reached)
        _whole("for_us", self.for_us, 1)

    def __str__(self) -> str:
        return f"{self.host} stands still for {self.for_us / 1e6:g} s {self.when}"


# Clocks.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset:
    """The host's wall clock is wrong from the start, by `by_us` (ahead when positive)."""

    host: str
    by_us: int

    def __post_init__(self) -> None:
        _whole("by_us", self.by_us, None)

    def __str__(self) -> str:
        return f"{self.host}'s wall clock is {_seconds(abs(self.by_us))} {'ahead' if self.by_us >= 0 else 'behind'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockDrift:
    """Both of the host's clocks run fast by `ppm` parts per million from then on (slow when negative)."""

    host: str
    when: When
    ppm: int

    def __post_init__(self) -> None:
        _moment(self.when, At, Reached)
        _whole("ppm", self.ppm, -500_000, 1_000_000)

    def __str__(self) -> str:
        return f"{self.host}'s clocks drift by {self.ppm:+,} ppm {self.when}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStep:
    """The host's wall clock is stepped by `by_us`, as NTP does; the monotonic clock is not."""

    host: str
    when: When
    by_us: int

    def __post_init__(self) -> None:
        _moment(self.when, At, Reached)
        _whole("by_us", self.by_us, None)

    def __str__(self) -> str:
        return f"{self.host}'s wall clock is stepped by {self.by_us / 1e6:+g} s {self.when}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockWobble:
    """The host's wall clock swings around the truth, up to `by_us` either way, once every `period_us`."""

    host: str
    by_us: int
    period_us: int

    def __post_init__(self) -> None:
        _whole("by_us", self.by_us, 1)
        _whole("period_us", self.period_us, 4)

    def __str__(self) -> str:
        return f"{self.host}'s wall clock swings by {_seconds(self.by_us)} every {_seconds(self.period_us)}"


# The network.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    host: str
    verb: str
    nth: int = 1

    def __post_init__(self) -> None:
        if self.verb not in VERBS:
            raise InvalidExperiment(f"no call {self.verb!r}; there are {', '.join(VERBS)}")
        _whole("nth", self.nth, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLost(_Call):
    """The host's n-th call of a verb is lost on its way there: nothing happens."""

    def __str__(self) -> str:
        return f"{self.host}'s {self.verb} request number {self.nth} is lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyLost(_Call):
    """The reply to the host's n-th call of a verb is lost: it happened, and the host cannot know."""

    def __str__(self) -> str:
        return f"the reply to {self.host}'s {self.verb} number {self.nth} is lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delayed(_Call):
    """The host's n-th call of a verb is held up in the network, on the way there or on the way back."""

    request_us: int = 0
    reply_us: int = 0

    def __post_init__(self) -> None:
        # Called by name: a slotted dataclass is made anew, so that super() would look in the wrong class.
        _Call.__post_init__(self)
        _whole("request_us", self.request_us, 0)
        _whole("reply_us", self.reply_us, 0)

    def __str__(self) -> str:
        return (
            f"{self.host}'s {self.verb} number {self.nth} is held up by {_seconds(self.request_us)} going and "
            f"{_seconds(self.reply_us)} coming"
        )


LOSSES = ("both", "requests", "replies")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The network between the host and the store is cut: both ways, or for requests or replies only."""

    host: str
    when: When
    for_us: int
    lose: str = "both"

    def __post_init__(self) -> None:
        _moment(self.when, At, Reached)
        _whole("for_us", self.for_us, 1)
        if self.lose not in LOSSES:
            raise InvalidExperiment(f"lose={self.lose!r}: there are {', '.join(LOSSES)}")

    def __str__(self) -> str:
        what = "is cut off from the store" if self.lose == "both" else f"loses all {self.lose}"
        return f"{self.host} {what} for {_seconds(self.for_us)} {self.when}"


# The store.


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowStore:
    """Every call takes `extra_us` longer for a while."""

    when: At
    for_us: int
    extra_us: int

    def __post_init__(self) -> None:
        _moment(self.when, At)
        _whole("for_us", self.for_us, 1)
        _whole("extra_us", self.extra_us, 1)

    def __str__(self) -> str:
        return f"the store is {_seconds(self.extra_us)} slower for {_seconds(self.for_us)} {self.when}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRestart:
    """The store goes down and comes back: committed rows stay, connections and open transactions do not."""

    when: At
    down_us: int

    def __post_init__(self) -> None:
        _moment(self.when, At)
        _whole("down_us", self.down_us, 1)

    def __str__(self) -> str:
        return f"the store is down for {_seconds(self.down_us)} {self.when}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreClockStep:
    """The store's own clock is stepped, forwards or back."""

    when: At
    by_us: int

    def __post_init__(self) -> None:
        _moment(self.when, At)
        _whole("by_us", self.by_us, None)

    def __str__(self) -> str:
        return f"the store's clock is stepped by {self.by_us / 1e6:+g} s {self.when}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHeld:
    """An open transaction holds the row of a job (numbered from 0 in the order of enqueueing) for a while."""

    when: At
    for_us: int
    job: int

    def __post_init__(self) -> None:
        _moment(self.when, At)
        _whole("for_us", self.for_us, 1)
        _whole("job", self.job, 0)

    def __str__(self) -> str:
        return f"an open transaction locks job {self.job} for {_seconds(self.for_us)} {self.when}"


# Handlers. Jobs are numbered from 0, as their payload says.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Handler:
    job: int
    attempts: int = 1

    def __post_init__(self) -> None:
        _whole("job", self.job, 0)
        _whole("attempts", self.attempts, 1)

    def _which(self) -> str:
        return f"job {self.job}'s handler" + (
            f" in its first {self.attempts} attempts" if self.attempts > 1 else ""
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRaises(_Handler):
    """The handler raises, in its first `attempts` attempts."""

    def __str__(self) -> str:
        return f"{self._which()} raises"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOverruns(_Handler):
    """The handler works for `by_us` longer than it should, awaiting properly."""

    by_us: int = 1

    def __post_init__(self) -> None:
        _Handler.__post_init__(self)
        _whole("by_us", self.by_us, 1)

    def __str__(self) -> str:
        return f"{self._which()} takes {_seconds(self.by_us)} longer"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerBlocks(_Handler):
    """The handler blocks its worker's loop for `for_us`: nothing else of that worker runs meanwhile."""

    for_us: int = 1

    def __post_init__(self) -> None:
        _Handler.__post_init__(self)
        _whole("for_us", self.for_us, 1)

    def __str__(self) -> str:
        return f"{self._which()} blocks its worker's loop for {_seconds(self.for_us)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerKills(_Handler):
    """The handler kills its worker, which is started again after `restart_after_us`."""

    restart_after_us: int = 5_000_000

    def __post_init__(self) -> None:
        _Handler.__post_init__(self)
        _whole("restart_after_us", self.restart_after_us, 0)

    def __str__(self) -> str:
        return f"{self._which()} kills its worker"


HostFault = Crash | Pause | ClockDrift | ClockStep | Partition
"""The faults that strike one host at a moment."""

CallFault = RequestLost | ReplyLost | Delayed
StoreFault = SlowStore | StoreRestart | StoreClockStep | LockHeld
HandlerFault = HandlerRaises | HandlerOverruns | HandlerBlocks | HandlerKills
Fault = HostFault | ClockOffset | ClockWobble | CallFault | StoreFault | HandlerFault

FAULTS: Mapping[str, type[Fault]] = {
    kind.__name__: kind
    for kind in (
        Crash,
        Pause,
        ClockOffset,
        ClockDrift,
        ClockStep,
        ClockWobble,
        RequestLost,
        ReplyLost,
        Delayed,
        Partition,
        SlowStore,
        StoreRestart,
        StoreClockStep,
        LockHeld,
        HandlerRaises,
        HandlerOverruns,
        HandlerBlocks,
        HandlerKills,
    )
}
"""Every kind of fault, by name."""

_WHENS: Mapping[str, type[When]] = {kind.__name__: kind for kind in (At, Reached)}


def duration_us(fault: Fault) -> int:
    """Return for how long a fault is felt, in microseconds: 0 for one that is over at once, or never."""
    match fault:
        case Crash() | HandlerKills():
            each_us = fault.restart_after_us or 0
            return each_us * (fault.attempts if isinstance(fault, HandlerKills) else 1)
        case Pause() | Partition() | SlowStore() | LockHeld():
            return fault.for_us
        case HandlerBlocks():
            return fault.for_us * fault.attempts
        case Delayed():
            return fault.request_us + fault.reply_us
        case StoreRestart():
            return fault.down_us
        case StoreClockStep():
            return abs(fault.by_us)
        case _:
            return 0


def fault_to_dict(fault: Fault) -> dict[str, Any]:
    """Return a fault as a JSON-able dict: its fields, and its kind under ``fault``."""
    data = {"fault": type(fault).__name__, **asdict(fault)}
    if "when" in data:
        when = fault.when  # type: ignore[union-attr]  # it has one: its dict says so
        data["when"] = {"when": type(when).__name__, **asdict(when)}
    return data


def fault_from_dict(data: Mapping[str, Any]) -> Fault:
    """Read a fault back from its dict.

    Raises
    ------
    InvalidExperiment
        Saying which kind or field is unknown, missing or out of range.
    """
    values = dict(data)
    if isinstance(values.get("when"), Mapping):
        values["when"] = _build(_WHENS, "when", dict(values["when"]))
    built: Fault = _build(FAULTS, "fault", values)
    return built


def _build(kinds: Mapping[str, type[Any]], tag: str, values: dict[str, Any]) -> Any:
    name = values.pop(tag, None)
    if not isinstance(name, str) or name not in kinds:
        raise InvalidExperiment(f"unknown kind of {tag} {name!r}; there are {', '.join(kinds)}")
    known = {field.name for field in fields(kinds[name])}
    if strange := sorted(set(values) - known):
        raise InvalidExperiment(f"{name} has no {', '.join(strange)}; it has {', '.join(sorted(known))}")
    try:
        return kinds[name](**values)
    except TypeError as error:
        raise InvalidExperiment(f"{name}: {error}") from error


def check_hosts(faults: Sequence[Fault], hosts: Sequence[str]) -> None:
    """Refuse a plan that names a host which does not exist."""
    for fault in faults:
        host = getattr(fault, "host", None)
        if host is not None and host not in hosts:
            raise InvalidExperiment(f"{fault}: no host {host!r}; there are {', '.join(hosts)}")
