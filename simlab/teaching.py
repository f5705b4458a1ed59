"""What the notebooks call besides the laboratory itself: small tables, excerpts, and ledgers to think with.

Owns the pure functions behind a cell of more than a few lines, so that each can be tested. It must not decide
what a scheduler does, nor run anything that :func:`simlab.simulate` or :func:`simlab.crosscheck` does not.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import pandas as pd

from simlab.checks import Verdict
from simlab.crosschecks import CrossCheck, crosscheck
from simlab.doctor import diagnose
from simlab.effects import EffectMode, ModelEffects
from simlab.errors import InvalidExperiment, PostgresUnavailable
from simlab.experiment import simulate
from simlab.faults import Fault, Pause, Reached
from simlab.pgserver import throwaway_postgres
from simlab.results import Result
from simlab.story import tell_job

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas.io.formats.style import Styler
    from pandas.io.formats.style_render import CSSDict

__all__ = [
    "NotRun",
    "crosscheck_table",
    "crosscheck_variants",
    "database_view",
    "digest_elsewhere",
    "effects_by_ledger",
    "excerpt",
    "failed_checks",
    "if_postgres",
    "job_story",
    "left_aligned",
    "machine_table",
    "pause_run",
    "pause_sweep",
    "plot_pause_sweep",
    "real_stories",
    "recorded_digest",
    "renew_digests",
    "slider",
    "sql",
    "tally",
]

T = TypeVar("T")

SECOND_US = 1_000_000

ELSEWHERE_LIMIT_S = 120.0
"""How long another interpreter may take to run a scenario."""

PAUSED_HOST = "w2"
"""The worker that stands still in :func:`pause_run`."""


# ------------------------------------------------------------------------------------------- what is missing


@dataclass(frozen=True, slots=True)
class NotRun:
    """Stands where a result would, when there was no PostgreSQL: it is false, and shows why and the mend."""

    why: str

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"not run: {self.why}"

    def _repr_html_(self) -> str:
        return f"<p><b>not run</b>: {escape(self.why)}</p>"


def if_postgres(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T | NotRun:
    """Call a function that needs PostgreSQL; where none can be had, return a :class:`NotRun` that says so."""
    try:
        return function(*args, **kwargs)
    except PostgresUnavailable as error:
        return NotRun(str(error))


def machine_table() -> pd.DataFrame:
    """Return what ``simlab doctor`` finds, one row a finding.

    Columns: `what`, `verdict` (``ok``; ``can do without``; ``MEND``), `found`, `mend`.
    """
    words = {(True, True): "ok", (True, False): "ok", (False, True): "can do without", (False, False): "MEND"}
    return pd.DataFrame(
        [
            {
                "what": finding.name,
                "verdict": words[finding.ok, finding.optional],
                "found": finding.detail,
                "mend": finding.mend,
            }
            for finding in diagnose()
        ]
    )


# --------------------------------------------------------------------------------------------------- digests


def digest_elsewhere(scenario: str, *, seed: int, hash_seed: int) -> str:
    """Return a run's digest from a new interpreter with its own ``PYTHONHASHSEED``.

    Raises
    ------
    subprocess.CalledProcessError
        If that interpreter could not do it.
    """
    code = f"from simlab import simulate; print(simulate({scenario!r}, seed={seed!r}).digest)"
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(hash_seed),
        # The packages that this process runs, installed or not.
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    done = subprocess.run(  # noqa: S603 - our own interpreter, our own code
        [sys.executable, "-c", code],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=ELSEWHERE_LIMIT_S,
    )
    return done.stdout.strip()


def recorded_digest(path: str | Path, scenario: str) -> tuple[int, str]:
    """Return the seed and the digest that a file of golden digests holds for a scenario.

    Raises
    ------
    InvalidExperiment
        If the file cannot be read, or has nothing for the scenario.
    """
    try:
        entry = json.loads(Path(path).read_text(encoding="utf-8"))[scenario]
        return int(entry["seed"]), str(entry["digest"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidExperiment(
            f"{path} holds no digest of {scenario!r} ({error!r}); renew it as data/README.md says"
        ) from error


def renew_digests(path: str | Path) -> None:
    """Run every scenario of a file of golden digests again, with its seed, and write what comes out."""
    file = Path(path)
    golden = json.loads(file.read_text(encoding="utf-8"))
    for scenario, entry in golden.items():
        entry["digest"] = simulate(scenario, seed=entry["seed"]).digest
    file.write_text(json.dumps(golden, indent=2) + "\n", encoding="utf-8")


# ---------------------------------------------------------------------------------------------------- tables


def failed_checks(result: Result) -> list[str]:
    """Return the names of the checks that say INVALID."""
    return [check.name for check in result.checks if check.verdict is Verdict.INVALID]


def tally(runs: Mapping[str, Result]) -> pd.DataFrame:
    """Count what matters about runs, one row a run, to be read side by side.

    Columns: `verdict`, `jobs`, `executions` (handlers begun), `effects` (changes the outside world made),
    `duplicates refused` (changes it refused), `stale outcomes refused` (outcomes the database refused, because
    the lease named was no longer the row's), `failed checks`. The index is the run's label.
    """
    rows = []
    for result in runs.values():
        kinds = [event.kind for event in result.history]
        rows.append(
            {
                "verdict": result.verdict.value,
                "jobs": len(result.table),
                "executions": kinds.count("executing"),
                "effects": len(result.effects),
                "duplicates refused": kinds.count("duplicate"),
                "stale outcomes refused": sum(
                    event.kind == "rejected" and event.detail.startswith("finish") for event in result.history
                ),
                "failed checks": ", ".join(failed_checks(result)),
            }
        )
    return pd.DataFrame(rows, index=list(runs))


def job_story(result: Result, job_id: str) -> str:
    """Return what happened to one job, one event a line, and what happened to the hosts that held it."""
    return "\n".join(tell_job(result.history, UUID(job_id)))


def left_aligned(frame: pd.DataFrame) -> Styler:
    """Show a frame of words: aligned to the left, without its index."""
    left: CSSDict = {"selector": "th, td", "props": [("text-align", "left")]}
    return frame.style.hide(axis="index").set_table_styles([left])


_SEEN_BY_THE_DATABASE = frozenset(
    {"enqueued", "claimed", "started", "finished", "recovered", "rejected", "swept"}
)


def database_view(result: Result, job_id: str) -> list[str]:
    """Return what the database saw of a job until it gave the job up: its own events, the sweep the last.

    Renewals are left out: how many came before the silence depends on when it began.
    """
    seen: list[str] = []
    for event in result.history:
        if str(event.job) == job_id and event.kind in _SEEN_BY_THE_DATABASE:
            seen.append(event.kind if event.token < 0 else f"{event.kind} (token {event.token})")
            if event.kind == "swept":
                break
    return seen


# -------------------------------------------------------------------------------------------- one long pause


def pause_run(pause_s: float, *, seed: int, variant: str | None = None, **sizes: Any) -> Result:
    """Run the crash scenario with one fault only: a worker stands still after its first handler returned.

    Parameters
    ----------
    pause_s
        For how long, in seconds; 0 for not at all.
    """
    plan: tuple[Fault, ...] = ()
    if pause_s > 0:
        for_us = round(pause_s * SECOND_US)
        plan = (Pause(host=PAUSED_HOST, when=Reached("after_execute"), for_us=for_us),)
    return simulate("crash-after-execution", seed=seed, faults=plan, variant=variant, **sizes)


def pause_sweep(pauses_s: Iterable[float], *, seed: int, **sizes: Any) -> pd.DataFrame:
    """Run :func:`pause_run` for each length of the pause, with both kinds of handlers.

    Columns: `pause_s`, `jobs`, `executions`, `effects_plain`, `effects_idempotent`, `stale_outcomes_refused`,
    `lease_s`.
    """
    rows = []
    for pause_s in pauses_s:
        runs = {
            "idempotent": pause_run(pause_s, seed=seed, **sizes),
            "plain": pause_run(pause_s, seed=seed, variant="no-idempotency", **sizes),
        }
        counted = tally(runs)
        rows.append(
            {
                "pause_s": pause_s,
                "jobs": counted.loc["idempotent", "jobs"],
                "executions": counted.loc["idempotent", "executions"],
                "effects_plain": counted.loc["plain", "effects"],
                "effects_idempotent": counted.loc["idempotent", "effects"],
                "stale_outcomes_refused": counted.loc["idempotent", "stale outcomes refused"],
                "lease_s": runs["idempotent"].lease_us / 1e6,
            }
        )
    return pd.DataFrame(rows)


def plot_pause_sweep(frame: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw effects against the length of the pause, as :func:`pause_sweep` gives them."""
    if ax is None:
        from matplotlib import pyplot as plt  # noqa: PLC0415 - only who draws waits for matplotlib

        _, ax = plt.subplots(figsize=(7, 3), layout="constrained")
    lease_s = frame["lease_s"].iloc[0]
    ax.axvline(lease_s, color="0.6", linestyle=":", label=f"a whole lease, {lease_s:g} s")
    lines = (
        ("effects_plain", "effects, plain handler", "#d55e00", "o", "-"),
        ("effects_idempotent", "effects, idempotent handler", "#0072b2", "s", "--"),
    )
    for column, label, colour, marker, style in lines:
        ax.plot(
            frame["pause_s"],
            frame[column],
            label=label,
            color=colour,
            marker=marker,
            linestyle=style,
            markersize=4,
        )
    jobs = int(frame["jobs"].iloc[0])
    highest = int(frame["effects_plain"].max())
    ax.set_yticks(range(jobs, max(highest, jobs + 1) + 1))
    ax.set_xlabel(f"how long {PAUSED_HOST} stands still (virtual s)")
    ax.set_ylabel(f"effects of {jobs} jobs")
    ax.legend(frameon=False)
    return ax


def slider(
    function: Callable[[int], object], *, low: int, high: int, step: int, start: int, label: str
) -> object:
    """Call a function with whatever a slider is moved to, and show what it returns.

    Without ipywidgets, one line says so: every notebook calls the same function with fixed values next.
    """
    try:
        import ipywidgets  # type: ignore[import-untyped,unused-ignore]  # noqa: PLC0415 - an extra
    except ImportError:
        return "no slider without ipywidgets; the next cell calls the same function with fixed values"
    knob = ipywidgets.IntSlider(
        min=low, max=high, step=step, value=start, description=label, continuous_update=False
    )
    return ipywidgets.interactive(
        function, {"auto_display": True}, **{next(iter(inspect.signature(function).parameters)): knob}
    )


# --------------------------------------------------------------------------------------------------- ledgers


def effects_by_ledger(tokens: Sequence[int]) -> dict[str, int]:
    """Count the changes that each kind of outside world makes when one job asks with these tokens, in this order.

    Uses the laboratory's own ledger, one of each kind.

    Returns
    -------
    dict
        ``plain``, ``fenced`` and ``idempotent`` to the number of changes.
    """
    return {
        mode.value: _changes(tokens, mode)
        for mode in (EffectMode.PLAIN, EffectMode.FENCED, EffectMode.IDEMPOTENT)
    }


def _changes(tokens: Sequence[int], mode: EffectMode) -> int:
    ledger = ModelEffects(lambda: 0)
    for token in tokens:
        asked = ledger.apply(UUID(int=1), token=token, host="", mode=mode)
        try:
            asked.send(None)  # It never waits, so it needs no event loop.
        except StopIteration:
            continue
        raise AssertionError("the model's ledger never waits")
    return len(ledger.table())


# ------------------------------------------------------------------------------------------------- the proof


def crosscheck_variants(
    scenario: str, variants: Sequence[str | None], *, seed: int, **sizes: Any
) -> list[CrossCheck]:
    """Cross-check several variants on one throwaway server; the real scheduler also with real processes.

    Raises
    ------
    PostgresUnavailable
        If no server could be had.
    """
    with throwaway_postgres() as server:
        return [
            crosscheck(scenario, seed=seed, variant=variant, server=server, real=variant is None, **sizes)
            for variant in variants
        ]


def crosscheck_table(checks: Sequence[CrossCheck] | NotRun) -> pd.DataFrame | NotRun:
    """Return one row a cross-check: what the model and PostgreSQL came to, and whether their digests agree."""
    if isinstance(checks, NotRun):
        return checks
    rows = [check.row() for check in checks]
    return pd.DataFrame(rows).drop(columns="scenario").fillna({"variant": "(the real scheduler)"})


def real_stories(checks: Sequence[CrossCheck] | NotRun) -> pd.DataFrame | NotRun:
    """Return what real processes came to, one row a story."""
    if isinstance(checks, NotRun):
        return checks
    rows = [{**asdict(story), "state": story.state.value} for check in checks for story in check.real]
    return pd.DataFrame(rows).round({"seconds": 1})


# ------------------------------------------------------------------------------------------------ the source


def sql(name: str) -> str:
    """Return the text of one of the scheduler's statements, such as ``finish``."""
    return (resources.files("scheduler") / "sql" / f"{name}.sql").read_text(encoding="utf-8")


def excerpt(text: str, first: str, last: str) -> str:
    """Return the lines from the first that holds `first` to the next that holds `last`.

    Raises
    ------
    InvalidExperiment
        If there is no such line: the source has changed, and what is said about it must too.
    """
    lines = text.splitlines()
    begin = next((number for number, line in enumerate(lines) if first in line), None)
    if begin is None:
        raise InvalidExperiment(f"no line holds {first!r}: the source shown here has changed")
    end = next((number for number, line in enumerate(lines) if number >= begin and last in line), None)
    if end is None:
        raise InvalidExperiment(f"no line after it holds {last!r}: the source shown here has changed")
    return "\n".join(lines[begin : end + 1])
