"""The set-up cannot drift: dependencies, lock, conda environment, Makefile, wheel and the rules of the core."""

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
CORE = [Requirement(text) for text in PROJECT["dependencies"]]
EXTRAS = {
    extra: [Requirement(text) for text in texts] for extra, texts in PROJECT["optional-dependencies"].items()
}
SETUP = [Requirement(text) for text in PYPROJECT["dependency-groups"]["setup"]]
EVERYTHING = [*CORE, *(requirement for extra in EXTRAS.values() for requirement in extra), *SETUP]
LOCK = (ROOT / "requirements.lock").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = dict(re.findall(r"^([a-z][a-z-]*):.*?(?:## (.*))?$", MAKEFILE, re.MULTILINE))

# Distributions whose import is named differently.
IMPORT_NAMES = {"pyyaml": "yaml"}


def import_name(requirement: Requirement) -> str:
    name = canonicalize_name(requirement.name)
    return IMPORT_NAMES.get(name, name.replace("-", "_"))


def locked() -> dict[str, Version]:
    lines = re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", LOCK, re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in lines}


# ---------------------------------------------------------------------------------------- dependencies


@pytest.mark.parametrize("requirement", EVERYTHING, ids=lambda requirement: requirement.name)
def test_every_dependency_has_a_lower_and_an_upper_bound(requirement):
    operators = {specifier.operator for specifier in requirement.specifier}
    assert operators in ({">=", "<"}, {"=="})


@pytest.mark.parametrize("requirement", EVERYTHING, ids=lambda requirement: requirement.name)
def test_every_dependency_is_explained_in_the_contributors_table(requirement):
    table = (ROOT / "CONTRIBUTING.md").read_text()
    assert re.search(rf"^\| `{re.escape(requirement.name)}` \|", table, re.MULTILINE), (
        f"add a row that says why {requirement.name} was chosen"
    )


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield each imported top-level name, and whether it is imported at once with its module."""

    def visit(node: ast.AST, *, at_once: bool) -> Iterator[tuple[str, bool]]:
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], at_once) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0], at_once
        lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Try) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        )
        for child in ast.iter_child_nodes(node):
            yield from visit(child, at_once=at_once and not lazy)

    yield from visit(ast.parse(path.read_text()), at_once=True)


def foreign_imports() -> list[tuple[str, str, bool]]:
    own = {"scheduler", "simlab"} | sys.stdlib_module_names
    return [
        (str(path.relative_to(ROOT)), name, at_once)
        for package in ("scheduler", "simlab")
        for path in sorted((ROOT / package).rglob("*.py"))
        for name, at_once in imports(path)
        if name not in own
    ]


def test_every_import_is_a_declared_dependency():
    core = {import_name(requirement) for requirement in CORE}
    optional = {import_name(requirement) for extra in EXTRAS.values() for requirement in extra}
    undeclared = [
        f"{path} imports {name}"
        for path, name, at_once in foreign_imports()
        if name not in core and (at_once or name not in optional)
    ]
    assert undeclared == [], "declare it, or import what belongs to an extra inside a function"


def test_every_core_dependency_is_used():
    used = {name for _, name, _ in foreign_imports()}
    assert {import_name(requirement) for requirement in CORE} - used == set()


def test_imports_are_told_apart_by_when_they_happen(tmp_path):
    module = tmp_path / "module.py"
    module.write_text(
        "import a.b\nfrom c import d\nif TYPE_CHECKING:\n    import e\n"
        "try:\n    import f\nexcept ImportError:\n    pass\ndef g():\n    import h\n"
    )
    assert dict(imports(module)) == {"a": True, "c": True, "e": False, "f": False, "h": False}


# ------------------------------------------------------------------------------------------------ lock


@pytest.mark.parametrize("requirement", EVERYTHING, ids=lambda requirement: requirement.name)
def test_the_lock_satisfies_pyproject(requirement):
    version = locked().get(canonicalize_name(requirement.name))
    assert version is not None, "run `make lock`"
    assert requirement.specifier.contains(version, prereleases=True), "run `make lock`"


def test_the_lock_names_each_distribution_once_and_with_hashes():
    blocks = re.findall(r"^[A-Za-z0-9].*(?:\n    --hash=.*)+", LOCK, re.MULTILINE)
    assert len(blocks) == len(locked()) == len(re.findall(r"^[A-Za-z0-9]", LOCK, re.MULTILINE))
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", block) for block in blocks)


def test_the_lock_names_no_host_and_no_local_path():
    assert "://" not in LOCK
    assert not re.search(r"^\s*--(?!hash=)|^-[a-z]| @ |file:", LOCK, re.MULTILINE)


def test_the_lock_says_how_it_is_renewed():
    assert "make lock" in LOCK.splitlines()[1]


def test_the_build_backend_is_the_locked_one():
    (backend,) = (Requirement(text) for text in PYPROJECT["build-system"]["requires"])
    assert str(backend.specifier) == f"=={locked()[canonicalize_name(backend.name)]}"
    assert str(backend) in PYPROJECT["dependency-groups"]["setup"]


def test_the_set_up_pins_uv_by_the_lock_alone():
    assert "uv" in locked()
    assert not re.search(r"uv[=><~]=?\d", MAKEFILE)


# --------------------------------------------------------------------------------------- python, conda


def conda() -> tuple[dict[str, SpecifierSet], list[str]]:
    """Return conda's own dependencies with their bounds, and what it leaves to pip."""
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    texts = [entry for entry in entries if isinstance(entry, str)]
    (pip,) = (entry["pip"] for entry in entries if isinstance(entry, dict))
    found = {}
    for text in texts:
        name, bounds = re.fullmatch(r"([a-z0-9_-]+)(.*)", text).groups()
        if re.fullmatch(r"=[\d.]+", bounds):  # conda's way to say 3.12.*
            bounds = f"={bounds}.*"
        found[name] = SpecifierSet(bounds)
    return found, pip


def test_conda_repeats_the_bounds_of_pyproject():
    found, _ = conda()
    declared = {canonicalize_name(requirement.name): requirement.specifier for requirement in EVERYTHING}
    assert {name: str(bounds) for name, bounds in found.items() if name not in {"python", "pip"}} == {
        name: str(declared[name]) for name in found if name not in {"python", "pip"}
    }


def test_conda_pins_a_supported_python_to_a_minor():
    bounds = str(conda()[0]["python"])
    assert re.fullmatch(r"==3\.\d+\.\*", bounds)
    version = bounds.removeprefix("==").removesuffix(".*")
    assert SpecifierSet(PROJECT["requires-python"]).contains(f"{version}.0")
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]


def test_conda_installs_the_project_with_extras_that_exist():
    _, pip = conda()
    (extras,) = re.fullmatch(r"-e \.\[([a-z,]+)\]", pip[0]).groups()
    assert len(pip) == 1
    assert set(extras.split(",")) <= set(EXTRAS)


def test_python_is_the_same_everywhere():
    (lowest,) = SpecifierSet(PROJECT["requires-python"])
    assert lowest.operator == ">="
    assert PYPROJECT["tool"]["mypy"]["python_version"] == lowest.version
    assert PYPROJECT["tool"]["ruff"]["target-version"] == "py" + lowest.version.replace(".", "")
    assert f"--python-version {lowest.version}" in MAKEFILE
    assert default_environment()["python_version"] >= lowest.version


# ---------------------------------------------------------------------------------------- make and CI


def test_every_target_has_a_line_in_the_help():
    phony = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)", MAKEFILE, re.MULTILINE).group(1)
    names = set(phony.replace("\\", " ").split())
    assert names == set(TARGETS)
    assert [name for name, line in TARGETS.items() if not line] == []


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_help_is_the_default_and_lists_every_target():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--no-print-directory", "-C", str(ROOT)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert {line.split()[1] for line in lines.splitlines()} == set(TARGETS)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_the_documents_name_only_targets_that_exist(document):
    text = (ROOT / document).read_text()
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))
    named = set(re.findall(r"\bmake ((?!PYTHON)[a-z][a-z-]*)", code))
    assert named, f"{document} names no make target"
    assert named - set(TARGETS) == set()


def test_ci_runs_the_documented_test_command():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    text = script.read_text()
    assert "set -euo pipefail" in text
    assert re.search(r"^make test\b", text, re.MULTILINE)
    assert "make test" in (ROOT / "README.md").read_text()
    subprocess.run(["bash", "-n", str(script)], check=True)


# ------------------------------------------------------------------------------------------- the wheel


def test_the_wheel_holds_both_packages_with_their_data_and_nothing_else(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        str(path.relative_to(ROOT))
        for package in ("scheduler", "simlab")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == expected
    assert {"scheduler/py.typed", "simlab/py.typed", "simlab/simlab.mplstyle"} <= names
    assert any(re.fullmatch(r"scheduler/sql/.*\.sql", name) for name in names)


def test_the_commands_point_at_functions_that_exist():
    for target in PROJECT["scripts"].values():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


# ---------------------------------------------------------------------------- the rules of the core


def lint(tmp_path: Path, relative: str, code: str) -> str:
    """Lint one planted module in a copy of the project's settings; return what ruff says of it."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    path = tmp_path / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise", relative]
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False).stdout


BANNED = {
    "time": "import time",
    "time, in pieces": "from time import monotonic",
    "the event loop": "import asyncio",
    "the wall clock": "import datetime\n\nSTARTED = datetime.datetime.now(datetime.UTC)",
    "the wall clock, imported": "from datetime import UTC, datetime\n\nSTARTED = datetime.now(UTC)",
    "today": "import datetime\n\nTODAY = datetime.date.today()",
    "chance": "import random",
    "the system's chance": "import os\n\nNONCE = os.urandom(8)",
    "secrets": "import secrets",
    "random identifiers": "import uuid\n\nNAME = uuid.uuid4()",
    "host identifiers": "from uuid import uuid1",
    "threads": "import threading",
    "thread pools": "from concurrent.futures import ThreadPoolExecutor",
}


@pytest.mark.parametrize("code", BANNED.values(), ids=BANNED.keys())
@pytest.mark.parametrize(
    "module", ["scheduler/timer.py", "scheduler/planted.py", "simlab/scenarios/planted.py"]
)
def test_lint_refuses_the_system_clock_and_chance_in_the_core(tmp_path, module, code):
    assert "TID251" in lint(tmp_path, module, f'"""A planted mistake."""\n\n{code}\n')


@pytest.mark.parametrize("adapter", ["scheduler/clock.py", "scheduler/postgres.py", "simlab/chaos/run.py"])
def test_lint_allows_them_in_an_adapter(tmp_path, adapter):
    assert "TID251" not in lint(tmp_path, adapter, '"""An adapter."""\n\nimport asyncio\nimport time\n')


def contracts(tmp_path: Path, relative: str, code: str) -> subprocess.CompletedProcess[str]:
    """Check the import contracts on a copy of both packages with one line planted in one module."""
    for package in ("scheduler", "simlab"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    path = tmp_path / relative
    path.write_text(path.read_text() + f"\n{code}\n")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
        "from importlinter.cli import lint_imports_command as lint; lint()"
    )
    command = [sys.executable, "-P", "-c", program, "--no-logo", "--no-cache"]
    environment = os.environ | {"COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, env=environment)


@pytest.mark.parametrize(
    ("module", "code", "arrow"),
    [
        ("scheduler/policy.py", "import simpy", "scheduler.policy -> simpy"),
        ("scheduler/worker.py", "from simlab import errors", "scheduler.worker -> simlab"),
        ("scheduler/jobs.py", "from scheduler import store", "scheduler.jobs -> scheduler.store"),
        ("scheduler/poller.py", "import psycopg", "scheduler.poller -> psycopg"),
        ("scheduler/pool.py", "from scheduler import postgres", "scheduler.pool -> scheduler.postgres"),
    ],
)
def test_import_contracts_refuse_an_arrow_that_points_the_wrong_way(tmp_path, module, code, arrow):
    result = contracts(tmp_path, module, code)
    assert result.returncode == 1, result.stderr
    assert arrow in result.stdout


def test_import_contracts_hold(tmp_path):
    result = contracts(tmp_path, "scheduler/errors.py", "")
    assert result.returncode == 0, result.stdout
