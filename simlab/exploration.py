"""Exploring: a search for an experiment that fails, shrunk to the fewest faults and deviations.

Hypothesis draws load, faults, clocks and the order of what happens at one instant (:mod:`simlab.workloads`
says how, and within which bounds the real scheduler must survive all of it), watches for an INVALID verdict,
shrinks what it found and remembers it: the next search begins with what failed before.

A search keeps to its budget, in wall seconds or in runs. Neither makes two searches equal: what Hypothesis
draws also depends on what it remembers and on which modules are loaded. What was found replays bit for bit.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import FlakyFailure
from hypothesis.strategies import DrawFn, SearchStrategy

from simlab.checks import CheckResult, Verdict
from simlab.errors import InvalidExperiment
from simlab.experiment import simulate
from simlab.faults import FAULTS, Fault
from simlab.marks import count_marks, never
from simlab.replays import save_experiment, save_plan
from simlab.results import Result, made_folder
from simlab.scenario import Scenario
from simlab.scenarios import find_scenario
from simlab.sweeps import judged
from simlab.workloads import MAX_DECISIONS, MAX_ORDER, Choice, Workload, draw_experiment, draw_faults

__all__ = ["Exploration", "Found", "explore"]

T = TypeVar("T")

ROUND = 100
"""So many experiments are drawn before the search begins afresh, with the next seed."""

MAX_RUNS = 10_000_000
MAX_SEED = 1000
"""The seeds of the runs themselves (of latencies, identities) are drawn from 0 to this; small ones read better."""

EXTRA_FAULTS = 3
"""A scenario with a story of its own gets at most so many faults besides it."""

EXTRA_LONGEST_S = 60

# What a story's client does not expect: it does not repeat its calls. The store's clock is part of the story.
_NOT_EXTRA = frozenset({"StoreRestart", "SlowStore", "LockHeld", "StoreClockStep"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """One experiment that the search drew."""

    seed: int
    faults: tuple[Fault, ...]
    decisions: tuple[int, ...]
    workload: Workload | None = None


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search found, shrunk.

    Attributes
    ----------
    check
        The check that fails, with its sentence.
    result
        The run; None when an exception ended it.
    file
        The experiment file that ``simlab replay`` runs again.
    """

    check: CheckResult
    seed: int
    faults: tuple[Fault, ...]
    decisions: tuple[int, ...]
    workload: Workload | None
    result: Result | None
    file: Path

    def story(self) -> str:
        """Return the plan in words, and what came of it."""
        lines = [f"{self.check.name}: {self.check.says}", "", f"seed {self.seed}"]
        if self.workload is not None:
            lines += str(self.workload).splitlines()
        lines += [f"fault: {fault}" for fault in self.faults] or ["no faults"]
        if any(self.decisions):
            lines.append(
                f"order at one instant: {', '.join(map(str, self.decisions))} (0: first come, first served)"
            )
        if self.result is not None:
            lines += ["", self.result.story()]
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """What a search came to."""

    scenario: str
    variant: str | None
    seed: int
    runs: int
    wall_s: float
    never: tuple[str, ...]
    found: Found | None

    @property
    def verdict(self) -> Verdict:
        if self.found is not None:
            return Verdict.INVALID
        return Verdict.VALID if self.runs else Verdict.UNKNOWN

    @property
    def runs_per_s(self) -> float:
        return round(self.runs / self.wall_s, 1) if self.wall_s else 0.0

    def summary(self) -> dict[str, Any]:
        """Return what a command prints as JSON."""
        found = self.found
        return {
            "scenario": self.scenario,
            "variant": self.variant,
            "seed": self.seed,
            "verdict": self.verdict.value,
            "runs": self.runs,
            "runs_per_s": self.runs_per_s,
            "wall_s": round(self.wall_s, 3),
            "never": list(self.never),
            "found": None
            if found is None
            else {
                "check": found.check.name,
                "says": found.check.says,
                "faults": [str(fault) for fault in found.faults],
                "decisions": list(found.decisions),
                "digest": None if found.result is None else found.result.digest,
                "file": str(found.file),
            },
        }

    def story(self) -> str:
        """Return what a command prints."""
        name = self.scenario + (f" with the mistake {self.variant}" if self.variant else "")
        head = f"{self.runs} runs of {name} in {self.wall_s:.1f} s ({self.runs_per_s} a second)"
        lines = [f"{head}: {'FOUND' if self.found else 'nothing found'}"]
        if self.found is not None:
            lines += [f"  {line}".rstrip() for line in self.found.story().splitlines()]
            lines += ["", f"replay it with: simlab replay {shlex.quote(str(self.found.file))}"]
        lines += [f"never happened: {mark}" for mark in self.never]
        return "\n".join(lines)


class _Drawn:
    """A choice that Hypothesis makes, and shrinks."""

    def __init__(self, draw: DrawFn) -> None:
        self._draw = draw

    def whole(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def one_of(self, values: Sequence[T]) -> T:
        return self._draw(st.sampled_from(values))

    def several(self, make: Callable[[Choice], T], *, low: int, high: int) -> tuple[T, ...]:
        return tuple(self._draw(st.lists(_made(make), min_size=low, max_size=high)))


@st.composite
def _made(draw: DrawFn, make: Callable[[Choice], T]) -> T:
    return make(_Drawn(draw))


def _draw_all(choice: Choice, *, max_jobs: int, max_faults: int) -> _Candidate:
    drawn = draw_experiment(choice, max_jobs=max_jobs, max_faults=max_faults)
    return _Candidate(
        seed=choice.whole(0, MAX_SEED),
        faults=drawn.faults,
        decisions=drawn.decisions,
        workload=drawn.workload,
    )


def _draw_extra(
    choice: Choice, *, own: tuple[Fault, ...], workers: tuple[str, ...], n_jobs: int, window_s: int
) -> _Candidate:
    kinds = tuple(kind for kind in FAULTS if kind not in _NOT_EXTRA and choice.whole(0, 1))
    extra = draw_faults(
        choice,
        kinds=kinds,
        workers=workers,
        others=(),
        n_jobs=n_jobs,
        window_s=window_s,
        longest_s=EXTRA_LONGEST_S,
        max_faults=EXTRA_FAULTS,
    )
    return _Candidate(
        seed=choice.whole(0, MAX_SEED),
        faults=(*own, *extra),
        decisions=choice.several(lambda one: one.whole(0, MAX_ORDER), low=0, high=MAX_DECISIONS),
    )


def _candidates(found: Scenario, sizes: dict[str, Any]) -> SearchStrategy[_Candidate]:
    """Return what to draw from: everything for a scenario that the seed invents, else faults besides its own."""
    if found.draw is not None:
        return _made(partial(_draw_all, max_jobs=sizes["max_jobs"], max_faults=sizes["max_faults"]))
    # What there is to strike is seen in a healthy run.
    healthy = simulate(found.name, seed=0, faults=(), **sizes)
    workers = tuple(sorted({event.host for event in healthy.history if event.kind == "claimed"}))
    if not workers:
        raise InvalidExperiment(f"{found.name}: no worker claims anything, so there is nothing to explore")
    return _made(
        partial(
            _draw_extra,
            own=found.faults(sizes),
            workers=workers,
            n_jobs=len(healthy.table),
            window_s=max(1, found.until_us(sizes) // 2_000_000),
        )
    )


class _Failed(Exception):
    """What a failing experiment raises, at one place, so that Hypothesis takes all of them for one failure."""


@dataclass
class _Hunter:
    """Runs candidates until the budget is spent, and keeps account."""

    scenario: str
    variant: str | None
    sizes: dict[str, Any]
    deadline_s: float
    max_runs: int
    grace_s: float
    grace_runs: int
    progress: Callable[[int, bool], None] | None
    runs: int = 0
    marks: Counter[str] = field(default_factory=Counter)
    known: dict[_Candidate, CheckResult | None] = field(default_factory=dict)
    check: str | None = None
    last: _Candidate | None = None

    def spent(self) -> bool:
        """Say whether the search must end; once something is found, shrinking has a grace of its own."""
        grace_s, grace_runs = (self.grace_s, self.grace_runs) if self.check is not None else (0.0, 0)
        return self.runs >= self.max_runs + grace_runs or time.monotonic() >= self.deadline_s + grace_s

    def attempt(self, candidate: _Candidate) -> None:
        """Run a candidate; raise if it fails the check that this search is after."""
        if candidate not in self.known:
            if self.spent():
                return
            self.known[candidate] = self._run(candidate)
        broken = self.known[candidate]
        if broken is None:
            return
        # The first check that fails is the one to shrink: otherwise one failure would turn into another.
        if self.check is None:
            self.check = broken.name
        if broken.name == self.check:
            self.last = candidate
            raise _Failed(self.check)

    def _run(self, candidate: _Candidate) -> CheckResult | None:
        self.runs += 1
        result, checks = judged(partial(self.simulate, candidate))
        if result is not None:
            self.marks.update(count_marks(result.history))
        broken = [check for check in checks if check.verdict is Verdict.INVALID]
        if self.progress is not None:
            self.progress(self.runs, self.check is not None or bool(broken))
        wanted = [check for check in broken if check.name == self.check]
        return next(iter(wanted or broken), None)

    def simulate(self, candidate: _Candidate) -> Result:
        return simulate(
            self.scenario,
            seed=candidate.seed,
            variant=self.variant,
            faults=candidate.faults,
            decisions=candidate.decisions,
            workload=candidate.workload,
            **self.sizes,
        )


def explore(
    scenario: str = "mixed",
    *,
    budget_s: float = 60.0,
    max_runs: int | None = None,
    variant: str | None = None,
    seed: int = 0,
    out: str | Path = "out/explore",
    progress: Callable[[int, bool], None] | None = None,
    **sizes: Any,
) -> Exploration:
    """Search for an experiment that fails.

    Parameters
    ----------
    scenario
        ``mixed``, where everything is drawn; or another, whose story gets up to `EXTRA_FAULTS` more faults.
    budget_s, max_runs
        When to give up, in wall seconds or after so many runs. Shrinking what was found may take as long again.
    variant
        A famous mistake to be found, in place of the real scheduler.
    seed
        Where the search begins.
    out
        Where the replay file goes, and what earlier searches found.
    progress
        Called after each run with the number of runs, and whether something was found and is being shrunk.
    **sizes
        The scenario's sizes, in place of its small ones.

    Raises
    ------
    UnknownScenario
        If the scenario, the variant or a size does not exist.
    InvalidExperiment
        If the budget or the seed cannot be used, or `out` cannot be made.
    """
    if not 0 < budget_s < float("inf"):
        raise InvalidExperiment(f"a budget of {budget_s:g} s: must be more than 0 s, and finite")
    if type(seed) is not int or seed < 0:
        raise InvalidExperiment(f"seed={seed!r}: must be a whole number of at least 0")
    if max_runs is not None and (type(max_runs) is not int or max_runs < 1):
        raise InvalidExperiment(f"max_runs={max_runs!r}: must be a whole number of at least 1")
    found = find_scenario(scenario)
    found.variant(variant)
    checked = found.sized({**found.small, **sizes})
    folder = made_folder(out)
    candidates = _candidates(found, checked)
    began_s = time.monotonic()
    most = MAX_RUNS if max_runs is None else max_runs
    hunter = _Hunter(
        scenario=scenario,
        variant=variant,
        sizes=checked,
        deadline_s=began_s + budget_s,
        max_runs=most,
        grace_s=budget_s,
        grace_runs=most if max_runs is not None else 0,
        progress=progress,
    )
    memory = folder / ".hypothesis" / f"{scenario}--{variant or 'real'}"
    number = 0
    with _home(folder):
        while hunter.last is None and not hunter.spent():
            _search(hunter, candidates, memory=memory, seed=seed * 1_000_003 + number, first=number == 0)
            number += 1
    shown = None if hunter.last is None else _shown(hunter, hunter.last, folder)
    return Exploration(
        scenario=scenario,
        variant=variant,
        seed=seed,
        runs=hunter.runs,
        wall_s=time.monotonic() - began_s,
        never=tuple(never([hunter.marks])),
        found=shown,
    )


@contextmanager
def _home(folder: Path) -> Iterator[None]:
    """Have Hypothesis keep everything of its own in a folder: by default that would be the current one."""
    set_hypothesis_home_dir(folder / ".hypothesis")
    try:
        yield
    finally:
        set_hypothesis_home_dir(None)


def _search(
    hunter: _Hunter, candidates: SearchStrategy[_Candidate], *, memory: Path, seed: int, first: bool
) -> None:
    phases = [Phase.generate, Phase.shrink]

    # `seed` inside `settings`: the other way round it would switch the database off.
    @settings(
        max_examples=ROUND,
        phases=[Phase.reuse, *phases] if first else phases,
        database=DirectoryBasedExampleDatabase(memory),
        derandomize=False,
        deadline=None,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @seeded(seed)
    @given(candidates)
    def find_failure(candidate: _Candidate) -> None:
        hunter.attempt(candidate)

    try:
        find_failure()
    except (_Failed, FlakyFailure):
        # Flaky it is only where the budget cut the shrinking short; what was last seen to fail is what counts.
        return


def _shown(hunter: _Hunter, candidate: _Candidate, out: Path) -> Found:
    result, checks = judged(partial(hunter.simulate, candidate))
    check = next(check for check in checks if check.name == hunter.check)
    name = "-".join([hunter.scenario, *([hunter.variant] if hunter.variant else []), check.name])
    file = out / f"{name}.json"
    if result is not None:
        save_experiment(result, file)
    else:
        save_plan(
            file,
            scenario=hunter.scenario,
            seed=candidate.seed,
            variant=hunter.variant,
            sizes=hunter.sizes,
            workload=candidate.workload,
            faults=candidate.faults,
            decisions=candidate.decisions,
        )
    return Found(
        check=check,
        seed=candidate.seed,
        faults=candidate.faults,
        decisions=candidate.decisions,
        workload=candidate.workload,
        result=result,
        file=file,
    )
