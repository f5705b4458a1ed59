"""What the commands share: the application, the options, how arguments are read, the bars that show progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from tqdm import tqdm

from simlab.errors import InvalidExperiment

__all__ = [
    "JsonOption",
    "OutOption",
    "PostgresOption",
    "ScenarioArgument",
    "SeedOption",
    "SizesOption",
    "VariantOption",
    "cli",
    "open_server",
    "read_sizes",
    "refuse_unwritable",
    "seed_range",
    "step_bar",
    "virtual_time_bar",
]

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


def seed_range(text: str) -> range:
    """Read ``A:B`` as the seeds from A up to, and without, B."""
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise InvalidExperiment(f"--seeds {text}: write it as A:B, such as 0:50 for the seeds 0 to 49")
    return range(int(first), int(last))


def read_sizes(given: Sequence[str] | None) -> dict[str, Any]:
    """Read ``NAME=N`` as sizes of a scenario."""
    sizes: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value.strip().lstrip("-").isdecimal()):
            raise InvalidExperiment(f"--size {text}: write it as NAME=N, such as n_jobs=100")
        sizes[name] = int(value)
    return sizes


def refuse_unwritable(option: str, path: Path) -> None:
    """Refuse a file that cannot be written before the work, not after it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise InvalidExperiment(f"{option} {path}: {error.strerror}; name another file") from error


@contextmanager
def open_server(source: str | None, *, needed: bool) -> Iterator[Any]:
    """Give a throwaway server, or None where none is needed."""
    if not needed:
        yield None
        return
    from simlab.pgserver import throwaway_postgres

    with throwaway_postgres(source) as server:
        yield server


@contextmanager
def virtual_time_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar of virtual time, on a terminal only, and only once it has taken a while."""
    with tqdm(total=100, desc=title, unit="%", disable=None, delay=2.0, leave=False) as bar:

        def update(done_us: int, total_us: int) -> None:
            bar.update(100 * done_us // total_us - bar.n)

        yield update


def step_bar(steps: Sequence[Step]) -> Iterable[Step]:
    """Pass on steps one by one, with a bar on a terminal that names the present one."""
    with tqdm(steps, unit="step", disable=None, leave=False) as bar:
        for step in bar:
            bar.set_description(str(step))
            yield step
