"""A run's result: verdict, checks, tidy frames, pictures; saved to and loaded from a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pandas as pd

from scheduler.jobs import Job, JobState
from simlab.checks import CheckResult, Verdict
from simlab.effects import Effect
from simlab.errors import InvalidExperiment
from simlab.faults import Fault, fault_from_dict, fault_to_dict
from simlab.frames import attempts_frame, jobs_frame, lateness_frame
from simlab.history import History
from simlab.story import tell_job
from simlab.workloads import Workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FORMAT", "HISTORY_FILE", "Result", "made_folder"]

FORMAT = 1
"""The version of the saved form."""

HISTORY_FILE = "history.npz"
"""The name of a saved history, in the folder of its result."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run came to.

    Attributes
    ----------
    verdict
        VALID, INVALID or UNKNOWN, over all checks.
    digest
        A SHA-256 over the events and the final tables: same scenario, same seed, same digest.
    events, jobs, attempts, lateness
        Tidy frames, one row an event, a job, a claim, an execution.
    params
        The sizes of the run.
    decisions
        What ordered the events of one instant; empty when that was the order of scheduling.
    workload
        The load, where the scenario has no fixed one.
    never_struck
        The faults of the plan that did nothing, for their moment or their job did not come.
    virtual_s, wall_s
        Seconds of virtual and of real time.
    """

    scenario: str
    seed: int
    variant: str | None
    store: str
    params: Mapping[str, int]
    faults: tuple[Fault, ...]
    lease_us: int
    checks: tuple[CheckResult, ...]
    verdict: Verdict
    history: History
    table: tuple[Job, ...]
    effects: tuple[Effect, ...]
    virtual_s: float
    wall_s: float
    decisions: tuple[int, ...] = ()
    workload: Workload | None = None
    never_struck: tuple[Fault, ...] = ()

    @cached_property
    def digest(self) -> str:
        return self.history.digest(
            [[_job_to_dict(job) for job in self.table], [_effect_to_dict(effect) for effect in self.effects]]
        )

    @cached_property
    def events(self) -> pd.DataFrame:
        return self.history.frame()

    @cached_property
    def jobs(self) -> pd.DataFrame:
        return jobs_frame(self.history, self.table, self.effects)

    @cached_property
    def attempts(self) -> pd.DataFrame:
        return attempts_frame(self.history)

    @cached_property
    def lateness(self) -> pd.DataFrame:
        return lateness_frame(self.history)

    def plot_timeline(self, ax: Axes | None = None) -> Axes:
        """Draw workers down, time across: leases, executions, effects and faults."""
        from simlab.plots import plot_timeline

        return plot_timeline(self, ax=ax)

    def plot_lateness(self, ax: Axes | None = None) -> Axes:
        """Draw how late executions began, as a cumulative distribution."""
        from simlab.plots import plot_lateness

        return plot_lateness(self.lateness, ax=ax)

    def show(self) -> None:
        """Print the verdict, the failed checks and the story behind the first of them."""
        print(self.story())  # noqa: T201 - this is what `show` is for

    def story(self) -> str:
        """Return the verdict, the checks that failed, and the events that show the first failure."""
        lines = [repr(self)]
        lines += [
            f"  {check.verdict} {check.name}: {check.says}"
            for check in self.checks
            if check.verdict is not Verdict.VALID
        ]
        if self.never_struck:
            shown = "; ".join(str(fault) for fault in self.never_struck[:3])
            more = f" (and {len(self.never_struck) - 3} more)" if len(self.never_struck) > 3 else ""
            lines.append(f"  never came about, of {len(self.faults)} faults: {shown}{more}")
        broken = next((check for check in self.checks if check.verdict is Verdict.INVALID), None)
        job = self.history.event(broken.offending[0]).job if broken and broken.offending else None
        if broken is not None and job is not None:
            lines += ["", f"  job {str(job)[:8]} ('>' marks what {broken.name} found):"]
            lines += [f"  {line}" for line in tell_job(self.history, job, marked=broken.offending)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        variant = f", variant={self.variant!r}" if self.variant else ""
        return (
            f"<Result {self.scenario} seed={self.seed}{variant} on {self.store}: {self.verdict}, "
            f"digest {self.digest[:12]}, {len(self.table)} jobs, {self.virtual_s:g} virtual s>"
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(check.name)}</td><td><b>{check.verdict}</b></td><td>{escape(check.says)}</td></tr>"
            for check in self.checks
        )
        return (
            f"<p><b>{escape(self.scenario)}</b>, seed {self.seed}, variant {escape(self.variant or 'none')}, "
            f"on {escape(self.store)}: <b>{self.verdict}</b><br>digest <code>{self.digest[:16]}</code>, "
            f"{len(self.table)} jobs, {self.virtual_s:g} virtual seconds in {self.wall_s:.2f} s</p>"
            f"<table><tr><th>check</th><th>verdict</th><th>what it found</th></tr>{rows}</table>"
        )

    def summary(self) -> dict[str, Any]:
        """Return what a command prints as JSON."""
        return {
            "scenario": self.scenario,
            "seed": self.seed,
            "variant": self.variant,
            "store": self.store,
            "verdict": self.verdict.value,
            "digest": self.digest,
            "checks": {check.name: check.verdict.value for check in self.checks},
            "problems": {check.name: check.says for check in self.checks if check.says},
            "jobs": len(self.table),
            "params": dict(self.params),
            "virtual_s": self.virtual_s,
            "wall_s": round(self.wall_s, 3),
        }

    def save(self, folder: str | Path) -> Path:
        """Write everything to a folder, made if need be; returns it."""
        path = made_folder(folder)
        self.history.save(path / HISTORY_FILE)
        data = {
            "format": FORMAT,
            **self.summary(),
            "lease_us": self.lease_us,
            "faults": [fault_to_dict(fault) for fault in self.faults],
            "decisions": list(self.decisions),
            "workload": None if self.workload is None else self.workload.to_dict(),
            "never_struck": [fault_to_dict(fault) for fault in self.never_struck],
            "check_results": [asdict(check) for check in self.checks],
            "table": [_job_to_dict(job) for job in self.table],
            "effects": [_effect_to_dict(effect) for effect in self.effects],
        }
        (path / "result.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        return path

    def save_experiment(self, path: str | Path) -> Path:
        """Write what decided the run, and what came of it, to one file that ``simlab replay`` runs again."""
        from simlab.replays import save_experiment

        return save_experiment(self, path)

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        """Read a saved result back.

        Raises
        ------
        InvalidExperiment
            If the folder holds no result, one of another version, or one that does not give its own digest.
        """
        path = Path(folder)
        try:
            data = json.loads((path / "result.json").read_text(encoding="utf-8"))
            if data.get("format") != FORMAT:
                raise InvalidExperiment(
                    f"{path} was saved in format {data.get('format')}; this version reads format {FORMAT}: "
                    f"run it again"
                )
            result, saved_digest = cls._from_dict(data, History.load(path / HISTORY_FILE)), data["digest"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidExperiment(f"{path} holds no saved result: {error}") from error
        if result.digest != saved_digest:
            raise InvalidExperiment(
                f"{path} was changed: its digest is {result.digest[:12]}, not the saved one"
            )
        return result

    @classmethod
    def _from_dict(cls, data: Mapping[str, Any], history: History) -> Result:
        return cls(
            scenario=data["scenario"],
            seed=data["seed"],
            variant=data["variant"],
            store=data["store"],
            params=data["params"],
            faults=tuple(fault_from_dict(fault) for fault in data["faults"]),
            lease_us=data["lease_us"],
            checks=tuple(_check_from_dict(check) for check in data["check_results"]),
            verdict=Verdict(data["verdict"]),
            history=history,
            table=tuple(_job_from_dict(job) for job in data["table"]),
            effects=tuple(_effect_from_dict(effect) for effect in data["effects"]),
            virtual_s=data["virtual_s"],
            wall_s=data["wall_s"],
            decisions=tuple(data.get("decisions", ())),
            workload=Workload.from_dict(data["workload"]) if data.get("workload") else None,
            never_struck=tuple(fault_from_dict(fault) for fault in data.get("never_struck", ())),
        )


def made_folder(folder: str | Path) -> Path:
    """Return a folder, made if need be.

    Raises
    ------
    InvalidExperiment
        If it cannot be made.
    """
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidExperiment(f"{path} cannot be made: {error.strerror}; name another folder") from error
    return path


def _job_to_dict(job: Job) -> dict[str, Any]:
    return {**asdict(job), "job_id": str(job.job_id), "state": job.state.value}


def _job_from_dict(data: Mapping[str, Any]) -> Job:
    return Job(**{**data, "job_id": UUID(data["job_id"]), "state": JobState(data["state"])})


def _effect_to_dict(effect: Effect) -> dict[str, Any]:
    return {**asdict(effect), "job_id": str(effect.job_id)}


def _effect_from_dict(data: Mapping[str, Any]) -> Effect:
    return Effect(**{**data, "job_id": UUID(data["job_id"])})


def _check_from_dict(data: Mapping[str, Any]) -> CheckResult:
    check = CheckResult(**{**data, "verdict": Verdict(data["verdict"])})
    return replace(check, offending=tuple(check.offending))
