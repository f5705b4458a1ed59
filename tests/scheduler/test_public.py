"""The public face: every exported name exists, lists are sorted, importing does nothing else."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import scheduler

ROOT = Path(scheduler.__file__).parents[1]
MODULES = ["scheduler", *(f"scheduler.{module.name}" for module in pkgutil.iter_modules(scheduler.__path__))]


def in_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, each by the alphabet: the order that the linter keeps, too."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("name", MODULES)
def test_every_exported_name_exists_and_the_list_is_sorted(name: str) -> None:
    module = importlib.import_module(name)
    assert all(hasattr(module, exported) for exported in module.__all__)
    assert module.__all__ == sorted(set(module.__all__), key=in_order)


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_owns(name: str) -> None:
    assert importlib.import_module(name).__doc__


@pytest.mark.parametrize("name", scheduler.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    assert (getattr(scheduler, name).__doc__ or "").strip()


PROBE = """
import json, logging, random, signal, sys, threading
before = random.getstate(), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
import scheduler
for name in sys.argv[1:]:
    __import__(name)
print(json.dumps({
    "modules": sorted(sys.modules),
    "threads": threading.active_count(),
    "handlers": len(logging.getLogger().handlers) + len(logging.getLogger("scheduler").handlers),
    "same": before == (random.getstate(), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)),
}))
"""


def test_an_import_does_nothing_but_define() -> None:
    """No output, no thread, no logging set up, no signal caught, no chance drawn; nothing of the laboratory."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE, *MODULES],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert told["threads"] == 1
    assert told["handlers"] == 0
    assert told["same"]
    loaded = {name.partition(".")[0] for name in told["modules"]}
    assert loaded.isdisjoint({"simpy", "simlab", "numpy", "pandas", "matplotlib", "tqdm"})


def test_types_ship_with_the_package() -> None:
    assert (ROOT / "scheduler" / "py.typed").exists()
