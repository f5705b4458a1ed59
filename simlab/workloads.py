"""Workloads as data: the jobs, the fleet and the network of one run, frozen and JSON-able; and how they are drawn.

A workload with a plan of faults and a stream of orderings is an :class:`Experiment`. One generator draws them,
from anything that can choose: a seeded stream (a sweep, where the seed decides) or a search that shrinks what
it chose. In each experiment a random half of the knobs is switched off (swarm testing: Groce et al., "Swarm
Testing", ISSTA 2012), for a run with every kind of trouble at once hides what two kinds alone would show.

What is drawn stays within what the scheduler promises to survive: every fault ends by itself, every machine
that dies comes back (all but one may stay away), clocks drift by at most 5 %, and the database's own clock is
set back by at most `MAX_STEP_BACK_S`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Protocol, TypeVar

from scheduler.failpoints import FAILPOINTS
from scheduler.policy import RandomStream
from simlab.errors import InvalidExperiment
from simlab.faults import (
    FAULTS,
    LOSSES,
    At,
    ClockDrift,
    ClockOffset,
    ClockStep,
    ClockWobble,
    Crash,
    Delayed,
    Fault,
    HandlerBlocks,
    HandlerKills,
    HandlerOverruns,
    HandlerRaises,
    LockHeld,
    Partition,
    Pause,
    Reached,
    ReplyLost,
    RequestLost,
    SlowStore,
    StoreClockStep,
    StoreRestart,
    When,
)

__all__ = [
    "Choice",
    "Experiment",
    "PlannedJob",
    "PlannedStop",
    "SeededChoice",
    "Workload",
    "draw_experiment",
    "draw_faults",
]

T = TypeVar("T")

MILLISECOND_US = 1_000
SECOND_US = 1_000_000

MAX_JOBS = 8
MAX_FAULTS = 6
MAX_STOPS = 2
MAX_DECISIONS = 24
MAX_ORDER = 5
MAX_STEP_BACK_S = 20
MAX_DRIFT_PPM = 50_000

FAULT_WINDOW_S = 60
"""Faults at an instant strike within so many virtual seconds from the start."""

LONGEST_FAULT_S = 60
"""How long a fault lasts, at most: twice the lease of the mixed scenario."""


def _whole(name: str, value: object, lowest: int) -> None:
    if type(value) is not int or value < lowest:
        raise InvalidExperiment(f"workload: {name}={value!r}: must be a whole number of at least {lowest}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """One job of a workload. Instants are virtual microseconds from the start, durations microseconds.

    Attributes
    ----------
    at_us, delay_us
        When it is enqueued, and how long after that it is due.
    service_us
        How long its handler works.
    keyed
        Whether it has an idempotency key; then the client repeats the call until it is acknowledged.
    again_us
        When the same request, with the same key, is made a second time.
    other_us
        When another request is made under its key, which must be refused.
    cancel_us, replay_us
        When its cancellation is asked for, and when an operator replays it if it is a dead letter by then.
    """

    at_us: int = 0
    delay_us: int = 0
    service_us: int = 1 * SECOND_US
    max_attempts: int = 3
    max_age_us: int | None = None
    keyed: bool = True
    again_us: int | None = None
    other_us: int | None = None
    cancel_us: int | None = None
    replay_us: int | None = None

    def __post_init__(self) -> None:
        if type(self.keyed) is not bool:
            raise InvalidExperiment(f"workload: keyed={self.keyed!r}: must be true or false")
        for name in ("at_us", "delay_us", "service_us"):
            _whole(name, getattr(self, name), 0)
        _whole("max_attempts", self.max_attempts, 1)
        for name in ("max_age_us", "again_us", "other_us", "cancel_us", "replay_us"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 1 if name == "max_age_us" else 0)
        if self.other_us is not None and not self.keyed:
            raise InvalidExperiment("workload: other_us: only a job with a key has one that can be taken")

    def __str__(self) -> str:
        said = [f"enqueued at {_s(self.at_us)}, due {_s(self.delay_us)} later, works {_s(self.service_us)}"]
        said.append(_counted(self.max_attempts, "attempt"))
        if self.max_age_us is not None:
            said.append(f"not after {_s(self.max_age_us)} overdue")
        if not self.keyed:
            said.append("no idempotency key")
        for name, at_us in (
            ("again", self.again_us),
            ("its key for another request", self.other_us),
            ("cancelled", self.cancel_us),
            ("replayed", self.replay_us),
        ):
            if at_us is not None:
                said.append(f"{name} at {_s(at_us)}")
        return ", ".join(said)

    @property
    def last_us(self) -> int:
        """The last instant at which anybody does anything with it."""
        acts = [self.at_us + self.delay_us, self.again_us, self.other_us, self.cancel_us, self.replay_us]
        return max(at_us for at_us in acts if at_us is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStop:
    """An operator's act: a worker is asked to stop, and a while after it has, a new one takes its place.

    Attributes
    ----------
    worker
        Its number, from 1.
    at_us
        When it is asked, in virtual microseconds from the start; in vain if its machine is off just then.
    replace_after_us
        How long after the end of its drain the new one starts, in microseconds.
    """

    worker: int
    at_us: int = 0
    replace_after_us: int = 1 * SECOND_US

    def __post_init__(self) -> None:
        _whole("worker", self.worker, 1)
        _whole("at_us", self.at_us, 0)
        _whole("replace_after_us", self.replace_after_us, 0)

    def __str__(self) -> str:
        return (
            f"w{self.worker} is asked to stop at {_s(self.at_us)}, replaced {_s(self.replace_after_us)} later"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The jobs, numbered from 0, the fleet that runs them, and the network between fleet and store.

    A call travels for `latency_us` to `latency_us + jitter_us` each way. Without jitter, things happen at the
    same instant, and their order is worth exploring.
    """

    jobs: tuple[PlannedJob, ...] = (PlannedJob(),)
    n_workers: int = 1
    concurrency: int = 1
    prefetch: int = 1
    latency_us: int = 1 * MILLISECOND_US
    jitter_us: int = 0
    stops: tuple[PlannedStop, ...] = ()

    def __post_init__(self) -> None:
        if not self.jobs:
            raise InvalidExperiment("workload: no jobs; it needs at least one")
        for name in ("n_workers", "concurrency"):
            _whole(name, getattr(self, name), 1)
        for name in ("prefetch", "latency_us", "jitter_us"):
            _whole(name, getattr(self, name), 0)
        for stop in self.stops:
            if stop.worker > self.n_workers:
                raise InvalidExperiment(f"workload: {stop}: there are {self.n_workers} workers")

    def __str__(self) -> str:
        spread = f" to {_ms(self.latency_us + self.jitter_us)}" if self.jitter_us else ""
        fleet = (
            f"{_counted(self.n_workers, 'worker')} with {_counted(self.concurrency, 'slot')} and {self.prefetch} ahead, "
            f"{_ms(self.latency_us)}{spread} to the store"
        )
        jobs = (f"job {number}: {job}" for number, job in enumerate(self.jobs))
        return "\n".join([fleet, *jobs, *map(str, self.stops)])

    def to_dict(self) -> dict[str, Any]:
        """Return it as a JSON-able dict."""
        return {
            **asdict(self),
            "jobs": [asdict(job) for job in self.jobs],
            "stops": [asdict(stop) for stop in self.stops],
        }

    @classmethod
    def from_dict(cls, data: object) -> Workload:
        """Read a workload back from its dict.

        Raises
        ------
        InvalidExperiment
            Saying which field is unknown or out of range.
        """
        values = _known("workload", cls, data)
        for name, kind, what in (
            ("jobs", PlannedJob, "a job of the workload"),
            ("stops", PlannedStop, "a stop of the workload"),
        ):
            if name in values:
                values[name] = tuple(_built(what, kind, one) for one in _listed(name, values[name]))
        return cls(**values)


def _listed(name: str, value: object) -> Sequence[object]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InvalidExperiment(f"workload: {name}={value!r}: must be a list")
    return value


def _built(what: str, kind: type[T], data: object) -> T:
    values = _known(what, kind, data)
    try:
        return kind(**values)
    except TypeError as error:
        raise InvalidExperiment(f"{what}: {error}") from error


def _known(what: str, kind: type[Any], data: object) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise InvalidExperiment(f"{what}: must be an object, not {data!r}")
    known = [field.name for field in fields(kind)]
    if strange := sorted(str(name) for name in data if name not in known):
        raise InvalidExperiment(f"{what} has no {', '.join(strange)}; it has {', '.join(known)}")
    return dict(data)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _s(duration_us: int) -> str:
    return f"{duration_us / 1e6:g} s"


def _ms(duration_us: int) -> str:
    return f"{duration_us / 1e3:g} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What a seed, or a search, decides: load, faults, and the order of what happens at one instant."""

    workload: Workload
    faults: tuple[Fault, ...] = ()
    decisions: tuple[int, ...] = ()


class Choice(Protocol):
    """Something that chooses. Whoever shrinks moves every choice towards its first or smallest value."""

    def whole(self, low: int, high: int) -> int:
        """Return a whole number from low to high, both included."""

    def one_of(self, values: Sequence[T]) -> T:
        """Return one of some values."""

    def several(self, make: Callable[[Choice], T], *, low: int, high: int) -> tuple[T, ...]:
        """Return from `low` to `high` things that `make` makes."""


class SeededChoice:
    """Chooses by a seeded stream."""

    def __init__(self, stream: RandomStream) -> None:
        self._stream = stream

    def whole(self, low: int, high: int) -> int:
        return self._stream.randint(low, high)

    def one_of(self, values: Sequence[T]) -> T:
        return values[self._stream.randint(0, len(values) - 1)]

    def several(self, make: Callable[[Choice], T], *, low: int, high: int) -> tuple[T, ...]:
        return tuple(make(self) for _ in range(self.whole(low, high)))


def _yes(choice: Choice) -> bool:
    return choice.whole(0, 1) == 1


_JOB_KNOBS = ("far", "long", "ages", "unkeyed", "again", "others", "cancels", "replays")


def draw_experiment(choice: Choice, *, max_jobs: int = MAX_JOBS, max_faults: int = MAX_FAULTS) -> Experiment:
    """Draw a workload, a plan of faults and a stream of orderings, a random half of the knobs switched off."""
    kinds = tuple(kind for kind in FAULTS if _yes(choice))
    knobs = frozenset(knob for knob in _JOB_KNOBS if _yes(choice))
    ties, jitter, stops = _yes(choice), _yes(choice), _yes(choice)
    jobs = choice.several(lambda one: _draw_job(one, knobs), low=1, high=max_jobs)
    n_workers = choice.whole(1, 3)
    workload = Workload(
        # One at least with a key: whose enqueueing is repeated until it is acknowledged, so that there is a story.
        jobs=(replace(jobs[0], keyed=True), *jobs[1:]),
        n_workers=n_workers,
        concurrency=choice.whole(1, 3),
        prefetch=choice.whole(0, 3),
        latency_us=choice.whole(0, 20) * MILLISECOND_US,
        jitter_us=choice.whole(1, 20_000) if jitter else 0,
        stops=choice.several(lambda one: _draw_stop(one, n_workers), low=0, high=MAX_STOPS) if stops else (),
    )
    workers = tuple(f"w{number}" for number in range(1, workload.n_workers + 1))
    faults = draw_faults(
        choice,
        kinds=kinds,
        workers=workers,
        others=("client",),
        may_stay_away=workers[1:],
        n_jobs=len(workload.jobs),
        window_s=FAULT_WINDOW_S,
        max_faults=max_faults,
    )
    decisions: tuple[int, ...] = ()
    if ties:
        decisions = choice.several(lambda one: one.whole(0, MAX_ORDER), low=0, high=MAX_DECISIONS)
    return Experiment(workload=workload, faults=faults, decisions=decisions)


def _draw_job(choice: Choice, knobs: frozenset[str]) -> PlannedJob:
    job = PlannedJob(
        at_us=choice.whole(0, 10) * SECOND_US,
        delay_us=choice.whole(0, 60 if "far" in knobs else 10) * SECOND_US,
        service_us=choice.whole(0, 80 if "long" in knobs else 8) * SECOND_US // 2,
        max_attempts=choice.whole(1, 5),
    )
    acts: dict[str, Any] = {}
    if "ages" in knobs and _yes(choice):
        acts["max_age_us"] = choice.whole(1, 90) * SECOND_US
    if "unkeyed" in knobs and _yes(choice):
        acts["keyed"] = False
    elif "again" in knobs and _yes(choice):
        acts["again_us"] = job.at_us + choice.whole(0, 60) * SECOND_US
    if "others" in knobs and acts.get("keyed", True) and _yes(choice):
        acts["other_us"] = job.at_us + choice.whole(0, 60) * SECOND_US
    if "cancels" in knobs and _yes(choice):
        # Around when it runs, for that is where the order matters.
        acts["cancel_us"] = job.at_us + job.delay_us + choice.whole(0, 20) * SECOND_US // 2
    if "replays" in knobs and _yes(choice):
        acts["replay_us"] = job.at_us + job.delay_us + choice.whole(0, 180) * SECOND_US
    return replace(job, **acts)


def _draw_stop(choice: Choice, n_workers: int) -> PlannedStop:
    return PlannedStop(
        worker=choice.whole(1, n_workers),
        at_us=choice.whole(0, 10 * FAULT_WINDOW_S) * 100 * MILLISECOND_US,
        replace_after_us=choice.whole(0, 10) * SECOND_US,
    )


@dataclass(frozen=True, slots=True)
class _Ground:
    """What faults may strike."""

    workers: tuple[str, ...]
    others: tuple[str, ...]
    may_stay_away: tuple[str, ...]
    n_jobs: int
    window_s: int
    longest_s: int

    @property
    def hosts(self) -> tuple[str, ...]:
        return self.workers + self.others


def draw_faults(
    choice: Choice,
    *,
    kinds: Sequence[str],
    workers: tuple[str, ...],
    others: tuple[str, ...],
    n_jobs: int,
    window_s: int,
    may_stay_away: tuple[str, ...] = (),
    longest_s: int = LONGEST_FAULT_S,
    max_faults: int = MAX_FAULTS,
) -> tuple[Fault, ...]:
    """Draw a plan of faults of some kinds that a fleet is promised to survive.

    Parameters
    ----------
    kinds
        Names of :data:`simlab.faults.FAULTS`.
    workers, others
        The hosts that run workers, and the rest of the hosts.
    may_stay_away
        The hosts that may lose power for good; every other comes back.
    window_s, longest_s
        In which first seconds of virtual time faults strike, and how long they last at most.
    """
    if not kinds:
        return ()
    ground = _Ground(workers, others, may_stay_away, n_jobs, window_s, longest_s)
    return choice.several(lambda one: _DRAW[one.one_of(kinds)](one, ground), low=0, high=max_faults)


def _when(choice: Choice, ground: _Ground) -> When:
    if _yes(choice):
        return Reached(choice.one_of(FAILPOINTS), choice.whole(1, 4))
    return _at(choice, ground)


def _at(choice: Choice, ground: _Ground) -> At:
    return At(choice.whole(0, 10 * ground.window_s) * 100 * MILLISECOND_US)


def _long(choice: Choice, ground: _Ground) -> int:
    return choice.whole(1, ground.longest_s) * SECOND_US


def _crash(choice: Choice, ground: _Ground) -> Fault:
    host, when = choice.one_of(ground.hosts), _when(choice, ground)
    stays_away = host in ground.may_stay_away and _yes(choice)
    return Crash(host=host, when=when, restart_after_us=None if stays_away else _long(choice, ground))


def _pause(choice: Choice, ground: _Ground) -> Fault:
    return Pause(host=choice.one_of(ground.hosts), when=_when(choice, ground), for_us=_long(choice, ground))


def _offset(choice: Choice, ground: _Ground) -> Fault:
    return ClockOffset(host=choice.one_of(ground.hosts), by_us=choice.whole(-3600, 3600) * SECOND_US)


def _drift(choice: Choice, ground: _Ground) -> Fault:
    ppm = choice.whole(-MAX_DRIFT_PPM, MAX_DRIFT_PPM)
    return ClockDrift(host=choice.one_of(ground.hosts), when=_at(choice, ground), ppm=ppm)


def _step(choice: Choice, ground: _Ground) -> Fault:
    by_us = choice.whole(-3600, 3600) * SECOND_US
    return ClockStep(host=choice.one_of(ground.hosts), when=_when(choice, ground), by_us=by_us)


def _wobble(choice: Choice, ground: _Ground) -> Fault:
    return ClockWobble(
        host=choice.one_of(ground.hosts), by_us=_long(choice, ground), period_us=_long(choice, ground)
    )


_WORKERS_CALLS = ("claim", "sweep", "start", "heartbeat", "finish", "effect")
_CLIENTS_CALLS = ("enqueue", "cancel", "replay")


def _call(choice: Choice, ground: _Ground) -> dict[str, Any]:
    host = choice.one_of(ground.hosts)
    verb = choice.one_of(_WORKERS_CALLS if host in ground.workers else _CLIENTS_CALLS)
    return {"host": host, "verb": verb, "nth": choice.whole(1, 6)}


def _request_lost(choice: Choice, ground: _Ground) -> Fault:
    return RequestLost(**_call(choice, ground))


def _reply_lost(choice: Choice, ground: _Ground) -> Fault:
    return ReplyLost(**_call(choice, ground))


def _delayed(choice: Choice, ground: _Ground) -> Fault:
    call = _call(choice, ground)
    return Delayed(
        **call,
        request_us=choice.whole(0, ground.longest_s) * SECOND_US,
        reply_us=choice.whole(0, ground.longest_s) * SECOND_US,
    )


def _partition(choice: Choice, ground: _Ground) -> Fault:
    return Partition(
        host=choice.one_of(ground.hosts),
        when=_when(choice, ground),
        for_us=_long(choice, ground),
        lose=choice.one_of(LOSSES),
    )


def _slow_store(choice: Choice, ground: _Ground) -> Fault:
    extra_us = choice.whole(1, 40) * 100 * MILLISECOND_US
    return SlowStore(when=_at(choice, ground), for_us=_long(choice, ground), extra_us=extra_us)


def _store_restart(choice: Choice, ground: _Ground) -> Fault:
    return StoreRestart(when=_at(choice, ground), down_us=_long(choice, ground))


def _store_step(choice: Choice, ground: _Ground) -> Fault:
    by_us = choice.whole(-MAX_STEP_BACK_S, ground.longest_s) * SECOND_US
    return StoreClockStep(when=_at(choice, ground), by_us=by_us)


def _lock_held(choice: Choice, ground: _Ground) -> Fault:
    return LockHeld(when=_at(choice, ground), for_us=_long(choice, ground), job=_job(choice, ground)["job"])


def _job(choice: Choice, ground: _Ground) -> dict[str, Any]:
    return {"job": choice.whole(0, ground.n_jobs - 1)}


def _handler(choice: Choice, ground: _Ground) -> dict[str, Any]:
    return {**_job(choice, ground), "attempts": choice.whole(1, 3)}


def _raises(choice: Choice, ground: _Ground) -> Fault:
    return HandlerRaises(**_handler(choice, ground))


def _overruns(choice: Choice, ground: _Ground) -> Fault:
    return HandlerOverruns(**_handler(choice, ground), by_us=_long(choice, ground))


def _blocks(choice: Choice, ground: _Ground) -> Fault:
    return HandlerBlocks(**_handler(choice, ground), for_us=_long(choice, ground))


def _kills(choice: Choice, ground: _Ground) -> Fault:
    return HandlerKills(**_handler(choice, ground), restart_after_us=_long(choice, ground))


_DRAW: Mapping[str, Callable[[Choice, _Ground], Fault]] = {
    "Crash": _crash,
    "Pause": _pause,
    "ClockOffset": _offset,
    "ClockDrift": _drift,
    "ClockStep": _step,
    "ClockWobble": _wobble,
    "RequestLost": _request_lost,
    "ReplyLost": _reply_lost,
    "Delayed": _delayed,
    "Partition": _partition,
    "SlowStore": _slow_store,
    "StoreRestart": _store_restart,
    "StoreClockStep": _store_step,
    "LockHeld": _lock_held,
    "HandlerRaises": _raises,
    "HandlerOverruns": _overruns,
    "HandlerBlocks": _blocks,
    "HandlerKills": _kills,
}
