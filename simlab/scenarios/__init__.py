"""The scenarios, one file each. :data:`SCENARIOS` is the list of them, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from simlab.errors import UnknownScenario
from simlab.scenario import Scenario, Sizes, Variant
from simlab.scenarios import crash_after_execution

__all__ = ["SCENARIOS", "Scenario", "Sizes", "Variant", "find_scenario"]

SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {module.SCENARIO.name: module.SCENARIO for module in (crash_after_execution,)}
)


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
