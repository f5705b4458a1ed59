"""The plan of a chaos run: which acts, against whom, when and for how long. A pure function of the seed.

Acts come from a deck that is shuffled again and again, so that even a short run tries every kind once before any
kind comes twice.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from simlab.streams import Streams

__all__ = ["Act", "ActKind", "plan_acts"]

MAX_ACTS = 10_000
"""The most acts of one run."""

_GAP_US = (500_000, 1_500_000)
"""Between two acts."""


class ActKind(enum.StrEnum):
    """What can be done to real workers, their network and their database from outside."""

    KILL = "kill"
    """SIGKILL; a new process takes the worker's place a little later, as a supervisor would see to."""
    STOP = "stop"
    """SIGSTOP, and SIGCONT after longer than the lease: the zombie wakes."""
    TERMINATE = "terminate"
    """``pg_terminate_backend`` on some of the workers' connections."""
    RESTART = "restart"
    """An immediate stop of PostgreSQL, its own kind of crash, and a start."""
    DELAY = "delay"
    """Every byte between a worker and the database comes later."""
    CUT = "cut"
    """A worker's connections are cut, and new ones are for a while."""
    SILENCE = "silence"
    """A worker's connections stay open and carry nothing; longer than the lease."""
    REPLY_LOSS = "reply loss"
    """The database does what it is asked, the answers never arrive, then the connection is cut."""


_DECK = (*ActKind, ActKind.KILL, ActKind.STOP, ActKind.TERMINATE, ActKind.REPLY_LOSS, ActKind.REPLY_LOSS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One act.

    Attributes
    ----------
    at_us
        When, from the start of the run.
    worker
        Whose, from 0. The last number stands for the client that enqueues, where the network is meant.
    for_us
        How long it lasts; 0 for what is done at once.
    amount
        By how many microseconds a DELAY delays; what part of the connections, in percent, TERMINATE ends.
    """

    kind: ActKind
    at_us: int
    worker: int
    for_us: int = 0
    amount: int = 0


def plan_acts(*, seed: int, workers: int, until_us: int, lease_us: int) -> tuple[Act, ...]:
    """Return the acts of a run that begin before an instant, in order.

    Parameters
    ----------
    workers
        How many there are.
    lease_us
        What some acts must outlast.
    """
    chance = Streams(seed).stream("chaos/acts")
    acts: list[Act] = []
    at_us = chance.randint(*_GAP_US)
    for kind in _shuffled(chance):
        if at_us >= until_us or len(acts) == MAX_ACTS:
            return tuple(acts)
        for_us, amount = _measures(kind, chance, lease_us)
        # The network of the client is a target like any worker's; its process is not.
        networked = kind in {ActKind.DELAY, ActKind.CUT, ActKind.SILENCE, ActKind.REPLY_LOSS}
        worker = chance.randrange(workers + 1 if networked else workers)
        acts.append(Act(kind=kind, at_us=at_us, worker=worker, for_us=for_us, amount=amount))
        at_us += chance.randint(*_GAP_US)
    raise AssertionError("the deck never ends")


def _shuffled(chance: Random) -> Iterator[ActKind]:
    deck: list[ActKind] = list(ActKind)
    while True:
        chance.shuffle(deck)
        yield from deck
        deck = list(_DECK)


def _measures(kind: ActKind, chance: Random, lease_us: int) -> tuple[int, int]:
    """Draw how long an act lasts, and how much of it there is."""
    between = chance.randint
    if kind is ActKind.KILL:
        return between(200_000, 1_500_000), 0
    if kind in {ActKind.STOP, ActKind.SILENCE}:
        return between(lease_us * 11 // 10, lease_us * 18 // 10), 0
    if kind is ActKind.TERMINATE:
        return 0, between(20, 100)
    if kind is ActKind.DELAY:
        return between(1_000_000, 4_000_000), between(20_000, 400_000)
    if kind is ActKind.CUT:
        return between(100_000, 2_000_000), 0
    if kind is ActKind.REPLY_LOSS:
        return between(100_000, 800_000), 0
    return between(0, 1_500_000), 0
