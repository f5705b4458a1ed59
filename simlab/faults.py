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
    "Crash",
    "Fault",
    "Pause",
    "Reached",
    "ReplyLost",
    "RequestLost",
    "When",
    "fault_from_dict",
    "fault_to_dict",
]

VERBS = ("enqueue", "claim", "sweep", "start", "heartbeat", "finish", "cancel", "replay", "effect")
"""The calls that cross the network."""


def _whole(name: str, value: object, lowest: int) -> None:
    if type(value) is not int or value < lowest:
        raise InvalidExperiment(f"{name}={value!r}: must be a whole number of at least {lowest}")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """Power loss of a host; it comes back after `restart_after_us`, or never when that is None."""

    host: str
    when: When
    restart_after_us: int | None = None

    def __post_init__(self) -> None:
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
        _whole("for_us", self.for_us, 1)

    def __str__(self) -> str:
        return f"{self.host} stands still for {self.for_us / 1e6:g} s {self.when}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lost:
    host: str
    verb: str
    nth: int = 1

    def __post_init__(self) -> None:
        if self.verb not in VERBS:
            raise InvalidExperiment(f"no call {self.verb!r}; there are {', '.join(VERBS)}")
        _whole("nth", self.nth, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLost(_Lost):
    """The host's n-th call of a verb is lost on its way there: nothing happens."""

    def __str__(self) -> str:
        return f"{self.host}'s {self.verb} request number {self.nth} is lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyLost(_Lost):
    """The reply to the host's n-th call of a verb is lost: it happened, and the host cannot know."""

    def __str__(self) -> str:
        return f"the reply to {self.host}'s {self.verb} number {self.nth} is lost"


Fault = Crash | Pause | RequestLost | ReplyLost

FAULTS: Mapping[str, type[Fault]] = {kind.__name__: kind for kind in (Crash, Pause, RequestLost, ReplyLost)}
"""Every kind of fault, by name."""

_WHENS: Mapping[str, type[When]] = {kind.__name__: kind for kind in (At, Reached)}


def fault_to_dict(fault: Fault) -> dict[str, Any]:
    """Return a fault as a JSON-able dict: its fields, and its kind under ``fault``."""
    data = {"fault": type(fault).__name__, **asdict(fault)}
    if "when" in data:
        when = fault.when  # type: ignore[union-attr]
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
    if name not in kinds:
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
        if fault.host not in hosts:
            raise InvalidExperiment(f"{fault}: no host {fault.host!r}; there are {', '.join(hosts)}")
