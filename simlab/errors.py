"""Every error the laboratory raises on purpose.

::

    SimlabError
    ├── PostgresUnavailable        no PostgreSQL server could be had, or the one asked for does not work    exit 2
    │   └── ServerUnreachable      the server named by SIMLAB_DSN did not answer, or refused                exit 3
    ├── ServerControlError         a pid, a stop or a start asked of a server that cannot give it           exit 2
    ├── UnknownScenario            a scenario, variant or size that does not exist                          exit 2
    ├── InvalidExperiment          a seed, a fault or a saved result that cannot be used                    exit 2
    ├── ReplayDiffers              a saved experiment came out differently when it was run again            exit 2
    └── SimulationError            the simulation itself cannot go on                                       exit 2
        ├── ForeignAwait           a coroutine awaited something that is not the clock's
        └── SimulationStalled      very many steps without time advancing

A user's mistake reads as one line: what was wrong, where, and the mend. ``exit_code`` is what the command line
ends with. This module must not import anything of the package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = [
    "ForeignAwait",
    "InvalidExperiment",
    "PostgresUnavailable",
    "ReplayDiffers",
    "ServerControlError",
    "ServerUnreachable",
    "SimlabError",
    "SimulationError",
    "SimulationStalled",
    "UnknownScenario",
]


class SimlabError(Exception):
    """Base class of everything raised here."""

    exit_code: int = 2


class PostgresUnavailable(SimlabError):
    """No PostgreSQL server could be had, or the one asked for does not work.

    Parameters
    ----------
    problem
        What was wanted and went wrong, as the beginning of a sentence.
    tried
        Pairs of (source, why it cannot be used), in the order they were tried.
    mend
        What the user can do about it, as an instruction.
    """

    def __init__(self, problem: str, *, tried: Iterable[tuple[str, str]] = (), mend: str) -> None:
        self.problem = problem
        self.tried = tuple(tried)
        self.mend = mend
        reasons = "; ".join(f"{source}: {reason}" for source, reason in self.tried)
        told = f"{problem} ({reasons})" if reasons else problem
        super().__init__(f"{told}; {mend}")


class ServerUnreachable(PostgresUnavailable):
    """The server the user named did not answer, or refused what the laboratory needs."""

    exit_code = 3


class ServerControlError(SimlabError):
    """A pid, a stop or a start was asked of a server that cannot give it now, or that is not ours."""


class UnknownScenario(SimlabError):
    """A scenario, a variant or a size that does not exist."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        self.what = what
        self.name = name
        self.known = tuple(sorted(known))
        super().__init__(f"unknown {what} {name!r}; there are: {', '.join(self.known) or 'none'}")


class InvalidExperiment(SimlabError):
    """A seed, a fault, a size or a saved result that cannot be used."""


class ReplayDiffers(SimlabError):
    """A saved experiment came out differently when it was run again.

    Parameters
    ----------
    file
        Where the experiment was saved.
    difference
        What differs first, as a sentence.
    """

    def __init__(self, file: str, difference: str) -> None:
        self.file = file
        self.difference = difference
        super().__init__(f"{file} does not replay: {difference}")


class SimulationError(SimlabError):
    """The simulation itself cannot go on."""


class ForeignAwait(SimulationError):
    """A coroutine in simulated time awaited something that is not its clock's.

    asyncio's sleeps, futures and locks run on a real loop in real time; none of them can advance here.
    """

    def __init__(self, what: str, where: str) -> None:
        self.what = what
        self.where = where
        super().__init__(
            f"{where} awaits {what}, which cannot run in simulated time; "
            f"await the clock instead (in a handler: job.sleep)"
        )


class SimulationStalled(SimulationError):
    """Very many steps without time advancing: something spins."""

    def __init__(self, now_us: int, limit: int, spinners: Mapping[str, int]) -> None:
        self.now_us = now_us
        self.spinners = dict(spinners)
        names = ", ".join(
            f"{name} ({count} of the last steps)"
            for name, count in sorted(self.spinners.items(), key=lambda item: (-item[1], item[0]))[:5]
        )
        super().__init__(f"{limit:,} steps at {now_us} us without time advancing; spinning: {names}")
