"""``python -m simlab``: the same as the ``simlab`` command."""

import sys

from simlab.cli import main

sys.exit(main())
