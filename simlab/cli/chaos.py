"""The command that leaves the simulation: chaos, with real processes and real signals."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from tqdm import tqdm

from scheduler.console import print_json
from simlab.cli.common import JsonOption, PostgresOption, SeedOption, cli

__all__: list[str] = []


@cli.command("chaos")
def chaos_command(
    *,
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="M", help="How long the acts go on; healing comes after.")
    ] = 1.0,
    workers: Annotated[int, typer.Option("--workers", metavar="N", help="How many worker processes.")] = 4,
    seed: SeedOption = 0,
    jobs: Annotated[
        int | None, typer.Option("--jobs", metavar="N", help="How many jobs; by default 12 a second.")
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option("--variant", metavar="NAME", help="A famous mistake that replaces statements of SQL."),
    ] = None,
    lateness: Annotated[
        bool,
        typer.Option("--lateness/--no-lateness", help="Measure a calm run, too, beside its prediction."),
    ] = True,
    postgres: PostgresOption = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where result, plots and report go.")
    ] = Path("out/chaos"),
    as_json: JsonOption = False,
) -> None:
    """Run real workers in real time, kill and cut off whatever can be, and judge what came of it.

    The seed decides what is done and when; what comes of it is for the machine to say. The evidence is saved before
    it is judged.
    """
    from simlab.chaos import run_chaos
    from simlab.report import write_chaos_report

    with _ending_at_sigterm(), _phase_bar() as progress:
        chaos = run_chaos(
            minutes,
            workers=workers,
            seed=seed,
            jobs=jobs,
            source=postgres,
            lateness=lateness,
            mistake=variant,
            out=out,
            progress=progress,
        )
    page = write_chaos_report(chaos, out)
    if as_json:
        print_json(chaos.summary())
    else:
        print(chaos.story())
        print(f"written: {page}")
    raise typer.Exit(chaos.verdict.exit_code)


@contextmanager
def _ending_at_sigterm() -> Iterator[None]:
    """End at SIGTERM as at Ctrl-C, with everything cleaned up, where Python would just stop."""

    def end(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _phase_bar() -> Iterator[Callable[[str, float], None]]:
    """Show a bar that starts again with each phase of a run, on a terminal only."""
    with tqdm(
        total=100, unit="%", disable=None, leave=False, bar_format="{desc} {percentage:3.0f}%|{bar}|"
    ) as bar:

        def update(phase: str, share: float) -> None:
            if bar.disable:
                return
            if bar.desc != f"{phase}: ":
                bar.reset()
                bar.set_description(phase)
            bar.update(int(100 * share) - bar.n)

        yield update
