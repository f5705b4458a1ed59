"""The console: how a command prints, how it tells an error, and what it ends with.

Results go to stdout and nothing else does. An error that is the user's is one line on stderr, never a traceback.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import typer

__all__ = ["print_json", "print_table", "report_error", "run_command_line", "table_text"]


def print_json(result: object) -> None:
    """Print a result for a program to read."""
    print(json.dumps(result, indent=2))


def table_text(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in columns, one row a line."""
    table = [header, *([_printable(cell) for cell in row] for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )
    return "\n".join(lines)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table in columns."""
    print(table_text(header, rows))


def _printable(text: str) -> str:
    """Return text as one line without control characters: what a job says must not steer the terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def report_error(error: Exception, program: str, *own: type[Exception]) -> int:
    """Tell an error on stderr and return the exit code: one line for a user's, a traceback for a bug.

    Parameters
    ----------
    own
        The classes whose errors are a user's to mend. Each has an `exit_code`.
    """
    told = getattr(error, "format_message", None)  # an error of the command line parser
    if isinstance(error, own):
        message, code = str(error), getattr(error, "exit_code", 1)
    elif told is not None:
        message, code = f"{told()} See `{program} --help`.", 2
    else:
        traceback.print_exception(error)
        return 1
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code


def run_command_line(
    cli: Callable[..., Any],
    arguments: Sequence[str] | None,
    *,
    program: str,
    own: tuple[type[Exception], ...],
) -> int:
    """Run a typer application on the given words, or on the process's own; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # The parser returns a code after --help, and a command's own None otherwise.
        code = cli(words or ["--help"], prog_name=program, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has gone, as `head` does. Python would complain once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (KeyboardInterrupt, typer.Abort):
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 - told in one line, or as the bug that it is
        return report_error(error, program, *own)
    return code if isinstance(code, int) else 0
