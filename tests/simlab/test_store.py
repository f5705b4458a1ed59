"""What only the model has: its own look at the table, indexes that follow the rows, and JSONB's idea of a payload.

That it does what PostgreSQL does is the contract suite's business.
"""

import itertools

from scheduler.jobs import JobState, NewJob
from scheduler.store import ClaimRequest, Outcome, OutcomeKind
from simlab.store import ModelStore, as_jsonb
from tests.simlab.bench import at_once, job_id

LEASE_US = 60


class Now:
    def __init__(self) -> None:
        self.us = 1_000
        self.store = ModelStore(lambda: self.us)

    def add(self, *numbers: int, delay_us: int = 0) -> None:
        jobs = [
            NewJob(job_id=job_id(number), task="work", payload={}, delay_us=delay_us, max_attempts=9)
            for number in numbers
        ]
        at_once(self.store.enqueue(jobs))

    def claim(self, limit: int = 100, *, lookahead_us: int = 0, tasks: tuple[str, ...] = ("work",)):
        request = ClaimRequest(
            owner="w1", tasks=tasks, limit=limit, lookahead_us=lookahead_us, lease_us=LEASE_US
        )
        return at_once(self.store.claim(request)).leases


def test_the_table_is_every_row_by_identity_as_it_is_now():
    now = Now()
    now.add(5, 1, 3)
    rows = now.store.table()
    assert [row.job_id.int for row in rows] == [1, 3, 5]
    now.claim()
    assert {row.state for row in rows} == {JobState.PENDING}, "what was read does not change"
    assert {row.state for row in now.store.table()} == {JobState.CLAIMED}


def test_a_row_comes_up_again_after_every_return_and_never_twice():
    now = Now()
    now.add(1)
    for round_number in range(1, 8):
        (lease,) = now.claim()
        assert lease.ref.token == round_number
        assert now.claim() == ()
        if round_number % 2:
            at_once(now.store.start([lease.ref]))
            at_once(now.store.finish([Outcome(lease.ref, OutcomeKind.RETRY, delay_us=10)]))
            assert now.claim() == ()
            now.us += 10
        else:
            at_once(now.store.finish([Outcome(lease.ref, OutcomeKind.RELEASED)]))


def test_rows_passed_over_by_one_claim_are_there_for_the_next():
    now = Now()
    now.add(*range(1, 11))
    assert now.claim(tasks=("other",)) == ()
    assert [lease.ref.job_id.int for lease in now.claim(4)] == [1, 2, 3, 4]
    assert [lease.ref.job_id.int for lease in now.claim()] == list(range(5, 11))


def test_an_index_entry_of_the_past_is_harmless():
    """A retry moves the row in the index; its earlier place must not give it away too soon."""
    now = Now()
    now.add(1, delay_us=0)
    (lease,) = now.claim()
    at_once(now.store.start([lease.ref]))
    at_once(now.store.finish([Outcome(lease.ref, OutcomeKind.RETRY, delay_us=1_000)]))
    now.us += 999
    assert now.claim() == ()
    now.us += 1
    assert len(now.claim()) == 1


def test_a_million_claims_do_not_make_the_index_grow():
    now = Now()
    now.add(*range(1, 101))
    for _ in range(50):
        leases = now.claim()
        at_once(now.store.finish([Outcome(lease.ref, OutcomeKind.RELEASED) for lease in leases]))
    assert len(now.store._due) <= 200
    assert not now.store._leased


def test_jsonb_orders_keys_by_length_then_bytes_and_keeps_numbers_exact():
    assert list(as_jsonb({"bb": 1, "a": 2, "ü": 3, "b": 4})) == ["a", "b", "bb", "ü"]
    assert as_jsonb({"n": 1e22})["n"] == 10**22
    assert type(as_jsonb({"n": 1e22})["n"]) is int
    assert str(as_jsonb({"n": -0.0})["n"]) == "0.0"
    assert as_jsonb({"a": [1, {"bb": 1, "c": (1, 2)}]}) == {"a": [1, {"c": [1, 2], "bb": 1}]}


def test_each_way_of_ending_leaves_no_lease_behind():
    for number, kind in enumerate(OutcomeKind, 1):
        now = Now()
        now.add(number)
        (lease,) = now.claim()
        if kind is not OutcomeKind.RELEASED:
            at_once(now.store.start([lease.ref]))
        (done,) = at_once(now.store.finish([Outcome(lease.ref, kind)])).results
        assert done.accepted
        (row,) = now.store.table()
        assert (row.lease_owner, row.lease_expires_at_us) == (None, None)
        assert row.lease_token == 1
        assert not now.store._leased


def test_rows_due_at_one_instant_are_claimed_by_identity_whatever_the_order_of_arrival():
    for order in itertools.permutations((1, 2, 3)):
        now = Now()
        for number in order:
            now.add(number)
        assert [lease.ref.job_id.int for lease in now.claim(2)] == [1, 2]
