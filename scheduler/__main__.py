"""``python -m scheduler`` is the command ``scheduler``."""

import sys

from scheduler.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
