"""Open a throwaway server in a process of its own, say where it is, and end in one of several ways.

Run by test_pgserver.py: ``python hold_server.py SOURCE ENDING``. Prints one line of JSON when the server is up.
"""

import json
import os
import sys
import time
from contextlib import ExitStack

from simlab.pgserver import throwaway_postgres

source, ending = sys.argv[1:]

stack = ExitStack()
server = stack.enter_context(throwaway_postgres(source))
child = 0
if ending == "fork":  # A child that outlives its parent and holds every pipe the parent had.
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
told = {"pid": server.pid, "dsn": server.dsn, "guard": server._guard.pid, "child": child}
sys.stdout.write(json.dumps(told | {"directory": str(server._directory)}) + "\n")
sys.stdout.flush()
if ending == "leave":  # Normal end of the process without closing anything.
    sys.exit(0)
with stack:
    if ending == "raise":
        raise RuntimeError("a mistake in the block")
    if ending == "wait" or child:
        time.sleep(30)
