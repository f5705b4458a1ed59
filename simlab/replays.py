"""Experiment files: a scenario, a seed, a plan of faults and what came of it, in one JSON file; and replaying one.

A file says all that decides a run, so that it runs again bit for bit, on any machine. It also holds the digest
and the history that the run gave: a replay that comes out differently is an error that names the first event
at which it does. A file written by hand may leave out everything but the format, the scenario and the seed.
"""

from __future__ import annotations

import base64
import binascii
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simlab.checks import Verdict
from simlab.errors import InvalidExperiment, ReplayDiffers, UnknownScenario
from simlab.experiment import simulate
from simlab.faults import Fault, fault_from_dict, fault_to_dict
from simlab.history import Event, History
from simlab.kernel import checked_decisions
from simlab.workloads import Workload

if TYPE_CHECKING:
    from simlab.pgserver import PostgresServer
    from simlab.results import Result

__all__ = ["FORMAT", "ExperimentFile", "replay", "save_experiment", "save_plan"]

FORMAT = 1
"""The version of the form of an experiment file."""

MAX_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class ExperimentFile:
    """What an experiment file says.

    Attributes
    ----------
    faults, decisions, workload
        None where the file leaves the scenario, or the seed, to decide.
    digest, verdict, history
        What the run gave, where the file says so.
    """

    scenario: str
    seed: int
    variant: str | None = None
    store: str = "model"
    sizes: Mapping[str, Any]
    faults: tuple[Fault, ...] | None = None
    decisions: tuple[int, ...] | None = None
    workload: Workload | None = None
    digest: str | None = None
    verdict: Verdict | None = None
    history: History | None = None
    package: str = ""

    def run(
        self,
        *,
        server: PostgresServer | None = None,
        progress: Callable[[int, int], None] | None = None,
        keep: str | Path | None = None,
    ) -> Result:
        """Run the experiment, whatever comes of it; the parameters are those of `simulate`."""
        return simulate(
            self.scenario,
            seed=self.seed,
            variant=self.variant,
            faults=self.faults,
            decisions=self.decisions,
            workload=self.workload,
            store=self.store,
            server=server,
            progress=progress,
            keep=keep,
            **self.sizes,
        )

    @classmethod
    def load(cls, path: str | Path) -> ExperimentFile:
        """Read a file.

        Raises
        ------
        InvalidExperiment
            If it is no experiment file, is of another version, or names something that cannot be.
        """
        return _read(Path(path))


def _package_version() -> str:
    try:
        return version("simlab")
    except PackageNotFoundError:
        return "unknown"


def save_plan(
    path: str | Path,
    *,
    scenario: str,
    seed: int,
    variant: str | None = None,
    store: str = "model",
    sizes: Mapping[str, int] | None = None,
    workload: Workload | None = None,
    faults: Sequence[Fault] = (),
    decisions: Sequence[int] = (),
    came_to: Mapping[str, Any] | None = None,
) -> Path:
    """Write what decides a run to one JSON file, and what it `came_to` where that is known; returns its path.

    Raises
    ------
    InvalidExperiment
        If the file cannot be written.
    """
    target = Path(path)
    data = {
        "format": FORMAT,
        "package": _package_version(),
        "scenario": scenario,
        "seed": seed,
        "variant": variant,
        "store": store,
        "sizes": dict(sizes or {}),
        "workload": None if workload is None else workload.to_dict(),
        "faults": [fault_to_dict(fault) for fault in faults],
        "decisions": list(decisions),
        **(came_to or {}),
    }
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidExperiment(f"{target} cannot be written: {error.strerror}; name another file") from error
    return target


def save_experiment(result: Result, path: str | Path) -> Path:
    """Write what decided a run, and what came of it, to one JSON file; returns its path."""
    return save_plan(
        path,
        scenario=result.scenario,
        seed=result.seed,
        variant=result.variant,
        store=result.store,
        sizes=result.params,
        workload=result.workload,
        faults=result.faults,
        decisions=result.decisions,
        came_to={
            "verdict": result.verdict.value,
            "digest": result.digest,
            "history": _pack(result.history),
        },
    )


def _pack(history: History) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "history.npz")
        history.save(file)
        return base64.b64encode(file.read_bytes()).decode("ascii")


def _unpack(path: Path, text: object) -> History:
    if not isinstance(text, str):
        raise InvalidExperiment(f"{path}: history: must be text")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "history.npz")
        try:
            file.write_bytes(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError) as error:
            raise InvalidExperiment(f"{path}: history: {error}") from error
        try:
            return History.load(file)
        except InvalidExperiment as error:
            raise InvalidExperiment(f"{path}: its history cannot be read") from error


_FIELDS = {
    "format": int,
    "package": str,
    "scenario": str,
    "seed": int,
    "variant": str,
    "store": str,
    "sizes": dict,
    "workload": dict,
    "faults": list,
    "decisions": list,
    "verdict": str,
    "digest": str,
    "history": str,
}
_REQUIRED = ("scenario", "seed")


def _read(path: Path) -> ExperimentFile:
    data = _parsed(path)
    if data.get("format") != FORMAT:
        raise InvalidExperiment(
            f"{path} is of format {data.get('format')!r}; this version reads format {FORMAT}: "
            f"run and save the experiment again"
        )
    _check_fields(path, data)
    faults, decisions = data.get("faults"), data.get("decisions")
    try:
        return ExperimentFile(
            scenario=data["scenario"],
            seed=data["seed"],
            variant=data.get("variant"),
            store=data.get("store") or "model",
            sizes=data.get("sizes") or {},
            faults=None if faults is None else tuple(map(_fault, faults)),
            decisions=None if decisions is None else checked_decisions(decisions),
            workload=None if data.get("workload") is None else Workload.from_dict(data["workload"]),
            digest=data.get("digest"),
            verdict=None if data.get("verdict") is None else _verdict(data["verdict"]),
            history=None if data.get("history") is None else _unpack(path, data["history"]),
            package=data.get("package") or "",
        )
    except InvalidExperiment as error:
        told = str(error)
        raise InvalidExperiment(told if told.startswith(str(path)) else f"{path}: {told}") from error


def _parsed(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidExperiment(f"{path} has more than {MAX_BYTES:,} bytes; it is no experiment file")
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidExperiment(f"{path} cannot be read as an experiment file: {error}") from error
    if not isinstance(data, dict):
        raise InvalidExperiment(f"{path} is no experiment file: it must hold one JSON object")
    return data


def _check_fields(path: Path, data: Mapping[str, Any]) -> None:
    if strange := sorted(set(data) - set(_FIELDS)):
        raise InvalidExperiment(
            f"{path}: an experiment has no {', '.join(strange)}; it has {', '.join(_FIELDS)}"
        )
    if missing := [name for name in _REQUIRED if data.get(name) is None]:
        raise InvalidExperiment(f"{path}: {' and '.join(missing)} must be given")
    for name, kind in _FIELDS.items():
        value = data.get(name)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise InvalidExperiment(f"{path}: {name}={value!r}: must be {_JSON_NAMES[kind]}")


_JSON_NAMES = {int: "a whole number", str: "text", dict: "an object", list: "a list"}


def _fault(data: object) -> Fault:
    if not isinstance(data, Mapping):
        raise InvalidExperiment(f"a fault must be an object, not {data!r}")
    return fault_from_dict(data)


def _verdict(text: str) -> Verdict:
    try:
        return Verdict(text)
    except ValueError:
        raise InvalidExperiment(f"verdict={text!r}: there are {', '.join(Verdict)}") from None


def replay(
    path: str | Path,
    *,
    store: str | None = None,
    server: PostgresServer | None = None,
    progress: Callable[[int, int], None] | None = None,
    keep: str | Path | None = None,
) -> Result:
    """Run the experiment of a file again, and compare what comes of it with what the file says.

    Parameters
    ----------
    store
        The store in place of the file's: the digest must be the same on both.
    server, progress, keep
        As in :func:`simlab.experiment.simulate`.

    Raises
    ------
    InvalidExperiment
        If the file cannot be used.
    ReplayDiffers
        If the digest is not the file's; it names the first event that differs.
    """
    file = ExperimentFile.load(path)
    if store is not None:
        file = replace(file, store=store)
    try:
        result = file.run(server=server, progress=progress, keep=keep)
    except (InvalidExperiment, UnknownScenario) as error:
        raise InvalidExperiment(f"{path}: {error}") from error
    if file.digest is not None and result.digest != file.digest:
        raise ReplayDiffers(str(path), _difference(file, result) + _other_version(file))
    if file.verdict is not None and result.verdict is not file.verdict:
        raise ReplayDiffers(
            str(path),
            f"the history is the same, and was judged {file.verdict} then and {result.verdict} now: the checks "
            f"have changed{_other_version(file)}",
        )
    return result


def _difference(file: ExperimentFile, result: Result) -> str:
    if file.history is None:
        return f"its digest is {result.digest[:12]}, not {str(file.digest)[:12]}; the file holds no history to compare"
    then, now = list(file.history), list(result.history)
    for position in range(max(len(then), len(now))):
        if then[position : position + 1] != now[position : position + 1]:
            return f"event {position} was {_tell(then, position)} and is {_tell(now, position)}"
    return f"all {len(now)} events are the same, but the final tables, or what the file says of them, are not"


def _tell(events: Sequence[Event], position: int) -> str:
    if position >= len(events):
        return "not there"
    event = events[position]
    job = f" of job {str(event.job)[:8]}" if event.job is not None else ""
    token = f", token {event.token}" if event.token >= 0 else ""
    detail = f" ({event.detail})" if event.detail else ""
    return f"'{event.kind}'{job} by {event.host} at {event.time_us / 1e6:.6f} s{token}{detail}"


def _other_version(file: ExperimentFile) -> str:
    here = _package_version()
    if file.package in {"", here}:
        return ""
    return f"; the file was written by version {file.package}, this is {here}"
