"""The ``scheduler`` command with some of its statements replaced: a worker process with a famous mistake in it.

Run by its path with ``python -P MISTAKEN STATEMENTS worker ...``, where STATEMENTS is a JSON file of the statements,
by their files' names in ``scheduler/sql``. Nothing else differs from ``scheduler worker ...``.

Must not: import anything of the laboratory. A worker that starts is waited for, and the laboratory takes seconds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import scheduler.cli
from scheduler.postgres import Queries

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """Replace the statements that the file named by the first word holds, and run the command of the others."""
    mistaken = replace(Queries.load(), **json.loads(Path(words[0]).read_text(encoding="utf-8")))
    Queries.load = classmethod(lambda _: mistaken)  # type: ignore[method-assign,assignment]
    return scheduler.cli.main(words[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
