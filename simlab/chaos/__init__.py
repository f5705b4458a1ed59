"""Real time, real processes, real signals: the same scheduler, the same checks, and no simulation at all.

A throwaway server, worker processes of the ``scheduler worker`` command, and a seeded stream of everything that
can be done to them from outside. Everything is bounded in time and count, and every process is gone at the end,
however it ends.

::

    run ── the whole: load, acts, healing, judging
      ├── plan       which acts, when: a pure function of the seed
      ├── processes  worker processes, and the leash that ends them
      │     └── mistakes, mistaken   the same command with a famous mistake in it
      ├── proxy      the network: delays, cuts, silence, replies lost after the commit
      ├── load       a client that enqueues until it is told yes
      ├── audit      every change of a job, written by a trigger; what handlers noted; made into a History
      ├── judging    the checks that apply, and three of its own; `result` is what they come to
      ├── starvation whether the machine gave every process its turn
      └── lateness   measured in a calm run, beside what the simulation predicts for the same load
    story ── one crash, told with two real workers
"""

from __future__ import annotations

from simlab.chaos.judging import judge_again
from simlab.chaos.lateness import LatenessComparison, compare_lateness
from simlab.chaos.mistakes import mistakes
from simlab.chaos.result import ChaosResult
from simlab.chaos.run import run_chaos
from simlab.chaos.story import CrashStory, StoryFailed, crash_after_execution

__all__ = [
    "ChaosResult",
    "CrashStory",
    "LatenessComparison",
    "StoryFailed",
    "compare_lateness",
    "crash_after_execution",
    "judge_again",
    "mistakes",
    "run_chaos",
]
