"""A laboratory around the delayed-job scheduler: the same code on a virtual clock, with every failure at hand.

::

    from simlab import simulate
    result = simulate("crash-after-execution", seed=7)
    result.verdict, result.digest
    result.plot_timeline()

The names are loaded when they are first used: a worker process of the laboratory imports this package too, and
must not wait for pandas and matplotlib.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simlab.checks import CheckResult, Verdict
    from simlab.crosschecks import CrossCheck, crosscheck
    from simlab.effects import EffectMode
    from simlab.errors import (
        InvalidExperiment,
        PostgresUnavailable,
        SimlabError,
        SimulationError,
        UnknownScenario,
    )
    from simlab.experiment import simulate
    from simlab.exploration import explore
    from simlab.faults import At, Crash, Pause, Reached, ReplyLost, RequestLost
    from simlab.pgserver import throwaway_postgres
    from simlab.replays import replay
    from simlab.results import Result
    from simlab.scenarios import SCENARIOS
    from simlab.sweeps import sweep

__all__ = [
    "SCENARIOS",
    "At",
    "CheckResult",
    "Crash",
    "CrossCheck",
    "EffectMode",
    "InvalidExperiment",
    "Pause",
    "PostgresUnavailable",
    "Reached",
    "ReplyLost",
    "RequestLost",
    "Result",
    "SimlabError",
    "SimulationError",
    "UnknownScenario",
    "Verdict",
    "crosscheck",
    "explore",
    "replay",
    "simulate",
    "sweep",
    "throwaway_postgres",
]

_HOMES = {
    "checks": ("CheckResult", "Verdict"),
    "crosschecks": ("CrossCheck", "crosscheck"),
    "effects": ("EffectMode",),
    "errors": (
        "InvalidExperiment",
        "PostgresUnavailable",
        "SimlabError",
        "SimulationError",
        "UnknownScenario",
    ),
    "experiment": ("simulate",),
    "exploration": ("explore",),
    "faults": ("At", "Crash", "Pause", "Reached", "ReplyLost", "RequestLost"),
    "pgserver": ("throwaway_postgres",),
    "replays": ("replay",),
    "results": ("Result",),
    "scenarios": ("SCENARIOS",),
    "sweeps": ("sweep",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(importlib.import_module(f"simlab.{home}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'simlab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
