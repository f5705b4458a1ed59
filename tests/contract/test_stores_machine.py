"""The model and PostgreSQL in step: whatever is asked, by whom and when, the same replies and the same rows.

The state machine asks both for the same random verbs of several workers, moves the clock (by little, and to the
very microsecond at which something expires or is due), lets somebody's open transaction hold rows, and another
insert jobs that nobody sees yet. A verb that has to wait for a lock really waits, on PostgreSQL on a connection
of its own, while others go on; when the lock goes it must find what they did.

Who is woken first, when one transaction's end wakes two who go on to want the same row, is chance on PostgreSQL.
So a batch that waits waits alone; or two verbs wait, of one job each. (A batch that has been given its first
row may find its second free although another verb waits for that, and overtake it.)
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from scheduler.jobs import JobState, LeaseRef
from scheduler.store import ClaimRequest, Outcome, OutcomeKind
from simlab.store import ModelStore
from tests.contract.duel import Difference, Duel
from tests.contract.lab import BEGINNING_US, ModelLabStore, PostgresLabStore, job_id, new_job
from tests.contract.mistakes import (
    KeepsNoPlace,
    LocksNothing,
    RenewsAnything,
    SweepsTooEarly,
)

pytestmark = pytest.mark.postgres

JOBS = 5
numbers = st.integers(1, JOBS)
owners = st.sampled_from(["w1", "w2", "w3"])
# Durations so small that steps meet boundaries, and each other, all the time.
small_us = st.integers(0, 6)
which_lease = st.integers(0, 5)
new_jobs = st.lists(
    st.tuples(
        numbers,
        st.fixed_dictionaries(
            {},
            optional={
                "idempotency_key": st.sampled_from(["k", "l"]),
                "max_attempts": st.integers(1, 2),
                "max_age_us": st.integers(1, 12),
                "payload": st.sampled_from([{"n": 1}, {"n": 1.0}]),
                "task": st.just("other"),
            },
        ),
        st.one_of(
            st.builds(dict, delay_us=small_us),
            st.builds(dict, run_at_us=st.integers(BEGINNING_US - 2, BEGINNING_US + 9)),
        ),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda job: job[0],
)
some_leases = st.lists(which_lease, min_size=1, max_size=3, unique=True)
some_outcomes = st.lists(
    st.tuples(which_lease, st.sampled_from(OutcomeKind), small_us, st.sampled_from([None, "oh", "no"])),
    min_size=1,
    max_size=3,
    unique_by=lambda outcome: outcome[0],
)
some_numbers = st.lists(st.integers(1, JOBS + 1), min_size=1, max_size=3)
MAY_WAIT = 2


class Stores(RuleBasedStateMachine):
    """Both stores, and whatever may happen to them."""

    postgres: ClassVar[PostgresLabStore]
    model: ClassVar[type[ModelStore]] = ModelStore
    happened: ClassVar[set[str]]

    def __init__(self) -> None:
        super().__init__()
        self.postgres.reset()
        self.both = Duel(ModelLabStore(self.model), self.postgres)
        self.leases: list[LeaseRef] = []
        self.locking = False
        self.inserting = False

    @initialize(jobs=new_jobs)
    def some_jobs(self, jobs: list[Any]) -> None:
        self.both.enqueue(new_job(4), new_job(5))
        self._enqueue(jobs)
        self.claim("w1", 2, 0, 5)
        self.start([0, 1])
        self.finish([(0, OutcomeKind.FAILED, 0, "oh")])

    @property
    def may_wait(self) -> bool:
        """Whether one more verb may have to wait, and who comes first still be certain."""
        waiting = self.both.waiting
        return not waiting or (len(waiting) < MAY_WAIT and waiting[0].count("job_id(") == 1)

    def _room(self, asked: list[Any]) -> list[Any]:
        """Let a verb that may wait name one job only, if another waits already."""
        return asked[:1] if self.both.waiting else asked

    def _lease(self, which: int) -> LeaseRef:
        """Pick a lease: those that live first, then the old ones, then some that never were."""
        live = [
            LeaseRef(row.job_id, row.lease_owner, row.lease_token)
            for row in self.both.rows()
            if row.lease_owner
        ]
        leases = list(dict.fromkeys((*live, *reversed(self.leases))))
        if which < len(leases):
            return leases[which]
        return LeaseRef(job_id(1 + which % JOBS), "w1", which)

    def _note(self, verb: str, reply: Any) -> None:
        if reply is None:
            self.happened.add(f"{verb} waits")

    # The verbs.

    @precondition(lambda self: not any("enqueue" in verb for verb in self.both.waiting))
    @precondition(lambda self: self.may_wait)
    @rule(jobs=new_jobs)
    def enqueue(self, jobs: list[Any]) -> None:
        self._enqueue(self._room(jobs))

    def _enqueue(self, jobs: list[Any]) -> None:
        reply = self.both.enqueue(*(new_job(number, **fields, **when) for number, fields, when in jobs))
        self._note("enqueue", reply)

    @rule(owner=owners, limit=st.integers(1, 3), lookahead_us=small_us, lease_us=st.integers(1, 8))
    def claim(self, owner: str, limit: int, lookahead_us: int, lease_us: int) -> None:
        reply = self.both.claim(
            ClaimRequest(
                owner=owner, tasks=("task",), limit=limit, lookahead_us=lookahead_us, lease_us=lease_us
            )
        )
        self.leases += [lease.ref for lease in reply.leases]

    @precondition(lambda self: self.may_wait)
    @rule(which=some_leases)
    def start(self, which: list[int]) -> None:
        self._note("start", self.both.start(*dict.fromkeys(map(self._lease, self._room(which)))))

    @rule(which=some_leases, lease_us=small_us)
    def heartbeat(self, which: list[int], lease_us: int) -> None:
        reply = self.both.heartbeat(*dict.fromkeys(map(self._lease, which)), lease_us=lease_us)
        if any(not renewed.extended for renewed in reply.held):
            self.happened.add("held and not extended")

    @precondition(lambda self: self.may_wait)
    @rule(ends=some_outcomes)
    def finish(self, ends: list[Any]) -> None:
        outcomes = {
            self._lease(which): (kind, delay_us, error) for which, kind, delay_us, error in self._room(ends)
        }
        reply = self.both.finish(*(Outcome(ref, *how) for ref, how in outcomes.items()))
        self._note("finish", reply)

    @rule(limit=st.integers(1, 3))
    def sweep(self, limit: int) -> None:
        reply = self.both.sweep(limit=limit)
        self.happened |= {f"swept to {swept.state}" for swept in reply.jobs}

    @precondition(lambda self: self.may_wait)
    @rule(asked=some_numbers)
    def cancel(self, asked: list[int]) -> None:
        self._note("cancel", self.both.cancel(*map(job_id, self._room(asked))))

    @precondition(lambda self: self.may_wait)
    @rule(asked=some_numbers)
    def replay(self, asked: list[int]) -> None:
        dead = [row.job_id for row in self.both.rows() if row.state is JobState.FAILED]
        named = list(dict.fromkeys((*dead, *map(job_id, range(1, JOBS + 2)))))
        self._note("replay", self.both.replay(*(named[number - 1] for number in self._room(asked))))

    @rule()
    def stats(self) -> None:
        self.both.stats()

    # The clock.

    @rule(us=st.integers(-2, 5).filter(bool))
    def the_clock_moves(self, us: int) -> None:
        self.both.advance_us(us)

    @rule(which=st.integers(0, 5), beside_us=st.sampled_from([0, -1, 1]))
    def the_clock_comes_to_a_boundary(self, which: int, beside_us: int) -> None:
        """To the microsecond of an expiry or a run time, or the one before it, or after."""
        boundaries = {
            at_us
            for row in self.both.rows()
            for at_us in (row.lease_expires_at_us, row.run_at_us, row.expires_at_us)
            if at_us is not None and at_us >= self.both.now_us
        }
        if boundaries:
            at_us = sorted(boundaries)[which % len(boundaries)]
            self.both.advance_us(at_us + beside_us - self.both.now_us)

    # Other transactions.

    @precondition(lambda self: not self.locking and not self.both.waiting)
    @rule(rows=st.lists(numbers, min_size=1, max_size=3, unique=True))
    def somebody_locks(self, rows: list[int]) -> None:
        self.both.lock(*rows)
        self.locking = True

    @precondition(lambda self: self.locking)
    @rule()
    def somebody_lets_go(self) -> None:
        self._woken()
        self.both.unlock()
        self.locking = False

    @precondition(lambda self: not self.inserting and not self.both.waiting)
    @rule(jobs=new_jobs)
    def somebody_inserts(self, jobs: list[Any]) -> None:
        self.both.begin(*(new_job(number, **fields, **when) for number, fields, when in jobs))
        self.inserting = True

    @precondition(lambda self: self.inserting)
    @rule(commits=st.booleans())
    def somebody_ends_the_insert(self, commits: bool) -> None:
        self._woken()
        if commits:
            self.both.commit()
        else:
            self.both.roll_back()
        self.inserting = False

    @precondition(lambda self: self.locking and self.may_wait)
    @rule(
        which=st.integers(0, 2),
        verb=st.sampled_from(["start", "finish", "cancel"]),
        kind=st.sampled_from(OutcomeKind),
    )
    def somebody_asks_for_what_is_locked(self, which: int, verb: str, kind: OutcomeKind) -> None:
        """Something that has to wait, more often than chance would have it."""
        locked = [row for row in self.both.rows() if self.both.locked(row.job_id.int)]
        if not locked:
            return
        row = locked[which % len(locked)]
        ref = LeaseRef(row.job_id, row.lease_owner or "w1", row.lease_token)
        if row.state is JobState.FAILED:
            self._note("replay", self.both.replay(row.job_id))
        elif verb == "cancel" or row.lease_owner is None:
            self._note("cancel", self.both.cancel(row.job_id))
        elif verb == "start":
            self._note("start", self.both.start(ref))
        else:
            self._note("finish", self.both.finish(Outcome(ref, kind, 3)))

    def _woken(self) -> None:
        if len(self.both.waiting) == MAY_WAIT:
            self.happened.add("two wait")

    @precondition(lambda self: self.both.waiting)
    @rule()
    def whoever_waits_is_given_up(self) -> None:
        self.both.time_out()
        self.happened.add("given up")

    def teardown(self) -> None:
        try:
            if self.locking:
                self.both.unlock()
            if self.inserting:
                self.both.roll_back()
        finally:
            self.postgres.recover()


def play(
    postgres: PostgresLabStore,
    *,
    examples: int,
    steps: int,
    model: type[ModelStore] = ModelStore,
    shrinks: bool = True,
) -> set[str]:
    """Run the machine; returns which of the interesting things happened."""
    happened: set[str] = set()
    machine = type("Stores", (Stores,), {"postgres": postgres, "model": model, "happened": happened})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink) if shrinks else (Phase.generate,),
            report_multiple_bugs=False,
        ),
    )
    return happened


EXPECTED = {
    "enqueue waits",
    "start waits",
    "finish waits",
    "cancel waits",
    "replay waits",
    "held and not extended",
    "two wait",
    "given up",
    *(f"swept to {state}" for state in (JobState.PENDING, JobState.FAILED, JobState.CANCELLED)),
}


def test_the_stores_stay_in_step(postgres_lab_store: PostgresLabStore) -> None:
    """At a budget of some seconds; and the interesting things did happen, or it would have shown nothing."""
    assert EXPECTED - play(postgres_lab_store, examples=130, steps=50) == set()


@pytest.mark.slow
def test_the_stores_stay_in_step_for_long(postgres_lab_store: PostgresLabStore) -> None:
    """At a budget of some minutes."""
    assert EXPECTED - play(postgres_lab_store, examples=1500, steps=60) == set()


@pytest.mark.parametrize("mistake", [RenewsAnything, SweepsTooEarly, LocksNothing, KeepsNoPlace])
def test_a_mistake_in_the_model_is_found(
    postgres_lab_store: PostgresLabStore, mistake: type[ModelStore]
) -> None:
    """A model that is wrong in one place only does not stay in step."""
    with pytest.raises(Difference, match="differs"):
        play(postgres_lab_store, examples=300, steps=40, model=mistake, shrinks=False)


def test_a_difference_is_printed_as_a_program_that_shows_it(
    postgres_lab_store: PostgresLabStore, tmp_path: Path
) -> None:
    """The shrunk story runs by itself, and ends with the very difference."""
    with pytest.raises(Difference) as caught:
        play(postgres_lab_store, examples=300, steps=12, model=RenewsAnything)
    difference = caught.value
    assert difference.script.count("both.") <= 12, "it was not shrunk"
    program = tmp_path / "difference.py"
    program.write_text(difference.script)
    ran = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.strip() == difference.what.strip()
