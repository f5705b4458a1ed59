"""The command line of the laboratory: run, cross-check, list, demo, doctor.

Results go to stdout, everything else to stderr. Verdicts are exit codes: 0 VALID, 1 INVALID, 2 UNKNOWN or a
mistake in the call, 3 a database that cannot be reached. A user's mistake is one line, never a traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from tqdm import tqdm

from scheduler.console import print_json, print_table, run_command_line
from scheduler.errors import SchedulerError
from simlab.errors import InvalidExperiment, SimlabError

__all__ = ["main"]

CROSSCHECK_ALL_SEEDS = "0:10"
"""The seeds of ``crosscheck --all`` when none are given."""

Step = TypeVar("Step")

cli = typer.Typer(
    name="simlab",
    help="A laboratory around a delayed-job scheduler: failures staged, replayed and proved.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ScenarioArgument = Annotated[str, typer.Argument(metavar="SCENARIO", help="A name that `simlab list` shows.")]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", help="Decides everything that is random.")]
VariantOption = Annotated[
    str | None, typer.Option("--variant", metavar="NAME", help="A famous mistake in place of the real thing.")
]
SizesOption = Annotated[
    list[str] | None,
    typer.Option("--size", metavar="NAME=N", help="Turn a size of the scenario up or down; repeatable."),
]
PostgresOption = Annotated[
    str | None,
    typer.Option(
        "--postgres",
        metavar="SOURCE",
        help="Take PostgreSQL from here: embedded, docker, system, or dsn (SIMLAB_DSN).",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Save the result, its plots and a report here.")
]

# The modules behind the commands bring pandas and matplotlib along; each command imports what it needs, so that
# --help and a mistake in the call answer at once.


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
    as_json: JsonOption = False,
) -> None:
    """Run a scenario once, in virtual time, and judge it."""
    from simlab.experiment import simulate
    from simlab.report import write_report

    given = _sizes(sizes)
    with _server(postgres, needed=store == "postgres") as server, _progress(scenario) as progress:
        result = simulate(
            scenario,
            seed=seed,
            variant=variant,
            store=store,
            server=server,
            progress=progress,
            **given,
        )
    if out is not None:
        result.save(out)
        write_report([result], out, title=f"{scenario}, seed {seed}")
    if as_json:
        print_json(result.summary())
    else:
        result.show()
        if out is not None:
            print(f"written: {out / 'report.html'}")
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
    as_json: JsonOption = False,
) -> None:
    """Run a scenario on the model and on PostgreSQL in virtual time, and compare them event by event.

    Then, where the scenario has one, the same story in real time, with real processes and a real SIGKILL. With
    --seeds or --all: in virtual time only, many seeds, the real scheduler and every famous mistake.
    """
    from simlab.crosschecks import crosscheck

    given = _sizes(sizes)
    if every == (scenario is not None):
        raise InvalidExperiment("name a scenario, or say --all")
    if scenario is None or seeds is not None:
        if variant is not None:
            raise InvalidExperiment("--seeds and --all run every variant; leave --variant out")
        _crosscheck_many(scenario, seeds or CROSSCHECK_ALL_SEEDS, given, postgres, as_json=as_json)
    with _server(postgres, needed=True) as server:
        checked = crosscheck(scenario, seed=seed, variant=variant, server=server, real=real, **given)
    if as_json:
        print_json(checked.summary())
    else:
        print(checked.story())
        print(f"  {checked.server}")
    raise typer.Exit(checked.verdict.exit_code)


def _crosscheck_many(
    scenario: str | None, seeds: str, given: dict[str, Any], postgres: str | None, *, as_json: bool
) -> NoReturn:
    from simlab.crosschecks import crosscheck_many
    from simlab.scenarios import SCENARIOS

    names = list(SCENARIOS) if scenario is None else [scenario]
    sizes = {name: {**SCENARIOS[name].small, **given} for name in names if name in SCENARIOS}
    with _server(postgres, needed=True) as server:
        frame = crosscheck_many(names, seeds=_seed_range(seeds), server=server, sizes=sizes, progress=_steps)
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
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
    good = all(row["equal"] == row["seeds"] == row["as_expected"] for row in rows)
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

    demo = run_demo(seed=seed, out=out, source=postgres, progress=_steps)
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

    index = write_gallery(out, scenarios=scenarios or None, progress=_steps)
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


def _seed_range(text: str) -> range:
    """Read ``A:B`` as the seeds from A up to, and without, B."""
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise InvalidExperiment(f"--seeds {text}: write it as A:B, such as 0:50 for the seeds 0 to 49")
    return range(int(first), int(last))


def _sizes(given: Sequence[str] | None) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value.strip().lstrip("-").isdecimal()):
            raise InvalidExperiment(f"--size {text}: write it as NAME=N, such as n_jobs=100")
        sizes[name] = int(value)
    return sizes


@contextmanager
def _server(source: str | None, *, needed: bool) -> Iterator[Any]:
    if not needed:
        yield None
        return
    from simlab.pgserver import throwaway_postgres

    with throwaway_postgres(source) as server:
        yield server


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar of virtual time, on a terminal only, and only once it has taken a while."""
    with tqdm(total=100, desc=title, unit="%", disable=None, delay=2.0, leave=False) as bar:

        def update(done_us: int, total_us: int) -> None:
            bar.update(100 * done_us // total_us - bar.n)

        yield update


def _steps(steps: Sequence[Step]) -> Iterable[Step]:
    """Pass on steps one by one, with a bar on a terminal that names the present one."""
    with tqdm(steps, unit="step", disable=None, leave=False) as bar:
        for step in bar:
            bar.set_description(str(step))
            yield step


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 VALID, 1 INVALID, 2 UNKNOWN or misuse, 3 no database."""
    return run_command_line(cli, arguments, program="simlab", own=(SimlabError, SchedulerError))
