"""What a run of chaos came to: the result that any run has, what was counted, and the lateness of a calm run."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simlab.chaos.lateness import LatenessComparison
from simlab.checks import Verdict
from simlab.results import Result

__all__ = ["ChaosResult"]


@dataclass(frozen=True, kw_only=True)
class ChaosResult:
    """What a run of chaos came to.

    Attributes
    ----------
    result
        The run as any other run of the laboratory: history, tables, checks, frames, pictures.
    acts
        How often each kind of act was done.
    executions, idempotent_effects, plain_effects
        How often handlers began, and how often the world was changed, with and without deduplication.
    duplicates, refused
        Changes by plain jobs beyond one a job, and those that deduplication refused.
    acknowledged, retried_calls
        Jobs that the enqueueing client was told of; its calls that were not answered and made again.
    lives
        How many worker processes there were.
    converged_s
        How long after the healing the last job asked for had ended, in seconds; None when not within the bound.
    lateness
        The calm run beside its prediction; None when it was left out.
    server
        Which PostgreSQL it was, and why that one.
    """

    result: Result
    acts: dict[str, int]
    executions: int
    idempotent_effects: int
    plain_effects: int
    duplicates: int
    refused: int
    acknowledged: int
    retried_calls: int
    lives: int
    converged_s: float | None
    lateness: LatenessComparison | None
    server: str

    @property
    def verdict(self) -> Verdict:
        """What the checks say; where they say VALID, what the comparison of lateness says."""
        if self.result.verdict is Verdict.VALID and self.lateness is not None:
            return self.lateness.verdict
        return self.result.verdict

    def summary(self) -> dict[str, Any]:
        """Return what a command prints as JSON."""
        return {
            **self.result.summary(),
            "verdict": self.verdict.value,
            "acts": self.acts,
            "executions": self.executions,
            "idempotent_effects": self.idempotent_effects,
            "plain_effects": self.plain_effects,
            "duplicates": self.duplicates,
            "refused": self.refused,
            "acknowledged": self.acknowledged,
            "retried_calls": self.retried_calls,
            "worker_lives": self.lives,
            "converged_s": None if self.converged_s is None else round(self.converged_s, 3),
            "lateness": None if self.lateness is None else self.lateness.summary(),
            "server": self.server,
        }

    def save(self, folder: str | Path) -> Path:
        """Write the run as any other (`Result.load` reads it back), ``chaos.json``, and ``lateness.csv``."""
        path = self.result.save(folder)
        (path / "chaos.json").write_text(json.dumps(self.summary(), indent=1) + "\n", encoding="utf-8")
        if self.lateness is not None:
            self.lateness.frame().to_csv(path / "lateness.csv", index=False)
        return path

    def story(self) -> str:
        """Return the run as lines of text; with the story of a job where a check failed."""
        acts = ", ".join(f"{count} {kind}" for kind, count in self.acts.items()) or "none"
        states = Counter(row.state.value for row in self.result.table)
        ended = (
            f"{self.converged_s:.1f} s after the healing" if self.converged_s is not None else "NOT in time"
        )
        who = f" of {self.result.variant}" if self.result.variant else ""
        lines = [
            f"chaos{who}, seed {self.result.seed}: {self.verdict}, {self.result.wall_s:.0f} s of real time",
            f"  acts        {sum(self.acts.values())}: {acts}",
            f"  workers     {self.result.params['workers']}, in {self.lives} lives",
            (
                f"  jobs        {len(self.result.table):,}: "
                + ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))
            ),
            (
                f"  enqueueing  {self.acknowledged:,} acknowledged, {self.retried_calls} calls unanswered and "
                f"made again"
            ),
            f"  executions  {self.executions:,}",
            (
                f"  effects     with deduplication {self.idempotent_effects:,}, and {self.refused:,} refused as "
                f"seen before; without {self.plain_effects:,}, of them {self.duplicates:,} duplicates"
            ),
            f"  all ended   {ended}",
        ]
        lines += [
            f"  {check.verdict:<8}    {check.name}{': ' + check.says if check.says else ''}"
            for check in self.result.checks
        ]
        if self.lateness is not None:
            lines += [f"  {line}" for line in self.lateness.lines()]
        lines.append(f"  {self.server}")
        if self.result.verdict is Verdict.INVALID:
            lines += ["", self.result.story()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"<ChaosResult seed={self.result.seed}: {self.verdict}, {sum(self.acts.values())} acts, "
            f"{len(self.result.table):,} jobs, {self.duplicates} duplicates>"
        )
