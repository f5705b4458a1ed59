"""The cross-check: whether the simulation tells the truth.

The same scenario and seed on the model and on PostgreSQL in virtual time, the two histories compared event by
event; and, where the story can be told with real processes, once more in real time with a real SIGKILL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

from simlab.chaos import CrashStory, crash_after_execution
from simlab.checks import Verdict
from simlab.experiment import simulate
from simlab.faults import Fault
from simlab.history import Event
from simlab.pgserver import PostgresServer, throwaway_postgres
from simlab.results import Result
from simlab.scenarios import find_scenario

__all__ = ["CrossCheck", "Difference", "Story", "crosscheck", "crosscheck_many", "first_difference"]

SURROUNDINGS = 3
"""How many events are shown before and after the first one that differs."""

RealStories = Mapping[str, Callable[[PostgresServer], tuple[CrashStory, ...]]]

REAL_STORIES: RealStories = {
    "crash-after-execution": lambda server: tuple(
        crash_after_execution(server, idempotent=idempotent) for idempotent in (True, False)
    ),
}
"""The scenarios that are also told with real processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where two histories part.

    `position` is the number of the event, from 0; None when all events agree and the final tables do not.
    `model` and `postgres` are the lines around it, the differing one marked with ``>``.
    """

    position: int | None
    model: tuple[str, ...]
    postgres: tuple[str, ...]

    def __str__(self) -> str:
        where = "the final tables differ" if self.position is None else f"event {self.position} differs"
        return "\n".join(
            [f"{where}", "  model:", *(f"  {line}" for line in self.model), "  postgres:"]
            + [f"  {line}" for line in self.postgres]
        )


@dataclass(frozen=True, kw_only=True)
class CrossCheck:
    """The same seed on both stores, and the story in real time.

    Attributes
    ----------
    difference
        Where the two histories part; None when they do not.
    real
        What real processes came to; empty when the scenario has no such story, or it was left out.
    """

    model: Result
    postgres: Result
    difference: Difference | None
    real: tuple[CrashStory, ...]
    expected: Verdict
    server: str

    @property
    def digests_equal(self) -> bool:
        return self.model.digest == self.postgres.digest

    @property
    def verdict(self) -> Verdict:
        """VALID when both agree to the event, both came to what is expected, and so did real processes."""
        told = [self.model.verdict, self.postgres.verdict]
        if Verdict.UNKNOWN in told:
            return Verdict.UNKNOWN
        agreed = self.digests_equal and told == [self.expected, self.expected]
        return Verdict.VALID if agreed and all(story.as_expected for story in self.real) else Verdict.INVALID

    def row(self) -> dict[str, Any]:
        """Return one row of the table that commands and reports show."""
        return {
            "scenario": self.model.scenario,
            "variant": self.model.variant,
            "seed": self.model.seed,
            "model": self.model.verdict.value,
            "postgres": self.postgres.verdict.value,
            "digests_equal": self.digests_equal,
            "virtual_s": self.model.virtual_s,
            "model_wall_s": round(self.model.wall_s, 3),
            "postgres_wall_s": round(self.postgres.wall_s, 3),
        }

    def summary(self) -> dict[str, Any]:
        """Return what a command prints as JSON."""
        return {
            **self.row(),
            "verdict": self.verdict.value,
            "expected": self.expected.value,
            "server": self.server,
            "model_digest": self.model.digest,
            "postgres_digest": self.postgres.digest,
            "difference": None if self.difference is None else str(self.difference),
            "real": [
                {
                    "idempotent": story.idempotent,
                    "killed_by": story.killed_by,
                    "state": story.state.value,
                    "attempts": story.attempts,
                    "effects": story.effects,
                    "as_expected": story.as_expected,
                    "seconds": round(story.seconds, 2),
                }
                for story in self.real
            ],
        }

    def story(self) -> str:
        """Return the comparison as lines of text."""
        equal = "equal" if self.digests_equal else "DIFFERENT"
        lines = [
            repr(self),
            f"  model     {self.model.verdict:<8} {len(self.model.history):>6} events  digest {self.model.digest[:16]}",
            (
                f"  postgres  {self.postgres.verdict:<8} {len(self.postgres.history):>6} events  "
                f"digest {self.postgres.digest[:16]}  {equal}"
            ),
        ]
        if self.difference is not None:
            lines += [f"  {line}" for line in str(self.difference).splitlines()]
        for story in self.real:
            handler = "idempotent handler" if story.idempotent else "plain handler"
            told = "as it must be" if story.as_expected else "NOT as it must be"
            lines.append(
                f"  real time, {handler}: worker ended by {story.killed_by}, job {story.state} at attempt "
                f"{story.attempts}, {story.effects} effect{'s' if story.effects != 1 else ''}, {told} "
                f"({story.seconds:.1f} s)"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        variant = f", variant={self.model.variant!r}" if self.model.variant else ""
        equal = "digests equal" if self.digests_equal else "digests DIFFER"
        return f"<CrossCheck {self.model.scenario} seed={self.model.seed}{variant}: {self.verdict}, {equal}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.story())}</pre>"


def crosscheck(
    scenario: str,
    *,
    seed: int,
    variant: str | None = None,
    faults: Sequence[Fault] | None = None,
    server: PostgresServer | None = None,
    real: bool = True,
    **sizes: Any,
) -> CrossCheck:
    """Run a scenario on the model and on PostgreSQL in virtual time, compare, and tell it in real time.

    Parameters
    ----------
    server
        The PostgreSQL to use; by default a throwaway one is started and stopped.
    real
        Whether to tell the story with real processes too, where the scenario has one (some seconds).

    Raises
    ------
    PostgresUnavailable
        If no server could be had; and what :func:`~simlab.experiment.simulate` raises.
    """
    found = find_scenario(scenario)
    expected = Verdict.VALID if found.variant(variant) is None else Verdict.INVALID
    if server is None:
        with throwaway_postgres() as own:
            return crosscheck(
                scenario, seed=seed, variant=variant, faults=faults, server=own, real=real, **sizes
            )
    model = simulate(scenario, seed=seed, variant=variant, faults=faults, **sizes)
    postgres = simulate(
        scenario, seed=seed, variant=variant, faults=faults, store="postgres", server=server, **sizes
    )
    tell = REAL_STORIES.get(scenario) if real and variant is None else None
    return CrossCheck(
        model=model,
        postgres=postgres,
        difference=first_difference(model, postgres),
        real=tell(server) if tell is not None else (),
        expected=expected,
        server=server.why,
    )


def crosscheck_many(
    scenarios: Sequence[str],
    *,
    seeds: Sequence[int],
    server: PostgresServer,
    sizes: Mapping[str, Mapping[str, int]] | None = None,
    progress: Callable[[Sequence[Story]], Iterable[Story]] = iter,
) -> pd.DataFrame:
    """Cross-check scenarios, real and with each famous mistake, seed by seed, in virtual time.

    Parameters
    ----------
    sizes
        Sizes by scenario, for those that would take too long at their own.
    progress
        Passes on the stories it is given, one by one, as they are told.

    Returns
    -------
    pandas.DataFrame
        One row a scenario and variant: `scenario`, `variant` (missing for the real scheduler), `seeds`, `equal`
        (how many had equal digests), `as_expected` (how many verdicts of both stores were what they must be),
        `events`, `wall_s`, `first_difference` (of the first seed that differs, as text; missing when none does).

    Notes
    -----
    A mistake need not show at every seed; what counts for it is that both stores come to the same verdict.
    """
    stories = [
        Story(name, variant)
        for name in scenarios
        for variant in (None, *(variant.name for variant in find_scenario(name).variants))
    ]
    rows = [
        _compare_seeds(story, seeds, server=server, sizes=(sizes or {}).get(story.scenario, {}))
        for story in progress(stories)
    ]
    return pd.DataFrame(rows)


@dataclass(frozen=True, slots=True)
class Story:
    """A scenario, told with the real scheduler or with a famous mistake."""

    scenario: str
    variant: str | None

    def __str__(self) -> str:
        return self.scenario + (f" --variant {self.variant}" if self.variant else "")


def _compare_seeds(
    story: Story, seeds: Sequence[int], *, server: PostgresServer, sizes: Mapping[str, Any]
) -> dict[str, Any]:
    checks = [
        crosscheck(story.scenario, seed=seed, variant=story.variant, server=server, real=False, **sizes)
        for seed in seeds
    ]
    differing = next((check for check in checks if check.difference is not None), None)
    agreed = [
        check.model.verdict is check.postgres.verdict
        and (story.variant is not None or check.model.verdict is Verdict.VALID)
        for check in checks
    ]
    return {
        "scenario": story.scenario,
        "variant": story.variant,
        "seeds": len(checks),
        "equal": sum(check.digests_equal for check in checks),
        "as_expected": sum(agreed),
        "events": sum(len(check.model.history) for check in checks),
        "wall_s": round(sum(check.model.wall_s + check.postgres.wall_s for check in checks), 2),
        "first_difference": None
        if differing is None
        else f"seed {differing.model.seed}: {differing.difference}",
    }


def first_difference(model: Result, postgres: Result) -> Difference | None:
    """Return where two results part: the first event, else the first row of a final table; None if nowhere."""
    if model.digest == postgres.digest:
        return None
    left, right = list(model.history), list(postgres.history)
    for position in range(max(len(left), len(right))):
        if left[position : position + 1] != right[position : position + 1]:
            return Difference(
                position=position, model=_around(left, position), postgres=_around(right, position)
            )
    return Difference(
        position=None,
        model=_rows_apart(model, postgres),
        postgres=_rows_apart(postgres, model),
    )


def _around(events: Sequence[Event], position: int) -> tuple[str, ...]:
    first = max(0, position - SURROUNDINGS)
    lines = [
        f"{'>' if first + n == position else ' '} {event}"
        for n, event in enumerate(events[first : position + SURROUNDINGS + 1])
    ]
    return tuple(lines) if position < len(events) else (*lines, "> (the history ends here)")


def _rows_apart(one: Result, other: Result) -> tuple[str, ...]:
    pairs = ((one.table, other.table), (one.effects, other.effects))
    apart = [f"> {row}" for mine, theirs in pairs for row in mine if row not in theirs]
    return tuple(apart[:SURROUNDINGS]) or ("  (nothing that the other has not)",)
