"""What every store does: one suite, run on the model and on PostgreSQL at virtual time.

Each test states one behaviour. Rows are compared as a whole wherever a verb may touch one, so that a store which
changes a column too many fails as surely as one which changes a column too few.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from scheduler.app import checked_payload
from scheduler.jobs import TERMINAL, Job, JobState, LeaseRef
from scheduler.store import (
    Cancelled,
    CancelResult,
    Enqueued,
    Finished,
    HeartbeatReply,
    Outcome,
    OutcomeKind,
    Renewed,
    Stats,
    Swept,
)
from tests.contract.lab import BEGINNING_US, LEASE_US, Asked, LabStore, job_id, new_job

SECOND_US = 1_000_000
LEASE_EXPIRED = "the lease expired: the worker died, or could not be heard"
AGED_OUT = "the age limit passed before the job could run"

PENDING, CLAIMED, RUNNING = JobState.PENDING, JobState.CLAIMED, JobState.RUNNING
SUCCEEDED, FAILED, CANCELLED = JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED


def unleased(row: Job, **changes: Any) -> Job:
    """Return a row as it is once nobody holds it any more."""
    return replace(row, lease_owner=None, lease_expires_at_us=None, **changes)


# ------------------------------------------------------------------------------------------- enqueue


def test_a_new_job_is_a_whole_row(lab_store: LabStore) -> None:
    """A new job is PENDING, never claimed, created at the database's now."""
    reply = lab_store.enqueue(new_job(1, payload={"n": 1}, delay_us=5, max_attempts=4, idempotency_key="k"))
    assert reply.now_us == BEGINNING_US
    assert reply.jobs == (Enqueued(job_id(1), created=True, same=True),)
    assert lab_store.row(1) == Job(
        job_id=job_id(1),
        task="task",
        payload={"n": 1},
        run_at_us=BEGINNING_US + 5,
        state=PENDING,
        attempt=0,
        max_attempts=4,
        expires_at_us=None,
        lease_owner=None,
        lease_token=0,
        lease_expires_at_us=None,
        idempotency_key="k",
        cancel_requested=False,
        last_error=None,
        created_at_us=BEGINNING_US,
        finished_at_us=None,
    )


def test_a_delay_counts_from_the_databases_now(lab_store: LabStore) -> None:
    """The same delay asked for later means a later run time."""
    lab_store.add(1, delay_us=SECOND_US)
    lab_store.advance_us(7)
    lab_store.add(2, delay_us=SECOND_US)
    assert lab_store.row(1).run_at_us == BEGINNING_US + SECOND_US
    assert lab_store.row(2).run_at_us == BEGINNING_US + SECOND_US + 7


@pytest.mark.parametrize(
    "run_at_us", [BEGINNING_US + 1, BEGINNING_US, BEGINNING_US - 1, -1, 1_234_567_890_123_457]
)
def test_an_instant_is_kept_to_the_microsecond(lab_store: LabStore, run_at_us: int) -> None:
    """A run time given as an instant is data: past or future, it is stored as it is."""
    lab_store.add(1, run_at_us=run_at_us)
    assert lab_store.row(1).run_at_us == run_at_us


def test_the_age_limit_counts_from_the_run_time(lab_store: LabStore) -> None:
    """An age limit is anchored to the original run time, given as an instant or as a delay."""
    lab_store.add(1, run_at_us=BEGINNING_US + 100, max_age_us=7)
    lab_store.add(2, delay_us=200, max_age_us=7)
    assert lab_store.row(1).expires_at_us == BEGINNING_US + 107
    assert lab_store.row(2).expires_at_us == BEGINNING_US + 207


def test_a_taken_key_yields_the_earlier_job(lab_store: LabStore) -> None:
    """The same request under the same key creates nothing, and says which job stands for it."""
    lab_store.add(1, payload={"n": 1}, idempotency_key="k")
    before = lab_store.row(1)
    lab_store.advance_us(SECOND_US)
    assert lab_store.add(2, payload={"n": 1}, idempotency_key="k", delay_us=9) == Enqueued(
        job_id(1), created=False, same=True
    )
    assert lab_store.find(2) is None
    assert lab_store.row(1) == before


def test_a_taken_key_with_another_payload_is_told(lab_store: LabStore) -> None:
    """One key for two different payloads is a mistake of the caller's, who is told."""
    lab_store.add(1, payload={"n": 1}, idempotency_key="k")
    assert lab_store.add(2, payload={"n": 2}, idempotency_key="k") == Enqueued(
        job_id(1), created=False, same=False
    )


def test_a_taken_key_with_another_task_is_told(lab_store: LabStore) -> None:
    """One key for two different tasks is a mistake of the caller's, who is told."""
    lab_store.add(1, idempotency_key="k")
    assert lab_store.add(2, task="other", idempotency_key="k") == Enqueued(
        job_id(1), created=False, same=False
    )


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ({"a": 1, "b": [1, 2]}, {"b": [1, 2], "a": 1}, True),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": None}, {}, False),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": "e\u0301"}, {"a": "\u00e9"}, False),
    ],
)
def test_the_same_payload_means_the_same_json(
    lab_store: LabStore, first: dict[str, Any], second: dict[str, Any], same: bool
) -> None:
    """Payloads are compared as JSON: the order of keys is nothing, 1 and 1.0 are one number."""
    lab_store.add(1, payload=first, idempotency_key="k")
    assert lab_store.add(2, payload=second, idempotency_key="k").same is same


@pytest.mark.parametrize(("first", "second"), [({"a": 1}, {"a": True}), ({"a": [0]}, {"a": [False]})])
def test_a_truth_value_is_no_number(
    lab_store: LabStore, first: dict[str, Any], second: dict[str, Any]
) -> None:
    """Payloads are compared as JSON, which knows that true is not 1."""
    lab_store.add(1, payload=first, idempotency_key="k")
    assert not lab_store.add(2, payload=second, idempotency_key="k").same


def test_a_key_stays_taken_after_the_job_has_ended(lab_store: LabStore) -> None:
    """A repeated request after the job is done does not run it again."""
    lab_store.ended(SUCCEEDED, idempotency_key="k")
    assert lab_store.add(2, idempotency_key="k") == Enqueued(job_id(1), created=False, same=True)


def test_jobs_without_a_key_never_conflict(lab_store: LabStore) -> None:
    """The absence of a key is not a key."""
    reply = lab_store.enqueue(new_job(1), new_job(2))
    assert [done.created for done in reply.jobs] == [True, True]


def test_the_same_insert_again_is_recognised(lab_store: LabStore) -> None:
    """An insert whose reply was lost can be repeated: the identity is the client's own."""
    job = new_job(1, payload={"n": 1})
    lab_store.enqueue(job)
    lab_store.claim_one()
    before = lab_store.row(1)
    lab_store.advance_us(SECOND_US)
    assert lab_store.enqueue(job).jobs == (Enqueued(job_id(1), created=False, same=True),)
    assert lab_store.row(1) == before


def test_one_key_twice_in_a_batch_is_one_job(lab_store: LabStore) -> None:
    """Of two jobs with one key in the same call, the first is created and stands for both."""
    reply = lab_store.enqueue(
        new_job(2, idempotency_key="k"),
        new_job(1, idempotency_key="k"),
        new_job(3, payload={"n": 1}, idempotency_key="k"),
    )
    assert reply.jobs == (
        Enqueued(job_id(2), created=True, same=True),
        Enqueued(job_id(2), created=False, same=True),
        Enqueued(job_id(2), created=False, same=False),
    )
    assert lab_store.find(1) is None


def test_answers_come_in_the_order_asked(lab_store: LabStore) -> None:
    """New jobs and taken keys may be mixed in a call; each answer stands in its job's place."""
    lab_store.add(5, idempotency_key="k")
    reply = lab_store.enqueue(new_job(9), new_job(8, idempotency_key="k"), new_job(1))
    assert reply.jobs == (
        Enqueued(job_id(9), created=True),
        Enqueued(job_id(5), created=False),
        Enqueued(job_id(1), created=True),
    )
    assert lab_store.find(8) is None


def test_a_batch_of_known_jobs_still_tells_the_time(lab_store: LabStore) -> None:
    """The reply's time is the database's even when nothing was inserted."""
    lab_store.add(1)
    lab_store.advance_us(3)
    assert lab_store.enqueue(new_job(1)).now_us == BEGINNING_US + 3


# --------------------------------------------------------------------------------------------- claim


def test_a_claim_takes_a_lease(lab_store: LabStore) -> None:
    """A claim raises attempt and token by one and leases the row from the database's now."""
    lab_store.add(1, payload={"n": 1}, delay_us=0)
    before = lab_store.row(1)
    lab_store.advance_us(10)
    reply = lab_store.claim(owner="w7", lease_us=50)
    (lease,) = reply.leases
    assert reply.now_us == BEGINNING_US + 10
    assert lease.ref == LeaseRef(job_id(1), "w7", 1)
    assert (lease.task, lease.payload, lease.attempt, lease.max_attempts) == ("task", {"n": 1}, 1, 3)
    assert (lease.due_in_us, lease.run_at_us) == (-10, BEGINNING_US)
    assert lab_store.row(1) == replace(
        before,
        state=CLAIMED,
        attempt=1,
        lease_owner="w7",
        lease_token=1,
        lease_expires_at_us=BEGINNING_US + 60,
    )


def test_claims_come_by_run_time_then_identity(lab_store: LabStore) -> None:
    """The order of claims is the same in every store: (run_at, job_id)."""
    lab_store.enqueue(
        new_job(3, run_at_us=BEGINNING_US - 1),
        new_job(2, run_at_us=BEGINNING_US),
        new_job(1, run_at_us=BEGINNING_US),
        new_job(4, run_at_us=BEGINNING_US - 2),
    )
    assert [lease.ref.job_id for lease in lab_store.claim().leases] == [
        job_id(4),
        job_id(3),
        job_id(1),
        job_id(2),
    ]


def test_a_limit_takes_the_soonest(lab_store: LabStore) -> None:
    """A claim of fewer than are due takes those that have waited longest, and leaves the others alone."""
    for number, run_at_us in ((1, 30), (2, 10), (3, 20)):
        lab_store.add(number, run_at_us=BEGINNING_US - 100 + run_at_us)
    assert [lease.ref.job_id for lease in lab_store.claim(limit=2).leases] == [job_id(2), job_id(3)]
    assert lab_store.row(1).state is PENDING
    assert [lease.ref.job_id for lease in lab_store.claim(limit=2).leases] == [job_id(1)]


def test_a_limit_among_equals_goes_by_identity(lab_store: LabStore) -> None:
    """Where the run time does not decide who is left out, the identity does."""
    for number in (3, 1, 2):
        lab_store.add(number)
    assert [lease.ref.job_id for lease in lab_store.claim(limit=2).leases] == [job_id(1), job_id(2)]


def test_the_lookahead_ends_at_the_microsecond(lab_store: LabStore) -> None:
    """A job due exactly at the end of the lookahead is claimed; one due a microsecond later is not."""
    lab_store.add(1, delay_us=SECOND_US)
    lab_store.add(2, delay_us=SECOND_US + 1)
    lease = lab_store.claim_one(lookahead_us=SECOND_US)
    assert lease.ref.job_id == job_id(1)
    assert lease.due_in_us == SECOND_US
    lab_store.advance_us(1)
    assert lab_store.claim_one(lookahead_us=SECOND_US).ref.job_id == job_id(2)


def test_without_lookahead_nothing_is_claimed_before_it_is_due(lab_store: LabStore) -> None:
    """A job is due at its run time and not a microsecond before."""
    lab_store.add(1, delay_us=1)
    assert lab_store.claim().leases == ()
    lab_store.advance_us(1)
    assert lab_store.claim_one().due_in_us == 0


def test_only_named_tasks_are_claimed(lab_store: LabStore) -> None:
    """A worker is never handed a job that it has no handler for, and such jobs do not use up its limit."""
    lab_store.add(1, task="a")
    lab_store.add(2, task="b")
    lab_store.add(3, task="c")
    assert lab_store.claim(tasks=()).leases == ()
    assert [lease.task for lease in lab_store.claim(tasks=("c", "b"), limit=2).leases] == ["b", "c"]
    assert lab_store.row(1).state is PENDING


def test_what_has_aged_out_is_not_claimed(lab_store: LabStore) -> None:
    """The age limit holds at its very microsecond, swept or not."""
    lab_store.add(1, max_age_us=10)
    lab_store.add(2, max_age_us=11)
    lab_store.advance_us(10)
    assert lab_store.claim_one().ref.job_id == job_id(2)
    assert lab_store.row(1).state is PENDING


def test_what_is_held_is_not_claimed(lab_store: LabStore) -> None:
    """Neither a claimed nor a running job is due for anybody, not even when its lease has expired unswept."""
    lab_store.claimed(1)
    lab_store.running(2)
    lab_store.advance_us(LEASE_US)
    assert lab_store.claim(owner="w2").leases == ()


def test_the_token_rises_at_every_claim(lab_store: LabStore) -> None:
    """Released, swept or retried: each new claim has a token one higher, and an attempt as the rules say."""
    lab_store.add(1, max_attempts=9)
    first = lab_store.claim_one()
    lab_store.finish_one(first.ref, OutcomeKind.RELEASED)
    second = lab_store.claim_one(owner="w2")
    lab_store.advance_us(LEASE_US)
    lab_store.sweep()
    third = lab_store.claim_one()
    lab_store.start(third.ref)
    lab_store.finish_one(third.ref, OutcomeKind.RETRY)
    fourth = lab_store.claim_one()
    leases = (first, second, third, fourth)
    assert [lease.ref.token for lease in leases] == [1, 2, 3, 4]
    assert [lease.attempt for lease in leases] == [1, 1, 2, 3]


NUMBERS = [0.1, -0.0, 1e-7, 1.5, 1e22, 1e23, 1.7976931348623157e308, 5e-324, 123456789.125, 1.0]
KEPT_NUMBERS = [0.1, 0.0, 1e-7, 1.5, 10**22, 10**23, 17976931348623157 * 10**292, 5e-324, 123456789.125, 1.0]


@pytest.mark.parametrize(
    ("payload", "kept"),
    [
        pytest.param(payload, kept, id=name)
        for name, payload, kept in (
            ("empty", {}, {}),
            ("empty key", {"": ""}, {"": ""}),
            ("unicode", *2 * ({"t": "\u00e9\u4e2d\U0001f680 \u202e \x01\x7f \" \\ / \u2028 '"},)),
            ("unicode key", *2 * ({"\u043a\u043b\u044e\u0447 with spaces": 1},)),
            ("big integers", *2 * ({"n": [0, -1, 2**31, 2**63, -(2**64), 10**40]},)),
            ("floats", {"f": NUMBERS}, {"f": KEPT_NUMBERS}),
            ("nested", *2 * ({"d": [[[{"a": [{}, [], None, True, False, {"b": {"c": []}}]}]]]},)),
            ("order", {"bb": 1, "a": 2, "\u00e9": 3, "B": 4}, {"B": 4, "a": 2, "bb": 1, "\u00e9": 3}),
            ("no SQL", *2 * ({"q": "%s %(x)s $1 '; DROP TABLE scheduler_jobs; -- {1,2} NULL"},)),
            ("no array", *2 * ({"l": ["a", "a,b", '"', "{}", "NULL", None, "\\u0000", "\\"]},)),
        )
    ],
)
def test_a_payload_comes_back_as_jsonb_keeps_it(
    lab_store: LabStore, payload: dict[str, Any], kept: dict[str, Any]
) -> None:
    """Awkward payloads survive, to the letter: keys in JSONB's order, numbers as exact decimals."""
    lab_store.add(1, payload=checked_payload("task", payload))
    assert json.dumps(lab_store.claim_one().payload) == json.dumps(kept)
    assert json.dumps(lab_store.row(1).payload) == json.dumps(kept)


# --------------------------------------------------------------------------------------------- start


def test_a_start_changes_the_state_only(lab_store: LabStore) -> None:
    """CLAIMED becomes RUNNING; lease, attempt and token stay as the claim made them."""
    ref = lab_store.claimed()
    before = lab_store.row(1)
    lab_store.advance_us(5)
    reply = lab_store.start(ref)
    assert (reply.now_us, reply.started) == (BEGINNING_US + 5, (job_id(1),))
    assert lab_store.row(1) == replace(before, state=RUNNING)


@pytest.mark.parametrize("stale", [{"owner": "w2"}, {"token": 0}, {"token": 2}, {"owner": ""}])
def test_a_start_by_another_name_is_refused(lab_store: LabStore, stale: dict[str, Any]) -> None:
    """A start must name owner and token of the row's lease."""
    ref = lab_store.claimed()
    before = lab_store.row(1)
    assert lab_store.start(replace(ref, **stale)).started == ()
    assert lab_store.row(1) == before


def test_a_start_after_the_lease_has_expired_is_refused(lab_store: LabStore) -> None:
    """The lease ends at its microsecond, even if nobody has swept it yet."""
    lab_store.add(1)
    lab_store.add(2)
    one, two = (lease.ref for lease in lab_store.claim().leases)
    lab_store.advance_us(LEASE_US - 1)
    assert lab_store.start(one).started == (job_id(1),)
    lab_store.advance_us(1)
    assert lab_store.start(two).started == ()
    assert lab_store.row(2).state is CLAIMED


def test_a_start_can_be_repeated(lab_store: LabStore) -> None:
    """A start whose reply was lost says yes again under the same lease, as long as that lives."""
    ref = lab_store.running()
    before = lab_store.row(1)
    assert lab_store.start(ref).started == (job_id(1),)
    assert lab_store.row(1) == before
    lab_store.advance_us(LEASE_US)
    assert lab_store.start(ref).started == ()


def test_a_start_of_what_is_not_claimed_is_refused(lab_store: LabStore) -> None:
    """A job that was released, or is not there, cannot be started."""
    ref = lab_store.claimed()
    lab_store.finish_one(ref, OutcomeKind.RELEASED)
    assert lab_store.start(ref, LeaseRef(job_id(9), "w1", 1)).started == ()
    assert lab_store.row(1).state is PENDING


def test_a_batch_of_starts_says_which(lab_store: LabStore) -> None:
    """Each row of a batch is judged alone; the answer is ordered by identity."""
    for number in (1, 2, 3):
        lab_store.add(number)
    refs = {lease.ref.job_id: lease.ref for lease in lab_store.claim().leases}
    lab_store.cancel(2)
    assert lab_store.start(*reversed(refs.values())).started == (job_id(1), job_id(3))
    assert lab_store.start().started == ()


# ----------------------------------------------------------------------------------------- heartbeat


def test_a_heartbeat_renews_from_now(lab_store: LabStore) -> None:
    """A renewal counts from the database's now, for what waits as for what runs, and touches nothing else."""
    running = lab_store.running(1)
    claimed = lab_store.claimed(2)
    before = {number: lab_store.row(number) for number in (1, 2)}
    lab_store.advance_us(10)
    reply = lab_store.heartbeat(claimed, running, lease_us=500)
    assert reply == HeartbeatReply(
        BEGINNING_US + 10,
        (
            Renewed(job_id(1), extended=True, cancel_requested=False),
            Renewed(job_id(2), extended=True, cancel_requested=False),
        ),
    )
    for number, row in before.items():
        assert lab_store.row(number) == replace(row, lease_expires_at_us=BEGINNING_US + 510)


def test_a_heartbeat_may_shorten_a_lease(lab_store: LabStore) -> None:
    """The new lease replaces the old one; it is not added to it."""
    ref = lab_store.claimed()
    lab_store.heartbeat(ref, lease_us=7)
    assert lab_store.row(1).lease_expires_at_us == BEGINNING_US + 7


@pytest.mark.parametrize("stale", [{"owner": "w2"}, {"token": 0}, {"token": 2}])
def test_a_heartbeat_by_another_name_renews_nothing(lab_store: LabStore, stale: dict[str, Any]) -> None:
    """A stale lease is missing from the reply, and the row's lease is not the worse for it."""
    ref = lab_store.running()
    before = lab_store.row(1)
    lab_store.advance_us(5)
    assert lab_store.heartbeat(replace(ref, **stale)).held == ()
    assert lab_store.row(1) == before


def test_a_heartbeat_does_not_renew_the_successors_lease(lab_store: LabStore) -> None:
    """A worker that slept through its lease learns it, even when its own name holds the job again."""
    ref = lab_store.running()
    lab_store.advance_us(LEASE_US)
    lab_store.sweep()
    again = lab_store.claim_one(owner=ref.owner)
    before = lab_store.row(1)
    lab_store.advance_us(5)
    assert lab_store.heartbeat(ref).held == ()
    assert lab_store.row(1) == before
    assert [renewed.job_id for renewed in lab_store.heartbeat(again.ref).held] == [job_id(1)]


def test_a_heartbeat_tells_of_a_cancellation(lab_store: LabStore) -> None:
    """The reply says which jobs were asked to stop; their leases are renewed all the same."""
    ref = lab_store.running()
    lab_store.cancel(1)
    lab_store.advance_us(5)
    assert lab_store.heartbeat(ref).held == (Renewed(job_id(1), extended=True, cancel_requested=True),)
    assert lab_store.row(1).lease_expires_at_us == BEGINNING_US + 5 + LEASE_US


def test_an_expired_lease_that_nobody_swept_is_renewed(lab_store: LabStore) -> None:
    """Late is not lost: until somebody else takes the row, its holder may still renew it."""
    ref = lab_store.running()
    lab_store.advance_us(2 * LEASE_US)
    assert lab_store.heartbeat(ref).held == (Renewed(job_id(1), extended=True, cancel_requested=False),)
    assert lab_store.sweep().jobs == ()


def test_a_heartbeat_misses_what_is_no_longer_held(lab_store: LabStore) -> None:
    """Released, ended, cancelled and unknown jobs are missing from the reply; so is everything from an empty one."""
    ended = lab_store.ended(SUCCEEDED, 1)
    cancelled = lab_store.claimed(2)
    lab_store.cancel(2)
    released = lab_store.claimed(3)
    lab_store.finish_one(released, OutcomeKind.RELEASED)
    assert lab_store.heartbeat(ended, cancelled, released, LeaseRef(job_id(9), "w1", 1)).held == ()
    assert lab_store.heartbeat() == HeartbeatReply(BEGINNING_US, ())


# --------------------------------------------------------------------------------------------- sweep


def test_an_expired_lease_makes_the_job_due_again(lab_store: LabStore) -> None:
    """A swept job keeps run time, attempt and token; the reason stands in the row."""
    ref = lab_store.running()
    before = lab_store.row(1)
    lab_store.advance_us(LEASE_US)
    reply = lab_store.sweep()
    assert reply.now_us == BEGINNING_US + LEASE_US
    assert reply.jobs == (
        Swept(job_id=job_id(1), owner=ref.owner, token=1, attempt=1, was=RUNNING, state=PENDING),
    )
    assert lab_store.row(1) == unleased(before, state=PENDING, last_error=LEASE_EXPIRED)


def test_a_lease_is_swept_at_its_microsecond(lab_store: LabStore) -> None:
    """A lease lives up to its expiry and not at it, running or only claimed."""
    lab_store.claimed()
    lab_store.advance_us(LEASE_US - 1)
    assert lab_store.sweep().jobs == ()
    assert lab_store.row(1).state is CLAIMED
    lab_store.advance_us(1)
    assert [swept.was for swept in lab_store.sweep().jobs] == [CLAIMED]


def test_a_heartbeat_saves_from_the_sweep(lab_store: LabStore) -> None:
    """A renewed lease expires by its new date."""
    ref = lab_store.running()
    lab_store.advance_us(LEASE_US - 1)
    lab_store.heartbeat(ref)
    lab_store.advance_us(LEASE_US - 1)
    assert lab_store.sweep().jobs == ()
    lab_store.advance_us(1)
    assert [swept.job_id for swept in lab_store.sweep().jobs] == [job_id(1)]


@pytest.mark.parametrize("started", [False, True])
def test_the_last_attempt_abandoned_is_a_dead_letter(lab_store: LabStore, started: bool) -> None:
    """A job that kills its worker every time runs out of attempts, as claims are what is counted."""
    ref = lab_store.claimed(max_attempts=1)
    if started:
        lab_store.start(ref)
    before = lab_store.row(1)
    lab_store.advance_us(LEASE_US)
    assert [swept.state for swept in lab_store.sweep().jobs] == [FAILED]
    assert lab_store.row(1) == unleased(
        before, state=FAILED, last_error=LEASE_EXPIRED, finished_at_us=BEGINNING_US + LEASE_US
    )


def test_an_abandoned_job_asked_to_stop_is_cancelled(lab_store: LabStore) -> None:
    """A cancellation outlives the worker it was meant for, even at the last attempt."""
    lab_store.running(max_attempts=1)
    lab_store.cancel(1)
    before = lab_store.row(1)
    lab_store.advance_us(LEASE_US)
    assert [swept.state for swept in lab_store.sweep().jobs] == [CANCELLED]
    assert lab_store.row(1) == unleased(
        before, state=CANCELLED, last_error=LEASE_EXPIRED, finished_at_us=BEGINNING_US + LEASE_US
    )


@pytest.mark.parametrize(("max_age_us", "state"), [(LEASE_US, FAILED), (LEASE_US + 1, PENDING)])
def test_an_abandoned_job_past_its_age_is_a_dead_letter(
    lab_store: LabStore, max_age_us: int, state: JobState
) -> None:
    """An expired lease is not worth another attempt once the age limit is reached, at its microsecond."""
    lab_store.running(max_age_us=max_age_us)
    lab_store.advance_us(LEASE_US)
    assert [swept.state for swept in lab_store.sweep().jobs] == [state]


def test_a_job_nobody_claimed_in_time_is_a_dead_letter(lab_store: LabStore) -> None:
    """A PENDING job fails at the microsecond of its age limit; it never had an owner."""
    lab_store.add(1, delay_us=5, max_age_us=10)
    before = lab_store.row(1)
    lab_store.advance_us(14)
    assert lab_store.sweep().jobs == ()
    lab_store.advance_us(1)
    assert lab_store.sweep().jobs == (
        Swept(job_id=job_id(1), owner=None, token=0, attempt=0, was=PENDING, state=FAILED),
    )
    assert lab_store.row(1) == replace(
        before, state=FAILED, last_error=AGED_OUT, finished_at_us=BEGINNING_US + 15
    )


def test_age_alone_does_not_take_a_held_job(lab_store: LabStore) -> None:
    """The age limit decides about claims and retries; a live lease is left to end."""
    lab_store.running(max_age_us=5)
    lab_store.advance_us(5)
    assert lab_store.sweep().jobs == ()
    assert lab_store.row(1).state is RUNNING


def test_a_sweep_takes_the_longest_expired_first(lab_store: LabStore) -> None:
    """Up to `limit` leases and as many aged jobs a sweep, soonest expiry first, answered by identity."""
    for number, lease_us in ((1, 30), (2, 10), (3, 20)):
        lab_store.add(number)
        lab_store.claim_one(lease_us=lease_us)
    for number, max_age_us in ((4, 30), (5, 10), (6, 20)):
        lab_store.add(number, task="nobody's", max_age_us=max_age_us)
    lab_store.advance_us(100)
    assert [swept.job_id for swept in lab_store.sweep(limit=2).jobs] == [job_id(n) for n in (2, 3, 5, 6)]
    assert [swept.job_id for swept in lab_store.sweep(limit=2).jobs] == [job_id(n) for n in (1, 4)]
    assert lab_store.sweep(limit=2).jobs == ()


def test_equal_expiries_are_swept_by_identity(lab_store: LabStore) -> None:
    """Where expiry does not decide the order, the identity does."""
    for number in (3, 1, 2):
        lab_store.add(number)
    lab_store.claim()
    lab_store.advance_us(LEASE_US)
    assert [swept.job_id for swept in lab_store.sweep(limit=2).jobs] == [job_id(1), job_id(2)]


def test_a_sweep_of_nothing_does_nothing(lab_store: LabStore) -> None:
    """A sweep leaves alone what is due, what waits for its time and what is held."""
    lab_store.claimed(1)
    lab_store.add(2)
    lab_store.add(3, delay_us=SECOND_US)
    before = [lab_store.row(number) for number in (1, 2, 3)]
    assert lab_store.sweep().jobs == ()
    assert [lab_store.row(number) for number in (1, 2, 3)] == before


# -------------------------------------------------------------------------------------------- finish


@pytest.mark.parametrize(
    ("kind", "state"),
    [(OutcomeKind.SUCCEEDED, SUCCEEDED), (OutcomeKind.FAILED, FAILED), (OutcomeKind.CANCELLED, CANCELLED)],
)
def test_an_outcome_that_ends_the_job(lab_store: LabStore, kind: OutcomeKind, state: JobState) -> None:
    """An end frees the lease, keeps attempt and token, and says when and with what error."""
    ref = lab_store.running()
    before = lab_store.row(1)
    lab_store.advance_us(9)
    reply = lab_store.finish(Outcome(ref, kind, error="why"))
    assert reply.now_us == BEGINNING_US + 9
    assert reply.results == (Finished(job_id(1), accepted=True, recovered=False, state=state),)
    assert lab_store.row(1) == unleased(
        before, state=state, last_error="why", finished_at_us=BEGINNING_US + 9
    )


def test_a_retry_is_a_rescheduling(lab_store: LabStore) -> None:
    """A retry makes the same row PENDING again, due after the pause by the database's now."""
    ref = lab_store.running()
    before = lab_store.row(1)
    lab_store.advance_us(9)
    assert lab_store.finish_one(ref, OutcomeKind.RETRY, delay_us=100, error="oh") == Finished(
        job_id(1), accepted=True, recovered=False, state=PENDING
    )
    assert lab_store.row(1) == unleased(before, state=PENDING, last_error="oh", run_at_us=BEGINNING_US + 109)
    lab_store.advance_us(99)
    assert lab_store.claim().leases == ()
    lab_store.advance_us(1)
    assert lab_store.claim_one().attempt == 2


def test_a_release_gives_the_attempt_back(lab_store: LabStore) -> None:
    """What never ran has cost no attempt; the token stays spent, the run time stays the original one."""
    ref = lab_store.claimed()
    before = lab_store.row(1)
    lab_store.advance_us(9)
    assert lab_store.finish_one(ref, OutcomeKind.RELEASED) == Finished(
        job_id(1), accepted=True, recovered=False, state=PENDING
    )
    assert lab_store.row(1) == unleased(before, state=PENDING, attempt=0)
    assert lab_store.row(1).lease_token == 1


def test_an_outcome_without_error_keeps_the_last_one(lab_store: LabStore) -> None:
    """What went wrong at an earlier attempt stays readable after a later success."""
    first = lab_store.running()
    lab_store.finish_one(first, OutcomeKind.RETRY, error="the first time")
    second = lab_store.claim_one().ref
    lab_store.start(second)
    lab_store.finish_one(second, OutcomeKind.SUCCEEDED)
    assert lab_store.row(1).last_error == "the first time"


ENDS_A_RUN = [OutcomeKind.SUCCEEDED, OutcomeKind.RETRY, OutcomeKind.FAILED, OutcomeKind.CANCELLED]


@pytest.mark.parametrize("kind", ENDS_A_RUN)
@pytest.mark.parametrize("stale", [{"owner": "w2"}, {"token": 0}, {"token": 2}])
def test_an_outcome_by_another_name_is_refused(
    lab_store: LabStore, kind: OutcomeKind, stale: dict[str, Any]
) -> None:
    """A finish must name owner and token of the row's lease; a refusal says how the row stands."""
    ref = lab_store.running()
    before = lab_store.row(1)
    assert lab_store.finish_one(replace(ref, **stale), kind) == Finished(
        job_id(1), accepted=False, recovered=False, state=RUNNING
    )
    assert lab_store.row(1) == before


@pytest.mark.parametrize("kind", ENDS_A_RUN)
def test_only_what_runs_can_end(lab_store: LabStore, kind: OutcomeKind) -> None:
    """A job that was claimed and never started has no outcome."""
    ref = lab_store.claimed()
    before = lab_store.row(1)
    assert lab_store.finish_one(ref, kind) == Finished(
        job_id(1), accepted=False, recovered=False, state=CLAIMED
    )
    assert lab_store.row(1) == before


def test_only_what_waits_can_be_released(lab_store: LabStore) -> None:
    """A running job may have had its effect; its attempt is not given back."""
    ref = lab_store.running()
    before = lab_store.row(1)
    assert lab_store.finish_one(ref, OutcomeKind.RELEASED) == Finished(
        job_id(1), accepted=False, recovered=False, state=RUNNING
    )
    assert lab_store.row(1) == before


def test_an_outcome_after_the_lease_expired_counts_until_it_is_swept(lab_store: LabStore) -> None:
    """Finished work is recorded as finished, as long as nobody else has been given the job."""
    ref = lab_store.running()
    lab_store.advance_us(2 * LEASE_US)
    assert lab_store.finish_one(ref, OutcomeKind.SUCCEEDED).accepted


@pytest.mark.parametrize("kind", [OutcomeKind.SUCCEEDED, OutcomeKind.FAILED, OutcomeKind.CANCELLED])
def test_an_outcome_after_the_sweep_is_refused(lab_store: LabStore, kind: OutcomeKind) -> None:
    """Once the job is due again it is anybody's; the loser's outcome changes nothing."""
    ref = lab_store.running()
    lab_store.advance_us(LEASE_US)
    lab_store.sweep()
    before = lab_store.row(1)
    assert lab_store.finish_one(ref, kind) == Finished(
        job_id(1), accepted=False, recovered=False, state=PENDING
    )
    assert lab_store.row(1) == before


@pytest.mark.parametrize("kind", ENDS_A_RUN)
def test_an_outcome_after_the_next_claim_is_refused(lab_store: LabStore, kind: OutcomeKind) -> None:
    """The successor's lease is safe from its predecessor, though both have the same name."""
    ref = lab_store.running()
    lab_store.advance_us(LEASE_US)
    lab_store.sweep()
    again = lab_store.claim_one(owner=ref.owner).ref
    lab_store.start(again)
    before = lab_store.row(1)
    assert lab_store.finish_one(ref, kind) == Finished(
        job_id(1), accepted=False, recovered=False, state=RUNNING
    )
    assert lab_store.row(1) == before


@pytest.mark.parametrize("kind", list(OutcomeKind))
def test_a_repeated_outcome_is_recovered(lab_store: LabStore, kind: OutcomeKind) -> None:
    """An outcome whose reply was lost can be written again: it stands, and nothing is done twice."""
    ref = lab_store.claimed() if kind is OutcomeKind.RELEASED else lab_store.running()
    first = lab_store.finish_one(ref, kind, delay_us=50, error="why")
    before = lab_store.row(1)
    lab_store.advance_us(9)
    assert lab_store.finish_one(ref, kind, delay_us=50, error="why") == Finished(
        job_id(1), accepted=False, recovered=True, state=first.state
    )
    assert lab_store.row(1) == before


@pytest.mark.parametrize("kind", [OutcomeKind.RETRY, OutcomeKind.RELEASED])
def test_a_repeated_outcome_after_the_next_claim_is_not_recovered(
    lab_store: LabStore, kind: OutcomeKind
) -> None:
    """Recovery goes by the token: under a newer one, the old outcome says nothing any more."""
    ref = lab_store.claimed() if kind is OutcomeKind.RELEASED else lab_store.running()
    lab_store.finish_one(ref, kind)
    lab_store.claim_one(owner="w2")
    assert lab_store.finish_one(ref, kind) == Finished(
        job_id(1), accepted=False, recovered=False, state=CLAIMED
    )


@pytest.mark.parametrize("kind", ENDS_A_RUN)
def test_the_same_outcome_of_a_later_attempt_is_not_recovered(lab_store: LabStore, kind: OutcomeKind) -> None:
    """The row stands as the old outcome would leave it, but by a newer lease: the old one was still refused."""
    old = lab_store.running()
    lab_store.advance_us(LEASE_US)
    lab_store.sweep()
    new = lab_store.claim_one(owner="w2").ref
    lab_store.start(new)
    state = lab_store.finish_one(new, kind).state
    assert lab_store.finish_one(old, kind) == Finished(
        job_id(1), accepted=False, recovered=False, state=state
    )


@pytest.mark.parametrize("ended", sorted(TERMINAL))
@pytest.mark.parametrize("kind", list(OutcomeKind))
def test_another_outcome_than_the_one_written_is_not_recovered(
    lab_store: LabStore, ended: JobState, kind: OutcomeKind
) -> None:
    """An end is what was written first; only an outcome that would have left the same state counts as recovered."""
    ref = lab_store.ended(ended)
    before = lab_store.row(1)
    leaves = {
        OutcomeKind.SUCCEEDED: {SUCCEEDED},
        OutcomeKind.FAILED: {FAILED},
        OutcomeKind.CANCELLED: {CANCELLED},
        OutcomeKind.RELEASED: {PENDING},
        OutcomeKind.RETRY: {PENDING, FAILED, CANCELLED},
    }
    assert lab_store.finish_one(ref, kind, error="late") == Finished(
        job_id(1), accepted=False, recovered=ended in leaves[kind], state=ended
    )
    assert lab_store.row(1) == before


def test_a_retry_without_attempts_left_is_a_dead_letter(lab_store: LabStore) -> None:
    """The store itself counts: a retry at the last attempt fails, with the error kept."""
    ref = lab_store.running(max_attempts=1)
    before = lab_store.row(1)
    assert lab_store.finish_one(ref, OutcomeKind.RETRY, delay_us=5, error="oh").state is FAILED
    assert lab_store.row(1) == unleased(before, state=FAILED, last_error="oh", finished_at_us=BEGINNING_US)


@pytest.mark.parametrize(("delay_us", "state"), [(99, PENDING), (100, FAILED), (101, FAILED)])
def test_a_retry_past_the_age_limit_is_a_dead_letter(
    lab_store: LabStore, delay_us: int, state: JobState
) -> None:
    """A pause that ends at the age limit or beyond it leaves nothing to wait for."""
    ref = lab_store.running(max_age_us=110)
    lab_store.advance_us(10)
    assert lab_store.finish_one(ref, OutcomeKind.RETRY, delay_us=delay_us).state is state


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_a_retry_of_what_was_asked_to_stop_is_a_cancellation(lab_store: LabStore, max_attempts: int) -> None:
    """Whoever asked for the cancellation does not want another attempt, nor a dead letter."""
    ref = lab_store.running(max_attempts=max_attempts)
    lab_store.cancel(1)
    before = lab_store.row(1)
    assert lab_store.finish_one(ref, OutcomeKind.RETRY, delay_us=5, error="oh").state is CANCELLED
    assert lab_store.row(1) == unleased(before, state=CANCELLED, last_error="oh", finished_at_us=BEGINNING_US)


@pytest.mark.parametrize(
    ("kind", "state"), [(OutcomeKind.SUCCEEDED, SUCCEEDED), (OutcomeKind.FAILED, FAILED)]
)
def test_work_that_ended_before_it_heard_of_the_cancellation_stands(
    lab_store: LabStore, kind: OutcomeKind, state: JobState
) -> None:
    """A request to stop is not a promise: finished work is recorded as finished."""
    ref = lab_store.running()
    lab_store.cancel(1)
    assert lab_store.finish_one(ref, kind).state is state
    assert lab_store.row(1).cancel_requested


def test_a_batch_of_outcomes_is_answered_in_the_order_asked(lab_store: LabStore) -> None:
    """Each row of a batch is judged alone, whatever stands beside it; a job nobody knows has no state."""
    done, stale, again = (lab_store.running(number) for number in (3, 2, 1))
    back = lab_store.claimed(4)
    reply = lab_store.finish(
        Outcome(done, OutcomeKind.SUCCEEDED),
        Outcome(replace(stale, token=7), OutcomeKind.SUCCEEDED),
        Outcome(LeaseRef(job_id(9), "w1", 1), OutcomeKind.FAILED, error="who?"),
        Outcome(back, OutcomeKind.RELEASED),
        Outcome(again, OutcomeKind.RETRY, delay_us=5, error="oh"),
    )
    assert reply.results == (
        Finished(job_id(3), accepted=True, recovered=False, state=SUCCEEDED),
        Finished(job_id(2), accepted=False, recovered=False, state=RUNNING),
        Finished(job_id(9), accepted=False, recovered=False, state=None),
        Finished(job_id(4), accepted=True, recovered=False, state=PENDING),
        Finished(job_id(1), accepted=True, recovered=False, state=PENDING),
    )
    assert lab_store.find(9) is None
    assert lab_store.row(1).last_error == "oh"
    assert lab_store.row(3).last_error is None


def test_a_finish_of_nothing_is_a_mistake(lab_store: LabStore) -> None:
    """Whoever writes no outcome at all has lost one."""
    with pytest.raises(ValueError, match="at least one outcome"):
        lab_store.finish()


# -------------------------------------------------------------------------------------------- cancel


def test_a_pending_job_is_cancelled_for_good(lab_store: LabStore) -> None:
    """A cancellation before the claim wins: the job never runs."""
    lab_store.add(1)
    before = lab_store.row(1)
    lab_store.advance_us(4)
    reply = lab_store.cancel(1)
    assert reply.now_us == BEGINNING_US + 4
    assert reply.results == (Cancelled(job_id(1), CancelResult.CANCELLED),)
    assert lab_store.row(1) == replace(
        before, state=CANCELLED, cancel_requested=True, finished_at_us=BEGINNING_US + 4
    )
    assert lab_store.claim().leases == ()


def test_a_claimed_job_is_cancelled_before_it_starts(lab_store: LabStore) -> None:
    """A cancellation between claim and start wins: its holder loses the lease and may not start it."""
    ref = lab_store.claimed()
    before = lab_store.row(1)
    lab_store.advance_us(4)
    assert lab_store.cancel(1).results == (Cancelled(job_id(1), CancelResult.CANCELLED),)
    assert lab_store.row(1) == unleased(
        before, state=CANCELLED, cancel_requested=True, finished_at_us=BEGINNING_US + 4
    )
    assert lab_store.start(ref).started == ()
    assert lab_store.heartbeat(ref).held == ()


def test_a_running_job_is_only_asked(lab_store: LabStore) -> None:
    """A running job keeps its lease; asking once more changes nothing."""
    lab_store.running()
    before = lab_store.row(1)
    lab_store.advance_us(4)
    for _ in range(2):
        assert lab_store.cancel(1).results == (Cancelled(job_id(1), CancelResult.REQUESTED),)
        assert lab_store.row(1) == replace(before, cancel_requested=True)


@pytest.mark.parametrize("ended", sorted(TERMINAL))
def test_a_cancellation_after_the_end_is_too_late(lab_store: LabStore, ended: JobState) -> None:
    """What has ended stays as it is, and the caller is told."""
    lab_store.ended(ended)
    before = lab_store.row(1)
    assert lab_store.cancel(1).results == (Cancelled(job_id(1), CancelResult.TOO_LATE),)
    assert lab_store.row(1) == before


def test_cancellations_are_answered_in_the_order_asked(lab_store: LabStore) -> None:
    """Each job of a batch gets its own answer, in its place; one that is not there is unknown."""
    lab_store.running(2)
    lab_store.add(1)
    lab_store.add(3, delay_us=SECOND_US)
    assert lab_store.cancel(9, 3, 2, 1).results == (
        Cancelled(job_id(9), CancelResult.UNKNOWN),
        Cancelled(job_id(3), CancelResult.CANCELLED),
        Cancelled(job_id(2), CancelResult.REQUESTED),
        Cancelled(job_id(1), CancelResult.CANCELLED),
    )


def test_a_cancellation_of_nothing_is_a_mistake(lab_store: LabStore) -> None:
    """Whoever cancels no job at all has lost one."""
    with pytest.raises(ValueError, match="at least one job"):
        lab_store.cancel()


# -------------------------------------------------------------------------------------------- replay


def test_a_replay_is_a_second_chance(lab_store: LabStore) -> None:
    """A dead letter is due now with all attempts before it and no age limit; token and error stay."""
    ref = lab_store.running(max_attempts=1, max_age_us=50)
    lab_store.finish_one(ref, OutcomeKind.FAILED, error="why")
    before = lab_store.row(1)
    lab_store.advance_us(SECOND_US)
    reply = lab_store.replay(1)
    assert (reply.now_us, reply.replayed) == (BEGINNING_US + SECOND_US, (job_id(1),))
    assert lab_store.row(1) == replace(
        before,
        state=PENDING,
        attempt=0,
        run_at_us=BEGINNING_US + SECOND_US,
        expires_at_us=None,
        finished_at_us=None,
    )
    lease = lab_store.claim_one()
    assert (lease.attempt, lease.ref.token) == (1, 2)


def test_a_replay_forgets_the_cancellation(lab_store: LabStore) -> None:
    """The operator who replays a job wants it to run."""
    ref = lab_store.running()
    lab_store.cancel(1)
    lab_store.finish_one(ref, OutcomeKind.FAILED)
    lab_store.replay(1)
    assert not lab_store.row(1).cancel_requested


def test_a_replay_does_not_let_the_past_back_in(lab_store: LabStore) -> None:
    """The token is never reset: a worker left over from before the replay stays fenced."""
    ref = lab_store.running()
    lab_store.finish_one(ref, OutcomeKind.FAILED)
    lab_store.replay(1)
    again = lab_store.claim_one(owner=ref.owner).ref
    lab_store.start(again)
    before = lab_store.row(1)
    assert not lab_store.finish_one(ref, OutcomeKind.SUCCEEDED).accepted
    assert lab_store.start(ref).started == ()
    assert lab_store.heartbeat(ref).held == ()
    assert lab_store.row(1) == before


def test_only_dead_letters_are_replayed(lab_store: LabStore) -> None:
    """Whatever else is named is left as it is; the answer is ordered by identity."""
    lab_store.ended(FAILED, 4)
    lab_store.ended(FAILED, 1)
    lab_store.ended(SUCCEEDED, 2)
    lab_store.ended(CANCELLED, 3)
    lab_store.running(5)
    lab_store.claimed(6)
    lab_store.add(7)
    before = [lab_store.row(number) for number in (2, 3, 5, 6, 7)]
    assert lab_store.replay(9, 7, 6, 5, 4, 3, 2, 1, 4).replayed == (job_id(1), job_id(4))
    assert [lab_store.row(number) for number in (2, 3, 5, 6, 7)] == before
    assert lab_store.replay().replayed == ()


# ----------------------------------------------------------------------------------- get and stats


def test_what_is_not_there_is_none(lab_store: LabStore) -> None:
    """A job nobody enqueued has no row."""
    lab_store.add(1)
    assert lab_store.find(2) is None


def test_an_empty_table_has_stats(lab_store: LabStore) -> None:
    """Every state is counted, also those without jobs; nothing is overdue."""
    assert lab_store.stats() == Stats(BEGINNING_US, dict.fromkeys(JobState, 0), 0)


def test_stats_count_by_state(lab_store: LabStore) -> None:
    """Counts by state, and how long the oldest due job has waited; what is held or later does not count as due."""
    lab_store.ended(FAILED, 1)
    lab_store.ended(SUCCEEDED, 2)
    lab_store.running(3)
    lab_store.claimed(4)
    lab_store.add(5, run_at_us=BEGINNING_US + 5)
    lab_store.add(6, run_at_us=BEGINNING_US + 7)
    lab_store.add(7, run_at_us=BEGINNING_US + 11)
    counts = {PENDING: 3, CLAIMED: 1, RUNNING: 1, SUCCEEDED: 1, FAILED: 1, CANCELLED: 0}
    assert lab_store.stats() == Stats(BEGINNING_US, counts, 0)
    lab_store.advance_us(10)
    assert lab_store.stats() == Stats(BEGINNING_US + 10, counts, 5)


# -------------------------------------------------------------------------------------- locked rows


def test_a_claim_passes_over_locked_rows(lab_store: LabStore) -> None:
    """A row that an open transaction holds is nobody's for now, and does not use up the limit."""
    for number in (1, 2, 3):
        lab_store.add(number)
    with lab_store.locked(1):
        assert [lease.ref.job_id for lease in lab_store.claim(limit=2).leases] == [job_id(2), job_id(3)]
    assert lab_store.claim_one().ref.job_id == job_id(1)


def test_a_sweep_passes_over_locked_rows(lab_store: LabStore) -> None:
    """A locked row is swept once it is free; the others do not wait for it."""
    lab_store.claimed(1)
    lab_store.claimed(2)
    lab_store.add(3, max_age_us=1, task="nobody's")
    lab_store.advance_us(LEASE_US)
    with lab_store.locked(1, 3):
        assert [swept.job_id for swept in lab_store.sweep(limit=1).jobs] == [job_id(2)]
    assert [swept.job_id for swept in lab_store.sweep().jobs] == [job_id(1), job_id(3)]


def test_a_heartbeat_tells_of_locked_rows_that_are_still_held(lab_store: LabStore) -> None:
    """One stuck row must not let all the others expire: it is reported as held and not extended."""
    one, two = lab_store.running(1), lab_store.running(2)
    before = lab_store.row(1)
    lab_store.advance_us(5)
    with lab_store.locked(1):
        assert lab_store.heartbeat(one, two, replace(one, job_id=job_id(9))).held == (
            Renewed(job_id(1), extended=False, cancel_requested=False),
            Renewed(job_id(2), extended=True, cancel_requested=False),
        )
        assert lab_store.heartbeat(replace(one, token=7)).held == ()
    assert lab_store.row(1) == before
    assert lab_store.row(2).lease_expires_at_us == BEGINNING_US + 5 + LEASE_US


def test_a_batch_keeps_the_rows_it_has_while_it_waits_for_the_next(lab_store: LabStore) -> None:
    """A finish that waits for its second row has locked its first: others pass that over, too."""
    one, two = lab_store.running(1), lab_store.running(2)
    lab_store.backend.lock([job_id(2)])
    waiting = Asked(
        lab_store.store.finish([Outcome(one, OutcomeKind.SUCCEEDED), Outcome(two, OutcomeKind.SUCCEEDED)])
    )
    assert not waiting.ended
    assert lab_store.heartbeat(one).held == (Renewed(job_id(1), extended=False, cancel_requested=False),)
    lab_store.backend.unlock()
    waiting.go_on()
    assert [finished.accepted for finished in waiting.reply.results] == [True, True]


def test_what_waited_looks_again_and_keeps_its_time(lab_store: LabStore) -> None:
    """Of two who wait for a row, the second finds what the first has done; each goes by the time it began."""
    ref = lab_store.running()
    lab_store.backend.lock([job_id(1)])
    first = Asked(lab_store.store.finish([Outcome(ref, OutcomeKind.RETRY, 50)]))
    lab_store.advance_us(7)
    second = Asked(lab_store.store.finish([Outcome(ref, OutcomeKind.SUCCEEDED)]))
    cancelled = Asked(lab_store.store.cancel([job_id(1)]))
    lab_store.advance_us(7)
    lab_store.backend.unlock()
    for asked in (first, second, cancelled):
        asked.go_on()
    assert first.reply.results == (Finished(job_id(1), accepted=True, recovered=False, state=PENDING),)
    # What was refused is told as it stood when the call came.
    assert second.reply.results == (Finished(job_id(1), accepted=False, recovered=False, state=RUNNING),)
    assert cancelled.reply.results == (Cancelled(job_id(1), CancelResult.CANCELLED),)
    row = lab_store.row(1)
    assert (row.state, row.run_at_us, row.finished_at_us) == (CANCELLED, BEGINNING_US + 50, BEGINNING_US + 7)


def test_what_waits_too_long_is_given_up_and_nothing_is_done(lab_store: LabStore) -> None:
    """The server ends a statement that waits longer than it may; the rows it had are free again."""
    one, two = lab_store.running(1), lab_store.running(2)
    before = lab_store.table()
    lab_store.backend.lock([job_id(2)])
    waiting = Asked(
        lab_store.store.finish([Outcome(one, OutcomeKind.SUCCEEDED), Outcome(two, OutcomeKind.SUCCEEDED)])
    )
    behind = Asked(lab_store.store.cancel([job_id(1)]))
    assert not behind.ended
    lab_store.time_out()
    waiting.go_on()
    assert waiting.reply == "canceling statement due to statement timeout"
    # Who came behind had its turn.
    behind.go_on()
    assert behind.reply.results == (Cancelled(job_id(1), CancelResult.REQUESTED),)
    lab_store.backend.unlock()
    assert lab_store.table() == [replace(before[0], cancel_requested=True), before[1]]


@pytest.mark.parametrize("commits", [True, False])
def test_an_insert_waits_for_whoever_inserts_the_same_key(lab_store: LabStore, commits: bool) -> None:
    """Whether the key is taken, only the end of the other transaction tells: a commit, or a rollback."""
    lab_store.begin(new_job(1, idempotency_key="k"))
    assert lab_store.find(1) is None
    waiting = Asked(lab_store.store.enqueue([new_job(2, idempotency_key="k")]))
    assert not waiting.ended
    lab_store.advance_us(5)
    (lab_store.commit if commits else lab_store.roll_back)()
    waiting.go_on()
    if commits:
        # It is told by a second statement, which has a time of its own.
        assert waiting.reply.now_us == BEGINNING_US + 5
        assert waiting.reply.jobs == (Enqueued(job_id(1), created=False, same=True),)
    else:
        assert waiting.reply.now_us == BEGINNING_US
        assert waiting.reply.jobs == (Enqueued(job_id(2), created=True, same=True),)
    assert [row.job_id for row in lab_store.table()] == [job_id(1 if commits else 2)]


# --------------------------------------------------------------------------------- wrong and odd batches


def test_a_lease_named_twice_is_a_mistake(lab_store: LabStore) -> None:
    """Of two outcomes for one lease nobody could say which is meant; so it is with the other verbs."""
    ref = lab_store.running()
    before = lab_store.table()
    with pytest.raises(ValueError, match="each lease at most once"):
        lab_store.finish(Outcome(ref, OutcomeKind.SUCCEEDED), Outcome(ref, OutcomeKind.RETRY))
    with pytest.raises(ValueError, match="each lease at most once"):
        lab_store.start(ref, ref)
    with pytest.raises(ValueError, match="each lease at most once"):
        lab_store.heartbeat(ref, ref)
    assert lab_store.table() == before


def test_a_job_enqueued_twice_in_a_batch_or_none_at_all_is_a_mistake(lab_store: LabStore) -> None:
    """An identity belongs to one job; and whoever enqueues nothing has lost something."""
    with pytest.raises(ValueError, match="at most once"):
        lab_store.enqueue(new_job(1), new_job(1, payload={"n": 1}))
    with pytest.raises(ValueError, match="at least one job"):
        lab_store.enqueue()
    assert lab_store.table() == []


def test_an_old_and_a_new_lease_of_one_job_in_a_batch(lab_store: LabStore) -> None:
    """Each outcome has its own answer: the old lease's is refused, also beside the new one's."""
    old = lab_store.running()
    lab_store.advance_us(LEASE_US)
    lab_store.sweep()
    new = lab_store.claim_one().ref
    lab_store.start(new)
    reply = lab_store.finish(Outcome(old, OutcomeKind.SUCCEEDED), Outcome(new, OutcomeKind.FAILED))
    assert [finished.accepted for finished in reply.results] == [False, True]
    assert lab_store.row(1).state is FAILED


def test_a_job_named_twice_is_cancelled_once(lab_store: LabStore) -> None:
    """People may repeat themselves; each place gets the same answer."""
    lab_store.add(1)
    assert lab_store.cancel(1, 2, 1).results == (
        Cancelled(job_id(1), CancelResult.CANCELLED),
        Cancelled(job_id(2), CancelResult.UNKNOWN),
        Cancelled(job_id(1), CancelResult.CANCELLED),
    )


# ------------------------------------------------------------------------------------ terminal states


@pytest.mark.parametrize("ended", sorted(TERMINAL))
def test_terminal_states_absorb(lab_store: LabStore, ended: JobState) -> None:
    """Once a job has ended, no verb of a worker changes its row, now or later."""
    ref = lab_store.ended(ended, max_age_us=SECOND_US)
    row = lab_store.row(1)
    for _ in range(2):
        assert lab_store.claim().leases == ()
        assert lab_store.start(ref).started == ()
        assert lab_store.heartbeat(ref).held == ()
        assert lab_store.sweep().jobs == ()
        assert not any(lab_store.finish_one(ref, kind, error="late").accepted for kind in OutcomeKind)
        assert lab_store.cancel(1).results == (Cancelled(job_id(1), CancelResult.TOO_LATE),)
        if ended is not FAILED:
            assert lab_store.replay(1).replayed == ()
        assert lab_store.row(1) == row
        lab_store.advance_us(10 * LEASE_US)


@pytest.mark.parametrize("way", ["cancelled pending", "cancelled claimed", "swept", "aged"])
def test_ends_reached_otherwise_absorb_too(lab_store: LabStore, way: str) -> None:
    """An end by cancellation, sweep or age is as final as one that a worker wrote."""
    ref = LeaseRef(job_id(1), "w1", 0)
    if way == "cancelled pending":
        lab_store.add(1)
        lab_store.cancel(1)
    elif way == "cancelled claimed":
        ref = lab_store.claimed()
        lab_store.cancel(1)
    elif way == "swept":
        ref = lab_store.running(max_attempts=1)
        lab_store.advance_us(LEASE_US)
        lab_store.sweep()
    else:
        lab_store.add(1, max_age_us=1)
        lab_store.advance_us(1)
        lab_store.sweep()
    row = lab_store.row(1)
    assert row.state in TERMINAL
    lab_store.advance_us(10 * LEASE_US)
    assert lab_store.claim().leases == ()
    assert lab_store.start(ref).started == ()
    assert lab_store.heartbeat(ref).held == ()
    assert lab_store.sweep().jobs == ()
    assert not any(lab_store.finish_one(ref, kind).accepted for kind in OutcomeKind)
    assert lab_store.row(1) == row
