"""The demo: one crash, in three worlds, made harmless; with pictures and a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler.console import table_text
from simlab.checks import Verdict
from simlab.crosschecks import CrossCheck, crosscheck
from simlab.errors import PostgresUnavailable
from simlab.experiment import simulate
from simlab.pgserver import throwaway_postgres
from simlab.report import write_report
from simlab.results import Result
from simlab.scenarios import find_scenario

__all__ = ["Demo", "run_demo"]

SCENARIO = "crash-after-execution"

Progress = Callable[[Sequence[str]], Iterable[str]]


@dataclass(frozen=True, kw_only=True)
class Demo:
    """What the demo came to.

    Attributes
    ----------
    results
        The runs on the model: the real scheduler first, then each famous mistake.
    checked
        The same against PostgreSQL; empty when none could be had.
    missing
        Why there was no PostgreSQL, and the mend; None when there was.
    report
        The page that was written.
    """

    results: tuple[Result, ...]
    checked: tuple[CrossCheck, ...]
    missing: str | None
    report: Path

    @property
    def verdict(self) -> Verdict:
        """VALID when each run came to what is expected of it, everywhere, with equal digests."""
        expected = [Verdict.VALID if result.variant is None else Verdict.INVALID for result in self.results]
        if [result.verdict for result in self.results] != expected:
            return Verdict.INVALID
        if any(check.verdict is Verdict.INVALID for check in self.checked):
            return Verdict.INVALID
        return Verdict.VALID if self.missing is None else Verdict.UNKNOWN

    def rows(self) -> list[dict[str, Any]]:
        """Return one row a run, for tables."""
        if self.checked:
            return [check.row() for check in self.checked]
        return [
            {
                "scenario": result.scenario,
                "variant": result.variant,
                "seed": result.seed,
                "model": result.verdict.value,
                "postgres": "not run",
                "digests_equal": None,
                "virtual_s": result.virtual_s,
                "model_wall_s": round(result.wall_s, 3),
                "postgres_wall_s": None,
            }
            for result in self.results
        ]

    def summary(self) -> dict[str, Any]:
        """Return what the command prints as JSON."""
        return {
            "verdict": self.verdict.value,
            "rows": self.rows(),
            "real": [story for check in self.checked for story in check.summary()["real"]],
            "missing": self.missing,
            "report": str(self.report),
        }

    def table(self) -> str:
        """Return what the command prints."""
        header = ("scenario", "seed", "model", "PostgreSQL", "digests", "virtual s", "wall s")
        text = [table_text(header, [_cells(row) for row in self.rows()])]
        text.append("")
        for check in self.checked:
            text += [line.strip() for line in check.story().splitlines() if "real time" in line]
            if check.difference is not None:
                text.append(str(check.difference))
        if self.missing is not None:
            text.append(f"PostgreSQL was not run: {self.missing}")
        text += ["A famous mistake is meant to be INVALID: the checks must catch it.", "", f"{self.verdict}"]
        text[-1] += f": the report is {self.report}"
        return "\n".join(text)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    mistake = row["variant"] is not None
    equal = {True: "equal", False: "DIFFERENT", None: "-"}[row["digests_equal"]]
    walls = [f"{row[name]:.2f}" for name in ("model_wall_s", "postgres_wall_s") if row[name] is not None]
    return (
        row["scenario"] + (f" --variant {row['variant']}" if mistake else ""),
        str(row["seed"]),
        row["model"],
        row["postgres"],
        equal,
        f"{row['virtual_s']:g}",
        " + ".join(walls),
    )


def run_demo(*, seed: int, out: Path, source: str | None, progress: Progress) -> Demo:
    """Run the demo and write its report.

    Parameters
    ----------
    out
        The folder for plots and ``report.html``; made if need be.
    source
        Where PostgreSQL must come from; None for the first that works.
    progress
        Given the names of the steps, yields them one by one as they are done.
    """
    variants = [None, *(variant.name for variant in find_scenario(SCENARIO).variants)]
    missing: str | None = None
    checked: list[CrossCheck] = []
    try:
        with throwaway_postgres(source) as server:
            steps = {f"cross-check: {variant or 'the real scheduler'}": variant for variant in variants}
            checked = [
                crosscheck(SCENARIO, seed=seed, variant=steps[step], server=server)
                for step in progress(list(steps))
            ]
    except PostgresUnavailable as error:
        missing = str(error)
    results = (
        [check.model for check in checked]
        if missing is None
        else [simulate(SCENARIO, seed=seed, variant=variant) for variant in variants]
    )
    demo = Demo(results=tuple(results), checked=tuple(checked), missing=missing, report=out / "report.html")
    write_report(
        results, out, title="A crash after execution, made harmless", tables={"Three worlds": demo.rows()}
    )
    return demo
