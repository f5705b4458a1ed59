"""Reading what a user wrote: durations, instants, payloads, worker settings, and the App they name.

Owns the text forms. Every mistake is a :class:`~scheduler.errors.UsageError` that says what was wrong and the mend.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import sys
import traceback
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

from scheduler.app import MAX_HORIZON, App
from scheduler.errors import InvalidPayload, InvalidSetting, UsageError
from scheduler.jobs import to_us
from scheduler.policy import SECOND_US, WorkerSettings

__all__ = ["load_app", "parse_duration_us", "parse_instant", "parse_payload", "worker_settings"]

_UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "s": SECOND_US,
    "m": 60 * SECOND_US,
    "h": 3600 * SECOND_US,
    "d": 86_400 * SECOND_US,
}
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s|m|h|d)")


def parse_duration_us(name: str, text: str) -> int:
    """Read a duration such as ``90s``, ``2.5s``, ``1h30m`` or ``2d``; returns microseconds, exactly.

    Raises
    ------
    InvalidSetting
        If it does not read so, is finer than a microsecond, or is longer than `MAX_HORIZON`.
    """
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InvalidSetting(
            name, text, "is not a duration; write 90s, 5m, 1h30m or 2d (units us ms s m h d)"
        )
    total = sum((Decimal(number) * _UNITS_US[unit] for number, unit in parts), Decimal(0))
    if total > to_us(MAX_HORIZON):
        raise InvalidSetting(name, text, f"is too long; at most {MAX_HORIZON.days}d")
    if total != int(total):
        raise InvalidSetting(
            name, text, "is finer than a microsecond, which is as fine as PostgreSQL keeps time"
        )
    return int(total)


def parse_instant(name: str, text: str) -> datetime:
    """Read an instant in ISO 8601, with its time zone."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidSetting(
            name, text, "is not a date and time; write it in ISO 8601, such as 2030-01-31T09:00+01:00"
        ) from None
    if instant.utcoffset() is None:
        raise InvalidSetting(name, text, "has no time zone, so it names no instant; end it with Z or +01:00")
    return instant


def parse_payload(task: str, text: str) -> Any:
    """Read a payload; what it may hold is checked by the App.

    Raises
    ------
    InvalidPayload
        Saying at which line and column the JSON breaks.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise InvalidPayload(
            task, where, f"not JSON: {error.msg}; write it as '{{\"user_id\": 7}}'"
        ) from None
    except RecursionError:
        raise InvalidPayload(task, "$", "nested too deep to read") from None
    except ValueError as error:
        raise InvalidPayload(task, "$", str(error).partition(";")[0]) from None


def worker_settings(
    *,
    concurrency: int,
    prefetch: int,
    lease: str,
    heartbeat: str | None,
    request_timeout: str | None,
    lookahead: str | None,
    poll: str | None,
    sweep: str | None,
    drain: str,
) -> WorkerSettings:
    """Read the worker's durations; one that is not given follows from those that are, by the defaults' ratio."""
    given = WorkerSettings()

    def read(name: str, text: str | None, otherwise_us: int) -> int:
        return max(1, otherwise_us) if text is None else parse_duration_us(name, text)

    lease_us = parse_duration_us("--lease", lease)
    poll_us = read("--poll", poll, given.poll_interval_us)
    lookahead_us = read("--lookahead", lookahead, max(given.lookahead_us, 6 * poll_us))
    if poll is None and lookahead_us:
        poll_us = max(1, min(poll_us, lookahead_us // 6))
    return WorkerSettings(
        concurrency=concurrency,
        prefetch=prefetch,
        lookahead_us=lookahead_us,
        poll_interval_us=poll_us,
        lease_us=lease_us,
        heartbeat_interval_us=read("--heartbeat", heartbeat, lease_us // 4),
        request_timeout_us=read(
            "--request-timeout", request_timeout, min(given.request_timeout_us, lease_us // 24)
        ),
        sweep_interval_us=read("--sweep", sweep, min(given.sweep_interval_us, lease_us // 12)),
        drain_timeout_us=parse_duration_us("--drain", drain),
    )


def load_app(spec: str | None) -> App:
    """Import the App that ``module:name`` names; the current directory is searched first.

    Raises
    ------
    UsageError
        If there is none: no such module, an error inside it, no such name, or not an App.
    """
    if not spec:
        raise UsageError("no application named; give --app module:app or set SCHEDULER_APP")
    module_name, colon, name = spec.partition(":")
    if not (module_name and colon and name):
        raise InvalidSetting("--app", spec, "write it as module:app, such as shop.jobs:app")
    module = _import(spec, module_name)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, App):
        return found
    apps = sorted(key for key, value in vars(module).items() if isinstance(value, App))
    hint = f"it has {', '.join(apps)}" if apps else "it has no App; write `app = App()` there"
    what = "has no such name" if found is None else f"holds a {type(found).__name__} there, not an App"
    raise InvalidSetting("--app", spec, f"module {module_name!r} {what}; {hint}")


def _import(spec: str, name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        # Whatever a module prints while it is imported is not this command's result.
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's module may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            why = f"there is no module {error.name!r} in {here} or on the Python path"
        else:
            message = " ".join(str(error).split())
            why = f"importing {name!r} failed: {type(error).__name__}: {message} ({_place(error)})"
        raise InvalidSetting("--app", spec, why) from None


def _place(error: BaseException) -> str:
    """Say where in somebody else's module an error arose."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename} line {error.lineno}"
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename
    ]
    return f"{frames[-1].filename} line {frames[-1].lineno}"
