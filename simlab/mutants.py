"""The famous mistakes, all of them: each must be caught in each scenario that lists it, by a check it names.

And the other half of the proof: in the same scenarios the real scheduler must be VALID. A mistake that only
other checks catch counts as escaped, for then nobody knows any more what those other checks are for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import joblib
import pandas as pd

from scheduler.console import table_text
from scheduler.postgres import PostgresStore
from simlab.checks import Verdict
from simlab.errors import InvalidExperiment
from simlab.experiment import STORES, simulate
from simlab.scenario import Scenario, Variant
from simlab.scenarios import SCENARIOS
from simlab.store import ModelStore
from simlab.sweeps import judged, run_batches

if TYPE_CHECKING:
    from simlab.pgserver import PostgresServer

__all__ = ["REAL_SEEDS", "Hunt", "Mutants", "Proof", "hunt_mutants"]

REAL_SEEDS = 20
"""With so many seeds the real scheduler is run in each scenario, by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunt:
    """How one mistake fared in one scenario.

    Attributes
    ----------
    caught_by, seed
        The check that caught it, and with which seed; empty and None when it escaped.
    tried
        How many seeds that took, or were tried in vain.
    others
        The checks that said INVALID and are none of those the mistake names.
    """

    mistake: str
    scenario: str
    caught_by: str
    seed: int | None
    tried: int
    others: tuple[str, ...] = ()

    @property
    def escaped(self) -> bool:
        return self.seed is None

    def __str__(self) -> str:
        others = ", ".join(self.others)
        if not self.escaped:
            return f"caught by {self.caught_by}"
        return f"ESCAPED ({f'caught only by {others}' if others else 'no check caught it'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How the real scheduler fared in one scenario; `seed`, `check` and `says` are of the first failure."""

    scenario: str
    runs: int
    verdict: Verdict = Verdict.VALID
    seed: int | None = None
    check: str = ""
    says: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutants:
    """What the hunt came to."""

    store: str
    hunts: tuple[Hunt, ...]
    proofs: tuple[Proof, ...]

    @property
    def escaped(self) -> tuple[Hunt, ...]:
        return tuple(hunt for hunt in self.hunts if hunt.escaped)

    @property
    def ok(self) -> bool:
        """Whether every mistake was caught and the real scheduler is VALID everywhere."""
        return not self.escaped and all(proof.verdict is Verdict.VALID for proof in self.proofs)

    def frame(self) -> pd.DataFrame:
        """Return one row a mistake and scenario: `mistake`, `scenario`, `caught_by`, `seed`, `tried`, `escaped`, `others`."""
        rows = [
            {**asdict(hunt), "others": ", ".join(hunt.others), "escaped": hunt.escaped} for hunt in self.hunts
        ]
        columns = ["mistake", "scenario", "caught_by", "seed", "tried", "escaped", "others"]
        return pd.DataFrame(rows, columns=columns).astype({"seed": "Int64"})

    def summary(self) -> dict[str, Any]:
        """Return what a command prints as JSON."""
        return {
            "ok": self.ok,
            "store": self.store,
            "mistakes": [
                {**asdict(hunt), "others": list(hunt.others), "escaped": hunt.escaped} for hunt in self.hunts
            ],
            "real": [{**asdict(proof), "verdict": proof.verdict.value} for proof in self.proofs],
        }

    def table(self) -> str:
        """Return the table for people, and what it comes to."""
        rows = [
            (
                hunt.mistake,
                hunt.scenario,
                hunt.caught_by or str(hunt),
                "-" if hunt.seed is None else str(hunt.seed),
                f"{hunt.tried} seed{'s' if hunt.tried != 1 else ''}",
            )
            for hunt in self.hunts
        ]
        lines = []
        if rows:
            lines += [table_text(("mistake", "scenario", "caught by", "seed", "after"), rows), ""]
        proofs = [(proof.scenario, str(proof.runs), proof.verdict.value) for proof in self.proofs]
        lines += [table_text(("the real scheduler in", "runs", "verdict"), proofs)]
        mistakes = len({hunt.mistake for hunt in self.hunts})
        places = f"{mistakes} mistake{'s' if mistakes != 1 else ''} in {len(self.proofs)} scenario{'s' if len(self.proofs) != 1 else ''}"
        escaped = sorted({hunt.mistake for hunt in self.escaped})
        lines += [
            "",
            f"{places} on the {self.store} store: "
            + (f"{len(escaped)} escaped ({', '.join(escaped)})" if escaped else "every one was caught"),
        ]
        lines += [
            f"the real scheduler is {proof.verdict} in {proof.scenario}, seed {proof.seed}: {proof.check}: {proof.says}"
            for proof in self.proofs
            if proof.verdict is not Verdict.VALID
        ]
        return "\n".join(lines)


def hunt_mutants(
    *,
    seeds: int = 200,
    real_seeds: int = REAL_SEEDS,
    store: str = "model",
    server: PostgresServer | None = None,
    jobs_parallel: int | None = None,
    scenarios: Mapping[str, Scenario] = SCENARIOS,
    progress: Callable[[int, int], None] | None = None,
) -> Mutants:
    """Hunt every mistake in every scenario that lists it, and run the real scheduler in the same scenarios.

    Parameters
    ----------
    seeds
        A mistake that so many seeds, from 0, do not catch has escaped.
    real_seeds
        With how many seeds, from 0, the real scheduler is run in each scenario.
    store, server
        ``"model"``, or ``"postgres"`` with a server; on PostgreSQL one run follows the other.
    jobs_parallel
        How many processes; by default one for each core.
    scenarios
        Where to hunt; each is told with its small sizes, so that the hunt takes minutes.
    progress
        Called with how many parts of the hunt are done, and how many there are.
    """
    for name, count in (("seeds", seeds), ("real_seeds", real_seeds)):
        if type(count) is not int or count < 1:
            raise InvalidExperiment(f"{name}={count!r}: must be a whole number of at least 1")
    if store not in STORES:
        raise InvalidExperiment(f"store={store!r}: there are {' and '.join(STORES)}")
    options: dict[str, Any] = {"store": store}
    if store == "postgres":
        if server is None:
            raise InvalidExperiment("mutants on PostgreSQL need a server")
        options["server"], jobs_parallel = server, 1
    calls = [
        joblib.delayed(_hunt)(
            scenario.name, variant.name, variant.caught_by, seeds, {**options, **scenario.small}
        )
        for scenario in scenarios.values()
        for variant in scenario.variants
        if _runs_on(variant, store)
    ]
    hunted = len(calls)
    calls += [
        joblib.delayed(_prove)(scenario.name, real_seeds, {**options, **scenario.small})
        for scenario in scenarios.values()
    ]
    done: list[Any] = []
    for result in run_batches(calls, jobs_parallel=jobs_parallel):
        done.append(result)
        if progress is not None:
            progress(len(done), len(calls))
    hunts = sorted(done[:hunted], key=lambda hunt: (hunt.mistake, hunt.scenario))
    return Mutants(store=store, hunts=tuple(hunts), proofs=tuple(done[hunted:]))


def _runs_on(variant: Variant, store: str) -> bool:
    """Say whether a mistake is one on this store: some replace only what the model decides."""
    if store == "model" or variant.model_store is ModelStore:
        return True
    return (
        variant.postgres_store is not PostgresStore or variant.rewrite is not None or variant.wrap is not None
    )


def _hunt(
    scenario: str, mistake: str, caught_by: Sequence[str], seeds: int, options: Mapping[str, Any]
) -> Hunt:
    others: dict[str, None] = {}
    for seed in range(seeds):
        _, checks = judged(partial(simulate, scenario, seed=seed, variant=mistake, **options))
        broken = [check.name for check in checks if check.verdict is Verdict.INVALID]
        others.update(dict.fromkeys(name for name in broken if name not in caught_by))
        by = next((name for name in caught_by if name in broken), None)
        if by is not None:
            return Hunt(
                mistake=mistake,
                scenario=scenario,
                caught_by=by,
                seed=seed,
                tried=seed + 1,
                others=tuple(others),
            )
    return Hunt(
        mistake=mistake, scenario=scenario, caught_by="", seed=None, tried=seeds, others=tuple(others)
    )


def _prove(scenario: str, seeds: int, options: Mapping[str, Any]) -> Proof:
    for seed in range(seeds):
        _, checks = judged(partial(simulate, scenario, seed=seed, **options))
        wrong = next((check for check in checks if check.verdict is not Verdict.VALID), None)
        if wrong is not None:
            return Proof(
                scenario=scenario,
                runs=seed + 1,
                verdict=wrong.verdict,
                seed=seed,
                check=wrong.name,
                says=wrong.says,
            )
    return Proof(scenario=scenario, runs=seeds)
