"""The command line of the laboratory.

Results go to stdout, everything else to stderr. Verdicts are exit codes: 0 VALID, 1 INVALID, 2 UNKNOWN or a
mistake in the call, 3 a database that cannot be reached. A user's mistake is one line, never a traceback.

The modules behind the commands bring pandas and matplotlib along; each command imports what it needs when it is
called, so that --help and a mistake in the call answer at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.console import run_command_line
from scheduler.errors import SchedulerError
from simlab.cli import chaos, runs, search  # noqa: F401 - their commands register themselves
from simlab.cli.common import cli
from simlab.errors import SimlabError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 VALID, 1 INVALID, 2 UNKNOWN or misuse, 3 no database."""
    return run_command_line(cli, arguments, program="simlab", own=(SimlabError, SchedulerError))
