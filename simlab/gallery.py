"""The gallery: every scenario in pictures, the real scheduler beside each famous mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from simlab.checks import Verdict
from simlab.experiment import simulate
from simlab.plots import plot_side_by_side
from simlab.report import save_figure, write_report
from simlab.results import Result, made_folder
from simlab.scenario import Scenario
from simlab.scenarios import SCENARIOS, find_scenario

__all__ = ["write_gallery"]

SEEDS_TO_TRY = 50
"""How many seeds a mistake has, to show itself; the last is taken when it does not."""

_INDEX = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>The scenarios</title>
<style>body {{ font: 15px/1.6 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}</style>
<h1>The scenarios</h1>
<ul>
{items}
</ul>
</html>
"""

Progress = Callable[[Sequence[str]], Iterable[str]]


def write_gallery(
    folder: str | Path, *, scenarios: Sequence[str] | None = None, progress: Progress = iter
) -> Path:
    """Write a page a scenario, and one that lists them.

    Parameters
    ----------
    folder
        Made if need be.
    scenarios
        Names; by default all.
    progress
        Passes on the names it is given, one by one.

    Returns
    -------
    pathlib.Path
        The page with the list.
    """
    path = made_folder(folder)
    items = []
    for name in progress(list(scenarios if scenarios is not None else SCENARIOS)):
        scenario = find_scenario(name)
        page = _write_scenario(scenario, path / name)
        link = page.relative_to(path).as_posix()
        items.append(f'<li><a href="{escape(link)}">{escape(name)}</a>: {escape(scenario.teaches)}</li>')
    index = path / "index.html"
    index.write_text(_INDEX.format(items="\n".join(items)), encoding="utf-8")
    return index


def _write_scenario(scenario: Scenario, folder: Path) -> Path:
    sizes: dict[str, Any] = dict(scenario.small)
    real = simulate(scenario.name, seed=0, **sizes)
    results = [real]
    made_folder(folder)
    for variant in scenario.variants:
        naive = _caught(scenario, variant.name, variant.caught_by)
        twin = real if naive.seed == real.seed else simulate(scenario.name, seed=naive.seed, **sizes)
        save_figure(plot_side_by_side(twin, naive), folder / f"real-beside-{variant.name}.png")
        results.append(naive)
    return write_report(results, folder, title=f"{scenario.name}: {scenario.teaches}")


def _caught(scenario: Scenario, variant: str, caught_by: Sequence[str]) -> Result:
    """Return the first run in which a mistake shows, or the last that was tried."""
    sizes: dict[str, Any] = dict(scenario.small)
    runs = (simulate(scenario.name, seed=seed, variant=variant, **sizes) for seed in range(SEEDS_TO_TRY))
    for run in runs:
        if run.seed == SEEDS_TO_TRY - 1 or any(
            check.name in caught_by and check.verdict is Verdict.INVALID for check in run.checks
        ):
            return run
    raise AssertionError("there is always a last seed")
