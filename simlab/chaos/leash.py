"""The leash: ends a worker process when the process that started it is gone, even by SIGKILL.

Run by its path with ``python -I -S LEASH COMMAND...`` so that it costs milliseconds: it asks the kernel for SIGKILL
at the death of its parent, and becomes the command. Where the kernel knows no such thing (macOS) the worker is
ended by its starter's own clean-up only.

Must not: import anything outside the standard library, or anything of this package.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


def main(command: list[str], parent: int) -> None:
    """Put the leash on and become the command."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        sys.exit(1)  # It died before the leash was on.
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[2:], int(sys.argv[1]))
