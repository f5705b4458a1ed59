"""The famous mistakes that real worker processes can be made to make, so that the judge shows what it sees.

They are those that replace statements. The others replace parts of a simulated world.
"""

from __future__ import annotations

import json
from pathlib import Path

from scheduler.postgres import Queries
from scheduler.worker import Worker
from simlab.errors import UnknownScenario
from simlab.scenario import Rewrite
from simlab.scenarios import SCENARIOS

__all__ = ["mistakes", "write_statements"]


def mistakes() -> dict[str, Rewrite]:
    """Return, by name, what replaces production's statements in each."""
    variants = [variant for scenario in SCENARIOS.values() for variant in scenario.variants]
    return {
        variant.name: variant.rewrite
        for variant in sorted(variants, key=lambda variant: variant.name)
        if variant.rewrite is not None and variant.wrap is None and variant.worker_class is Worker
    }


def write_statements(name: str, path: Path) -> None:
    """Write the replaced statements of a mistake to a JSON file.

    Raises
    ------
    UnknownScenario
        If there is no such mistake, or a real process cannot make it.
    """
    known = mistakes()
    if name not in known:
        raise UnknownScenario("mistake of real workers", name, known)
    path.write_text(json.dumps(known[name](Queries.load())), encoding="utf-8")
