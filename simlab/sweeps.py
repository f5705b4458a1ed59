"""Sweeping: one scenario with many seeds, over all cores or over a cluster; one row a seed.

A history never leaves the process that made it: what comes back is a row of numbers. The same seeds give the
same frame however the work is spread, ``wall_s`` apart.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import joblib
import numpy as np
import pandas as pd

from scheduler.console import table_text
from simlab.checks import CHECKS, CheckResult, Verdict
from simlab.errors import InvalidExperiment, SimlabError
from simlab.experiment import simulate
from simlab.faults import Fault
from simlab.marks import MARKS, count_marks, never
from simlab.results import Result
from simlab.scenarios import find_scenario

__all__ = ["BROKE", "SHOWN", "judged", "run_batches", "summary", "sweep", "table", "verdict_of"]

BROKE = "broke"
"""Stands where the name of a check would, when a run ended with an exception: a bug of the code under test."""

BATCH_S = 0.5
"""A batch of runs takes about so many seconds, so that handing it out costs nothing to speak of."""

MAX_BATCH = 200

FIRST_S = 1.0
"""The runs of about so many seconds are made before any process is started."""

WORTH_PROCESSES_S = 5.0
"""What takes less than so many seconds is not worth starting processes for."""

SHOWN = 20
"""Of the seeds that are not VALID, a summary names so many."""

Row = dict[str, Any]


def judged(run: Callable[[], Result]) -> tuple[Result | None, tuple[CheckResult, ...]]:
    """Run an experiment; a run that an exception of the code under test ended is INVALID by the check ``broke``.

    What the laboratory itself refuses (a plan for hosts that do not exist, say) is raised.
    """
    try:
        result = run()
    except SimlabError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the scheduler raises is a finding
        says = f"the run ended with {type(error).__name__}: {error}"
        return None, (CheckResult(name=BROKE, verdict=Verdict.INVALID, says=says),)
    return result, result.checks


def _row(scenario: str, seed: int, options: Mapping[str, Any]) -> Row:
    result, checks = judged(lambda: simulate(scenario, seed=seed, **options))
    worst = next((check for check in checks if check.verdict is Verdict.INVALID), None)
    if worst is None:
        worst = next((check for check in checks if check.verdict is Verdict.UNKNOWN), None)
    row: Row = {
        "seed": seed,
        "verdict": worst.verdict.value if worst else Verdict.VALID.value,
        "failed_check": worst.name if worst else "",
        "says": worst.says if worst else "",
        "digest": "",
        "jobs": 0,
        "executions": 0,
        "lateness_ms_p50": float("nan"),
        "lateness_ms_p99": float("nan"),
        "lateness_ms_max": float("nan"),
        "events": 0,
        "virtual_s": float("nan"),
        "wall_s": float("nan"),
    }
    row.update({check.name: check.verdict.value for check in checks})
    if result is None:
        return {**row, **dict.fromkeys(MARKS, 0)}
    row.update(_numbers(result))
    row.update(count_marks(result.history))
    return row


def _numbers(result: Result) -> Row:
    began = [event for event in result.history if event.kind == "executing"]
    late_ms = [(event.db_us - event.due_us) / 1e3 for event in began]
    row: Row = {
        "digest": result.digest,
        "jobs": len(result.table),
        "executions": len(began),
        "events": len(result.history),
        "virtual_s": result.virtual_s,
        "wall_s": result.wall_s,
    }
    if late_ms:
        p50, p99 = np.quantile(late_ms, (0.5, 0.99))
        row |= {"lateness_ms_p50": p50, "lateness_ms_p99": p99, "lateness_ms_max": max(late_ms)}
    return row


def _rows(scenario: str, seeds: Sequence[int], options: Mapping[str, Any]) -> list[Row]:
    return [_row(scenario, seed, options) for seed in seeds]


def sweep(
    scenario: str,
    *,
    seeds: Sequence[int],
    variant: str | None = None,
    faults: Sequence[Fault] | None = None,
    jobs_parallel: int | None = None,
    dask_address: str | None = None,
    progress: Callable[[int], None] | None = None,
    **sizes: Any,
) -> pd.DataFrame:
    """Run a scenario once with each seed.

    Parameters
    ----------
    scenario
        A name that ``simlab list`` shows.
    seeds
        A range, or any whole numbers.
    variant, faults, **sizes
        As in :func:`simlab.experiment.simulate`.
    jobs_parallel
        At most how many processes; by default one for each core. Few and short runs start none.
    dask_address
        The scheduler of a Dask cluster, ``tcp://host:port``, whose workers have this package installed; in
        place of processes here.
    progress
        Called with how many more runs are done.

    Returns
    -------
    DataFrame
        One row a seed, in the order given: `seed`, `verdict`, `failed_check` and `says` (the first check that
        is not VALID, and its sentence; ``broke`` where an exception ended the run), `digest`, `jobs`,
        `executions`, `lateness_ms_p50`, `_p99` and `_max`, `events`, `virtual_s`, `wall_s`; then one column a
        check with its verdict, and one column a mark with how often it came about. In its ``attrs``: `scenario`,
        `variant`, `runs`, `verdicts` (name to count), `never` (the marks that came about in no run), `wall_s` (of
        the whole sweep) and `runs_per_s`.

    Raises
    ------
    InvalidExperiment
        If there are no seeds, or the cluster cannot be used.
    """
    wanted = list(seeds)
    if not wanted:
        raise InvalidExperiment("no seeds: give at least one, as in 0:100")
    workers = _workers(jobs_parallel)
    found = find_scenario(scenario)
    found.variant(variant)
    options = {"variant": variant, "faults": faults, **found.sized(sizes)}
    began = time.perf_counter()
    # The first runs are here: they say how long a run takes, and a mistake in the call is told at once.
    first_s = FIRST_S if dask_address is None else 0.0
    rows: list[Row] = []
    while len(rows) < len(wanted) and (not rows or time.perf_counter() - began < first_s):
        rows += _rows(scenario, wanted[len(rows) : len(rows) + 1], options)
        if progress is not None:
            progress(1)
    run_s = (time.perf_counter() - began) / len(rows)
    batches = _batches(wanted[len(rows) :], run_s, workers)
    if dask_address is None and run_s * (len(wanted) - len(rows)) < WORTH_PROCESSES_S:
        workers = 1
    calls = [joblib.delayed(_rows)(scenario, batch, options) for batch in batches]
    for done in run_batches(calls, jobs_parallel=workers, dask_address=dask_address):
        rows.extend(done)
        if progress is not None:
            progress(len(done))
    return _frame(scenario, variant, rows, wall_s=time.perf_counter() - began)


def _batches(seeds: Sequence[int], run_s: float, workers: int) -> list[Sequence[int]]:
    """Cut seeds into batches: long enough to be worth handing out, short enough to keep every worker busy."""
    size = int(min(BATCH_S / max(run_s, 1e-6), MAX_BATCH, len(seeds) / (4 * workers)))
    size = max(1, size)
    return [seeds[first : first + size] for first in range(0, len(seeds), size)]


def _workers(jobs_parallel: int | None) -> int:
    if jobs_parallel is None:
        return int(joblib.cpu_count())
    if type(jobs_parallel) is not int or jobs_parallel < 1:
        raise InvalidExperiment(f"jobs_parallel={jobs_parallel!r}: must be a whole number of at least 1")
    return jobs_parallel


def run_batches(
    calls: Sequence[Any], *, jobs_parallel: int | None = None, dask_address: str | None = None
) -> Iterator[Any]:
    """Run joblib's delayed calls, over processes here or over a Dask cluster; yields results in their order."""
    workers = _workers(jobs_parallel)
    if dask_address is None and (workers == 1 or len(calls) <= 1):
        for function, arguments, options in calls:
            yield function(*arguments, **options)
        return
    with _cluster(dask_address):
        pool = joblib.Parallel(n_jobs=-1 if dask_address else workers, batch_size=1, return_as="generator")
        yield from pool(calls)


@contextmanager
def _cluster(address: str | None) -> Iterator[None]:
    """Make a Dask cluster joblib's backend."""
    if address is None:
        yield
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise InvalidExperiment(
            "a Dask cluster needs the package distributed; install it with: pip install 'simlab[cluster]'"
        ) from error
    try:
        client = Client(address, timeout="5s", set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as error:
        raise InvalidExperiment(
            f"no Dask scheduler at {address}: {error}; it looks like tcp://host:8786"
        ) from error
    with client, joblib.parallel_config(backend="dask", client=client):
        yield


def verdict_of(frame: pd.DataFrame) -> Verdict:
    """Return the worst verdict of a sweep: INVALID, else UNKNOWN, else VALID."""
    there = set(frame["verdict"])
    return next(
        (verdict for verdict in (Verdict.INVALID, Verdict.UNKNOWN) if verdict.value in there), Verdict.VALID
    )


def _frame(scenario: str, variant: str | None, rows: Sequence[Row], *, wall_s: float) -> pd.DataFrame:
    names = [name for name in CHECKS if any(name in row for row in rows)]
    head = [name for name in rows[0] if name not in CHECKS and name not in MARKS and name != BROKE]
    frame = pd.DataFrame([{name: row.get(name, "") for name in (*head, *names, *MARKS)} for row in rows])
    counts = frame["verdict"].value_counts()
    frame.attrs = {
        "scenario": scenario,
        "variant": variant,
        "runs": len(frame),
        "verdicts": {
            verdict.value: int(counts[verdict.value]) for verdict in Verdict if verdict.value in counts
        },
        "never": never([{mark: int(frame[mark].sum()) for mark in MARKS}]),
        "wall_s": round(wall_s, 3),
        "runs_per_s": round(len(frame) / wall_s, 1),
    }
    return frame


def summary(frame: pd.DataFrame) -> dict[str, Any]:
    """Return what a sweep came to, JSON-able: what its ``attrs`` say, the verdict, lateness, the seeds that failed.

    Lateness is in milliseconds, None where nothing was executed: the median run's 50th percentile, the worst
    run's 99th, and the largest of all. Of the seeds, the first `SHOWN`.
    """
    wrong = frame[frame["verdict"] != Verdict.VALID.value]
    told = cast("dict[str, Any]", frame.attrs)
    return {
        **told,
        "verdict": verdict_of(frame).value,
        "lateness_ms": {
            "p50": _number(float(frame["lateness_ms_p50"].median())),
            "p99": _number(float(frame["lateness_ms_p99"].max())),
            "max": _number(float(frame["lateness_ms_max"].max())),
        },
        "failed": wrong[["seed", "verdict", "failed_check", "says"]].head(SHOWN).to_dict("records"),
        "failed_in_all": len(wrong),
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 3)


def table(frame: pd.DataFrame) -> str:
    """Return the summary of a sweep as lines for people."""
    came = summary(frame)
    name = came["scenario"] + (f" with the mistake {came['variant']}" if came["variant"] else "")
    counts = ", ".join(f"{count} {verdict}" for verdict, count in came["verdicts"].items())
    lines = [
        f"{came['runs']} runs of {name} in {came['wall_s']:.1f} s ({came['runs_per_s']} a second): {counts}"
    ]
    late = came["lateness_ms"]
    if late["max"] is not None:
        lines.append(
            f"lateness: p50 {late['p50']:,.1f} ms in the median run, p99 {late['p99']:,.1f} ms in the worst, "
            f"max {late['max']:,.1f} ms"
        )
    if came["failed"]:
        rows = [
            (str(one["seed"]), one["verdict"], one["failed_check"], one["says"]) for one in came["failed"]
        ]
        lines += ["", table_text(("seed", "verdict", "check", "what it found"), rows)]
        if came["failed_in_all"] > SHOWN:
            lines.append(f"and {came['failed_in_all'] - SHOWN} more seeds")
        lines.append("")
    lines += [f"never happened: {mark}" for mark in came["never"]]
    return "\n".join(lines).rstrip()
