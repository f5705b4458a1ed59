"""The scenarios, one file each: every module here with a ``SCENARIO`` is one. Headline stories come first."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from simlab.errors import UnknownScenario
from simlab.scenario import Scenario

__all__ = ["SCENARIOS", "find_scenario"]


def _all() -> list[Scenario]:
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    found = [module.SCENARIO for module in modules if hasattr(module, "SCENARIO")]
    return sorted(found, key=lambda scenario: (not scenario.headline, scenario.name))


SCENARIOS: Mapping[str, Scenario] = MappingProxyType({scenario.name: scenario for scenario in _all()})


def find_scenario(name: str) -> Scenario:
    """Return a scenario by name.

    Raises
    ------
    UnknownScenario
        If there is none of that name.
    """
    try:
        return SCENARIOS[name]
    except KeyError:
        raise UnknownScenario("scenario", name, SCENARIOS) from None
