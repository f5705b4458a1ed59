"""The commands that search: sweep, mutants, explore; and replay, which runs again what was found."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from tqdm import tqdm

from scheduler.console import print_json
from simlab.cli.common import (
    JsonOption,
    OutOption,
    PostgresOption,
    ScenarioArgument,
    SizesOption,
    VariantOption,
    cli,
    open_server,
    read_sizes,
    refuse_unwritable,
    seed_range,
    virtual_time_bar,
)
from simlab.errors import InvalidExperiment

__all__: list[str] = []

_BUDGET = re.compile(r"(\d+(?:\.\d+)?)(s|m)?", re.ASCII)
_UNIT_S = {None: 1.0, "s": 1.0, "m": 60.0}

ParallelOption = Annotated[
    int | None,
    typer.Option("--jobs-parallel", metavar="N", help="How many processes; by default one for each core."),
]


@cli.command("sweep")
def sweep_command(
    scenario: ScenarioArgument,
    *,
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="A:B", help="From A up to, and without, B.")
    ] = "0:100",
    variant: VariantOption = None,
    sizes: SizesOption = None,
    small: Annotated[bool, typer.Option("--small", help="Take the scenario's small sizes.")] = False,
    jobs_parallel: ParallelOption = None,
    dask: Annotated[
        str | None,
        typer.Option("--dask", metavar="ADDRESS", help="A Dask scheduler, such as tcp://host:8786."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.csv", help="Write one row a seed here.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a scenario once with each seed, over all cores or a cluster."""
    from simlab.scenarios import find_scenario
    from simlab.sweeps import summary, sweep, table, verdict_of

    given = {**(find_scenario(scenario).small if small else {}), **read_sizes(sizes)}
    wanted = seed_range(seeds)
    if out is not None:
        refuse_unwritable("--out", out)
    with _bar(scenario, total=len(wanted), unit="run") as bar:
        frame = sweep(
            scenario,
            seeds=wanted,
            variant=variant,
            jobs_parallel=jobs_parallel,
            dask_address=dask,
            progress=_adding(bar),
            **given,
        )
    if out is not None:
        frame.to_csv(out, index=False)
    if as_json:
        print_json(summary(frame))
    else:
        print(table(frame))
        if out is not None:
            print(f"written: {out}")
    raise typer.Exit(verdict_of(frame).exit_code)


@cli.command("mutants")
def mutants_command(
    scenarios: Annotated[
        list[str] | None, typer.Argument(metavar="[SCENARIO]...", help="Only these; by default all.")
    ] = None,
    *,
    seeds: Annotated[
        int,
        typer.Option("--seeds", metavar="N", help="A mistake that so many seeds do not catch has escaped."),
    ] = 200,
    store: Annotated[str, typer.Option("--store", metavar="STORE", help="model or postgres.")] = "model",
    postgres: PostgresOption = None,
    jobs_parallel: ParallelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hunt every famous mistake in its scenarios, and prove the real scheduler in the same ones."""
    from simlab.mutants import hunt_mutants
    from simlab.scenarios import SCENARIOS, find_scenario

    chosen = {name: find_scenario(name) for name in scenarios} if scenarios else SCENARIOS
    with open_server(postgres, needed=store == "postgres") as server, _bar("mutants", unit="part") as bar:
        mutants = hunt_mutants(
            seeds=seeds,
            store=store,
            server=server,
            jobs_parallel=jobs_parallel,
            scenarios=chosen,
            progress=_moving(bar),
        )
    if as_json:
        print_json(mutants.summary())
    else:
        print(mutants.table())
    raise typer.Exit(0 if mutants.ok else 1)


@cli.command("explore")
def explore_command(
    scenario: Annotated[
        str, typer.Argument(metavar="[SCENARIO]", help="A name that `simlab list` shows.")
    ] = "mixed",
    *,
    budget: Annotated[
        str, typer.Option("--budget", metavar="TIME", help="How long to search: 60s, 2m, or seconds.")
    ] = "60s",
    variant: VariantOption = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Where the search begins.")] = 0,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="Where replay files go, and what earlier searches found."),
    ] = Path("out/explore"),
    as_json: JsonOption = False,
) -> None:
    """Search for an experiment that fails, and shrink it to the fewest faults."""
    from simlab.exploration import explore

    budget_s = _seconds(budget)
    with _bar("searching", unit="run") as bar:

        def update(runs: int, found: bool) -> None:
            if found:
                bar.set_description("shrinking", refresh=False)
            bar.update(runs - bar.n)

        explored = explore(scenario, budget_s=budget_s, variant=variant, seed=seed, out=out, progress=update)
    if as_json:
        print_json(explored.summary())
    else:
        print(explored.story())
    raise typer.Exit(explored.verdict.exit_code)


@cli.command("replay")
def replay_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Written by explore, by run, or by hand.")],
    *,
    store: Annotated[
        str | None, typer.Option("--store", metavar="STORE", help="model or postgres; by default the file's.")
    ] = None,
    postgres: PostgresOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the experiment of a file again, bit for bit; a digest that differs is an error."""
    from simlab.replays import ExperimentFile, replay
    from simlab.report import write_report

    plan = ExperimentFile.load(file)
    needed = (store or plan.store) == "postgres"
    with open_server(postgres, needed=needed) as server, virtual_time_bar(plan.scenario) as progress:
        result = replay(file, store=store, server=server, progress=progress, keep=out)
    if out is not None:
        result.save(out)
        write_report([result], out, title=f"{result.scenario}, seed {result.seed}, from {file.name}")
    if as_json:
        print_json(result.summary())
    else:
        result.show()
        if plan.digest is not None:
            print(f"replayed bit for bit: the digest is the one in {file}")
        if out is not None:
            print(f"written: {out / 'report.html'}")
    raise typer.Exit(result.verdict.exit_code)


def _seconds(text: str) -> float:
    """Read a budget: ``60s``, ``2m``, or a plain number of seconds."""
    read = _BUDGET.fullmatch(text)
    if read is None or float(read[1]) == 0:
        raise InvalidExperiment(f"--budget {text}: write it as 60s, 2m, or a number of seconds, more than 0")
    return float(read[1]) * _UNIT_S[read[2]]


@contextmanager
def _bar(title: str, *, unit: str, total: int | None = None) -> Iterator[tqdm[NoReturn]]:
    """Show a bar on stderr, on a terminal only."""
    with tqdm(total=total, desc=title, unit=unit, disable=None, leave=False) as bar:
        yield bar


def _adding(bar: tqdm[NoReturn]) -> Callable[[int], None]:
    """Return what moves a bar by so many."""

    def update(more: int) -> None:
        bar.update(more)

    return update


def _moving(bar: tqdm[NoReturn]) -> Callable[[int, int], None]:
    """Return what moves a bar to so many of so many."""

    def update(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    return update
