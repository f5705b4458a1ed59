"""No story that the model is told breaks the rules of the table: its transitions, its tokens, its leases."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.jobs import TERMINAL, TRANSITIONS, Job, JobState, LeaseRef
from scheduler.store import Outcome, OutcomeKind
from tests.contract.lab import BEGINNING_US, LabStore, ModelLabStore, job_id, new_job

JOBS = (1, 2, 3)
OWNERS = ("w1", "w2")

numbers = st.sampled_from(JOBS)
# Durations so small that steps meet boundaries, and each other, all the time.
small_us = st.integers(0, 6)
refs = st.builds(LeaseRef, job_id=numbers.map(job_id), owner=st.sampled_from(OWNERS), token=st.integers(0, 4))
outcomes = st.builds(
    Outcome,
    ref=refs,
    kind=st.sampled_from(OutcomeKind),
    delay_us=small_us,
    error=st.sampled_from([None, "oh", "no"]),
)
fields = st.fixed_dictionaries(
    {"max_attempts": st.integers(1, 3), "max_age_us": st.none() | st.integers(1, 12)},
    optional={
        "task": st.sampled_from(["task", "other"]),
        "payload": st.sampled_from([{}, {"n": 1}]),
        "idempotency_key": st.sampled_from(["k", "l"]),
    },
)
times: st.SearchStrategy[dict[str, int]] = st.one_of(
    st.builds(dict, delay_us=small_us),
    st.builds(dict, run_at_us=st.integers(BEGINNING_US - 3, BEGINNING_US + 9)),
)
new_jobs = st.lists(st.tuples(numbers, fields, times), min_size=1, max_size=3, unique_by=lambda job: job[0])
steps = st.one_of(
    st.tuples(st.just("advance"), st.integers(1, 5)),
    st.tuples(st.just("enqueue"), new_jobs),
    st.tuples(st.just("claim"), st.sampled_from(OWNERS), st.integers(1, 3), small_us, st.integers(1, 8)),
    st.tuples(st.just("start"), st.lists(refs, max_size=3, unique_by=lambda ref: ref.job_id)),
    st.tuples(st.just("heartbeat"), st.lists(refs, max_size=3, unique_by=lambda ref: ref.job_id), small_us),
    st.tuples(
        st.just("finish"), st.lists(outcomes, min_size=1, max_size=3, unique_by=lambda o: o.ref.job_id)
    ),
    # The lease that is the row's, so that stories get on.
    st.tuples(st.just("start held"), numbers),
    st.tuples(st.just("finish held"), numbers, st.sampled_from(OutcomeKind), small_us),
    st.tuples(st.just("sweep"), st.integers(1, 3)),
    st.tuples(st.just("cancel"), st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True)),
    st.tuples(st.just("replay"), st.lists(st.integers(1, 4), max_size=3)),
    st.tuples(st.just("stats")),
)


def tell(lab: LabStore, step: tuple[Any, ...]) -> object:
    """Carry out one step of a story and return the store's answer."""
    match step:
        case ("advance", us):
            lab.advance_us(us)
            return None
        case ("enqueue", jobs):
            return lab.enqueue(*(new_job(number, **more, **when) for number, more, when in jobs))
        case ("claim", owner, limit, lookahead_us, lease_us):
            return lab.claim(owner=owner, limit=limit, lookahead_us=lookahead_us, lease_us=lease_us)
        case ("start", named):
            return lab.start(*named)
        case ("heartbeat", named, lease_us):
            return lab.heartbeat(*named, lease_us=lease_us)
        case ("finish", ends):
            return lab.finish(*ends)
        case ("start held", number):
            return lab.start(*held(lab, number))
        case ("finish held", number, kind, delay_us):
            return [lab.finish(Outcome(ref, kind, delay_us)) for ref in held(lab, number)]
        case ("sweep", limit):
            return lab.sweep(limit)
        case ("cancel", asked):
            return lab.cancel(*asked)
        case ("replay", asked):
            return lab.replay(*asked)
        case _:
            return lab.stats()


def held(lab: LabStore, number: int) -> list[LeaseRef]:
    row = lab.find(number)
    return [LeaseRef(row.job_id, row.lease_owner, row.lease_token)] if row and row.lease_owner else []


def table(lab: LabStore) -> list[Job | None]:
    return [lab.find(number) for number in JOBS]


@settings(max_examples=200)
@given(story=st.lists(steps, min_size=5, max_size=40))
def test_no_story_breaks_the_rules(story: list[tuple[Any, ...]]) -> None:
    """Every change of state is one of the transition table's, tokens never fall, leases belong to held jobs."""
    lab = ModelLabStore()
    before: list[Job | None] = [None] * len(JOBS)
    for step in story:
        tell(lab, step)
        after = table(lab)
        for old, new in zip(before, after, strict=True):
            if old is not None:
                assert new is not None
                check_step(old, new, replayed=step[0] == "replay")
            if new is not None:
                is_held = new.state in {JobState.CLAIMED, JobState.RUNNING}
                assert is_held == (new.lease_owner is not None) == (new.lease_expires_at_us is not None)
                assert (new.state in TERMINAL) == (new.finished_at_us is not None)
                assert 0 <= new.attempt <= new.max_attempts
        before = after


def check_step(old: Job, new: Job, *, replayed: bool) -> None:
    if old.state is not new.state and not (replayed and old.state is JobState.FAILED):
        assert new.state in TRANSITIONS[old.state]
    if old.state in TERMINAL and not replayed:
        assert new == old
    assert new.lease_token - old.lease_token == (
        new.state is JobState.CLAIMED and old.state is JobState.PENDING
    )
