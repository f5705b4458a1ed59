"""The commands that run what exists: run, crosscheck, list, demo, gallery, doctor."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from scheduler.console import print_json, print_table
from simlab.cli.common import (
    JsonOption,
    OutOption,
    PostgresOption,
    ScenarioArgument,
    SeedOption,
    SizesOption,
    VariantOption,
    cli,
    open_server,
    read_sizes,
    refuse_unwritable,
    seed_range,
    step_bar,
    virtual_time_bar,
)
from simlab.errors import InvalidExperiment

__all__: list[str] = []

CROSSCHECK_ALL_SEEDS = "0:10"
"""The seeds of ``crosscheck --all`` when none are given."""


@cli.command("run")
def run_command(
    scenario: ScenarioArgument,
    *,
    seed: SeedOption = 0,
    store: Annotated[str, typer.Option("--store", metavar="STORE", help="model or postgres.")] = "model",
    variant: VariantOption = None,
    sizes: SizesOption = None,
    postgres: PostgresOption = None,
    out: OutOption = None,
    save_plan: Annotated[
        Path | None,
        typer.Option("--save-plan", metavar="FILE", help="Write a file that `simlab replay` runs again."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a scenario once, in virtual time, and judge it."""
    from simlab.experiment import simulate
    from simlab.report import write_report

    given = read_sizes(sizes)
    if save_plan is not None:
        refuse_unwritable("--save-plan", save_plan)
    with open_server(postgres, needed=store == "postgres") as server, virtual_time_bar(scenario) as progress:
        result = simulate(
            scenario,
            seed=seed,
            variant=variant,
            store=store,
            server=server,
            progress=progress,
            keep=out,
            **given,
        )
    if out is not None:
        result.save(out)
        write_report([result], out, title=f"{scenario}, seed {seed}")
    if save_plan is not None:
        result.save_experiment(save_plan)
    if as_json:
        print_json(result.summary())
    else:
        result.show()
        if out is not None:
            print(f"written: {out / 'report.html'}")
        if save_plan is not None:
            print(f"replay it with: simlab replay {shlex.quote(str(save_plan))}")
    raise typer.Exit(result.verdict.exit_code)


@cli.command("crosscheck")
def crosscheck_command(
    scenario: Annotated[
        str | None, typer.Argument(metavar="[SCENARIO]", help="A name that `simlab list` shows.")
    ] = None,
    *,
    seed: SeedOption = 0,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="A:B", help="Many seeds, real and with each mistake: one line a variant."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All scenarios, as with --seeds.")] = False,
    variant: VariantOption = None,
    sizes: SizesOption = None,
    postgres: PostgresOption = None,
    real: Annotated[
        bool, typer.Option("--real/--no-real", help="Tell the story with real processes, too.")
    ] = True,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where --seeds and --all write their report.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a scenario on the model and on PostgreSQL in virtual time, and compare them event by event.

    Then, where the scenario has one, the same story in real time, with real processes and a real SIGKILL. With
    --seeds or --all: in virtual time only, many seeds, the real scheduler and every famous mistake.
    """
    from simlab.crosschecks import crosscheck

    given = read_sizes(sizes)
    if every == (scenario is not None):
        raise InvalidExperiment("name a scenario, or say --all")
    if scenario is None or seeds is not None:
        if variant is not None:
            raise InvalidExperiment("--seeds and --all run every variant; leave --variant out")
        _crosscheck_many(
            scenario,
            seeds or CROSSCHECK_ALL_SEEDS,
            given,
            postgres,
            out=out or Path("out/crosscheck"),
            as_json=as_json,
        )
    if out is not None:
        raise InvalidExperiment("--out goes with --seeds or --all; one cross-check is printed only")
    with open_server(postgres, needed=True) as server:
        checked = crosscheck(scenario, seed=seed, variant=variant, server=server, real=real, **given)
    if as_json:
        print_json(checked.summary())
    else:
        print(checked.story())
        print(f"  {checked.server}")
    raise typer.Exit(checked.verdict.exit_code)


def _crosscheck_many(
    scenario: str | None,
    seeds: str,
    given: dict[str, Any],
    postgres: str | None,
    *,
    out: Path,
    as_json: bool,
) -> NoReturn:
    import pandas as pd

    from simlab.crosschecks import crosscheck_many
    from simlab.report import write_report
    from simlab.scenarios import SCENARIOS

    names = list(SCENARIOS) if scenario is None else [scenario]
    sizes = {name: {**SCENARIOS[name].small, **given} for name in names if name in SCENARIOS}
    with open_server(postgres, needed=True) as server:
        frame = crosscheck_many(names, seeds=seed_range(seeds), server=server, sizes=sizes, progress=step_bar)
    rows: list[dict[str, Any]] = [
        {str(name): None if pd.isna(value) else value for name, value in row.items()}
        for row in frame.astype(object).to_dict("records")
    ]
    shown = [{**row, "variant": row["variant"] or "the real scheduler"} for row in rows]
    title = f"Model and PostgreSQL, seeds {seeds}"
    page = write_report([], out, title=title, tables={"One row a scenario and variant": shown})
    good = all(row["equal"] == row["seeds"] == row["as_expected"] for row in rows)
    if as_json:
        print_json(rows)
    else:
        header = ("scenario", "variant", "seeds", "digests equal", "as expected", "events")
        print_table(
            header,
            [
                (
                    row["scenario"],
                    row["variant"] or "the real scheduler",
                    str(row["seeds"]),
                    str(row["equal"]) if row["equal"] == row["seeds"] else f"{row['equal']} DIFFERENT",
                    str(row["as_expected"])
                    if row["as_expected"] == row["seeds"]
                    else f"{row['as_expected']} NOT",
                    f"{row['events']:,}",
                )
                for row in rows
            ],
        )
        for row in rows:
            if row["first_difference"] is not None:
                print(f"\n{row['scenario']} {row['first_difference']}")
        print(f"{'VALID' if good else 'INVALID'}: the report is {page}")
    raise typer.Exit(0 if good else 1)


@cli.command("list")
def list_command(as_json: JsonOption = False) -> None:
    """List the scenarios, what each teaches, its sizes and its famous mistakes."""
    from simlab.scenarios import SCENARIOS

    if as_json:
        print_json(
            [
                {
                    "scenario": scenario.name,
                    "teaches": scenario.teaches,
                    "sizes": dict(scenario.sizes),
                    "variants": {variant.name: variant.says for variant in scenario.variants},
                }
                for scenario in SCENARIOS.values()
            ]
        )
        return
    for scenario in SCENARIOS.values():
        sizes = ", ".join(f"{name}={value}" for name, value in scenario.sizes.items())
        print(f"{scenario.name}: {scenario.teaches} [{sizes}]")
        for variant in scenario.variants:
            print(f"    --variant {variant.name}: {variant.says}")


@cli.command("demo")
def demo_command(
    *,
    seed: SeedOption = 7,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where plots and report go.")] = Path(
        "out/demo"
    ),
    postgres: PostgresOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the main thing: a crash made harmless, in three worlds, with pictures and a report."""
    from simlab.demo import run_demo

    demo = run_demo(seed=seed, out=out, source=postgres, progress=step_bar)
    if as_json:
        print_json(demo.summary())
    else:
        print(demo.table())
    raise typer.Exit(demo.verdict.exit_code)


@cli.command("gallery")
def gallery_command(
    scenarios: Annotated[
        list[str] | None, typer.Argument(metavar="[SCENARIO]...", help="Only these; by default all.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the pages go.")] = Path(
        "out/gallery"
    ),
) -> None:
    """Draw every scenario: timelines, states and lateness, the real scheduler beside each famous mistake."""
    from simlab.gallery import write_gallery

    index = write_gallery(out, scenarios=scenarios or None, progress=step_bar)
    print(f"written: {index}")


@cli.command("doctor")
def doctor_command(as_json: JsonOption = False) -> None:
    """Say what this machine offers, which PostgreSQL would be used, and what is missing."""
    from dataclasses import asdict

    from simlab.doctor import diagnose, healthy, render

    findings = diagnose()
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        print(render(findings))
    raise typer.Exit(0 if healthy(findings) else 1)
