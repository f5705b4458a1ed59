"""Tidy frames made from a history: one row a job, a claim, an execution. Times in virtual seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pandas as pd

from scheduler.jobs import Job
from simlab.effects import Effect
from simlab.history import Event, History, short_names
from simlab.hosts import EPOCH_US

__all__ = ["attempts_frame", "jobs_frame", "lateness_frame"]


def _virtual_s(db_us: int | None) -> float | None:
    return None if db_us is None or db_us < 0 else (db_us - EPOCH_US) / 1e6


def _shortened(jobs: Sequence[UUID]) -> dict[UUID, str]:
    return dict(zip(jobs, short_names([str(job) for job in jobs]), strict=True))


def _jobs_in(history: History) -> list[UUID]:
    return list(dict.fromkeys(event.job for event in history if event.job is not None))


def jobs_frame(history: History, table: Sequence[Job], effects: Sequence[Effect]) -> pd.DataFrame:
    """Return one row a job.

    Columns: `job`, `job_id`, `task`, `state`, `due_s` (its first run time), `attempts`, `executions`, `effects`,
    `lateness_s` (the first execution against `due_s`; missing when it never ran), `finished_s`, `last_error`.
    """
    counts = dict.fromkeys((row.job_id for row in table), 0)
    for effect in effects:
        counts[effect.job_id] = counts.get(effect.job_id, 0) + 1
    due: dict[UUID, int] = {}
    runs: dict[UUID, list[int]] = {}
    for event in history:
        if event.job is not None and event.kind == "enqueued":
            due.setdefault(event.job, event.due_us)
        elif event.job is not None and event.kind == "executing":
            runs.setdefault(event.job, []).append(event.db_us)
    names = _shortened([row.job_id for row in table])
    rows = []
    for row in table:
        due_us = due.get(row.job_id, row.run_at_us)
        began = runs.get(row.job_id, [])
        rows.append(
            {
                "job": names[row.job_id],
                "job_id": str(row.job_id),
                "task": row.task,
                "state": row.state.value,
                "due_s": _virtual_s(due_us),
                "attempts": row.attempt,
                "executions": len(began),
                "effects": counts[row.job_id],
                "lateness_s": (began[0] - due_us) / 1e6 if began else None,
                "finished_s": _virtual_s(row.finished_at_us),
                "last_error": row.last_error,
            }
        )
    columns = [
        "job", "job_id", "task", "state", "due_s", "attempts", "executions", "effects", "lateness_s",
        "finished_s", "last_error",
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=columns).sort_values("due_s", kind="stable", ignore_index=True)


def attempts_frame(history: History) -> pd.DataFrame:
    """Return one row a claim.

    Columns: `job`, `job_id`, `token`, `attempt`, `host`, `claimed_s`, `lease_until_s` (as last renewed, by the
    database), `executing_s`, `executed_s` (missing when it did not come to that), `ended_s` and `end` (how the
    database saw the claim end: ``succeeded``, ``retry``, ``swept``, …; missing while it holds).
    """
    rows: list[dict[str, Any]] = []
    # A token names one claim only where no mistake resets it; a host knows which one it means.
    of_host: dict[tuple[UUID, int, str], dict[str, Any]] = {}
    newest: dict[tuple[UUID, int], dict[str, Any]] = {}
    current: dict[UUID, dict[str, Any]] = {}
    names = _shortened(_jobs_in(history))
    for event in history:
        if event.job is None:
            continue
        if event.kind == "claimed":
            row = _claim_row(event, names[event.job])
            rows.append(row)
            newest[event.job, event.token] = current[event.job] = row
            of_host[event.job, event.token, event.host] = row
            continue
        held = newest.get((event.job, event.token))
        if event.kind == "cancelled":
            held = current.get(event.job) if event.detail == "cancelled" else None
        elif event.kind != "swept":
            held = of_host.get((event.job, event.token, event.host), held)
        if held is not None:
            _update_claim(held, event)
    columns = [
        "job", "job_id", "token", "attempt", "host", "claimed_s", "lease_until_s", "executing_s", "executed_s",
        "ended_s", "end",
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def _claim_row(event: Event, name: str) -> dict[str, Any]:
    return {
        "job": name,
        "job_id": str(event.job),
        "token": event.token,
        "attempt": event.attempt,
        "host": event.host,
        "claimed_s": event.time_us / 1e6,
        "lease_until_s": _virtual_s(event.until_us),
        "executing_s": None,
        "executed_s": None,
        "ended_s": None,
        "end": None,
    }


def _update_claim(row: dict[str, Any], event: Event) -> None:
    at_s = event.time_us / 1e6
    if event.kind == "renewed":
        row["lease_until_s"] = _virtual_s(event.until_us)
    elif event.kind == "executing":
        row["executing_s"] = at_s
    elif event.kind in {"executed", "raised"}:
        row["executed_s"] = at_s
    elif event.kind in {"finished", "swept", "cancelled"} and row["ended_s"] is None:
        row["ended_s"] = at_s
        row["end"] = "swept" if event.kind == "swept" else event.detail.partition(" to ")[0]


def lateness_frame(history: History) -> pd.DataFrame:
    """Return one row an execution.

    Columns: `job`, `attempt`, `host`, `due_s`, `began_s`, `lateness_ms` (by the database's time; the due time
    of a retry is the retry's own).
    """
    names = _shortened(_jobs_in(history))
    rows = [
        {
            "job": names[event.job],
            "attempt": event.attempt,
            "host": event.host,
            "due_s": _virtual_s(event.due_us),
            "began_s": _virtual_s(event.db_us),
            "lateness_ms": (event.db_us - event.due_us) / 1e3,
        }
        for event in history
        if event.kind == "executing" and event.job is not None
    ]
    return pd.DataFrame(rows, columns=["job", "attempt", "host", "due_s", "began_s", "lateness_ms"])
