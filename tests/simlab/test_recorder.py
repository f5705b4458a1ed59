"""The recorder: what the store did, even unheard; what a worker did, only as long as it lives."""

from scheduler.jobs import JobState, LeaseRef
from scheduler.store import (
    Cancelled,
    CancelReply,
    CancelResult,
    ClaimReply,
    ClaimRequest,
    Finished,
    FinishReply,
    HeartbeatReply,
    Outcome,
    OutcomeKind,
    Renewed,
    ReplayReply,
    StartReply,
    SweepReply,
    Swept,
)
from simlab.faults import ReplyLost
from simlab.history import Event, History
from simlab.recorder import Recorder
from tests.simlab.bench import Bench, held_job, job_id, opened_story

NOW = 1_000


class Desk:
    def __init__(self) -> None:
        self.bench = Bench()
        self.history = History()
        self.recorder = Recorder(self.history, time_us=lambda: 5, db_us=lambda: NOW)
        self.life = self.bench.host.life

    @property
    def last(self) -> Event:
        return self.history.event(len(self.history) - 1)

    def claim(self) -> LeaseRef:
        job = held_job(token=4, attempt=3)
        request = ClaimRequest(owner="w1/0", tasks=("work",), limit=1, lookahead_us=0, lease_us=60)
        self.recorder.claimed(self.life, request)(ClaimReply(NOW, (job.lease,)))
        return job.ref


def test_a_claim_says_token_attempt_due_and_the_end_of_the_lease():
    desk = Desk()
    desk.claim()
    event = desk.last
    assert (event.kind, event.token, event.attempt, event.db_us, event.until_us) == (
        "claimed",
        4,
        3,
        NOW,
        NOW + 60,
    )
    assert (event.host, event.incarnation, event.time_us) == ("w1", 1, 5)


def test_later_events_of_a_lease_name_its_attempt():
    desk = Desk()
    ref = desk.claim()
    desk.recorder.started(desk.life, [ref])(StartReply(NOW, (ref.job_id,)))
    assert (desk.last.kind, desk.last.attempt) == ("started", 3)
    desk.recorder.started(desk.life, [ref])(StartReply(NOW, ()))
    assert (desk.last.kind, desk.last.attempt, desk.last.detail) == ("rejected", 3, "start")
    desk.recorder.renewed(desk.life, [ref], 60)(HeartbeatReply(NOW, (Renewed(ref.job_id, True, True),)))
    assert (desk.last.kind, desk.last.until_us, desk.last.detail) == ("renewed", NOW + 60, "cancel requested")
    desk.recorder.renewed(desk.life, [ref], 60)(HeartbeatReply(NOW, ()))
    assert (desk.last.kind, desk.last.detail) == ("rejected", "heartbeat")


def test_a_lease_that_was_held_but_not_extended_is_no_renewal():
    desk = Desk()
    ref = desk.claim()
    before = len(desk.history)
    desk.recorder.renewed(desk.life, [ref], 60)(HeartbeatReply(NOW, (Renewed(ref.job_id, False, False),)))
    assert len(desk.history) == before


def test_an_outcome_is_finished_recovered_or_rejected():
    desk = Desk()
    ref = desk.claim()
    for accepted, recovered, kind, detail in (
        (True, False, "finished", "retry to PENDING"),
        (False, True, "recovered", "retry"),
        (False, False, "rejected", "finish (retry)"),
    ):
        outcome = Outcome(ref, OutcomeKind.RETRY, delay_us=7)
        result = Finished(ref.job_id, accepted=accepted, recovered=recovered, state=JobState.PENDING)
        desk.recorder.finished(desk.life, [outcome])(FinishReply(NOW, (result,)))
        assert (desk.last.kind, desk.last.detail) == (kind, detail)
        assert desk.last.due_us == (NOW + 7 if accepted else -1)


def test_sweeps_cancellations_and_replays_are_told_job_by_job():
    desk = Desk()
    swept = Swept(job_id(1), "w9/0", 4, 3, JobState.RUNNING, JobState.PENDING)
    desk.recorder.swept(desk.life)(SweepReply(NOW, (swept,)))
    assert (desk.last.kind, desk.last.token, desk.last.attempt) == ("swept", 4, 3)
    assert desk.last.detail == "RUNNING to PENDING"
    desk.recorder.cancelled(desk.life)(CancelReply(NOW, (Cancelled(job_id(2), CancelResult.TOO_LATE),)))
    assert (desk.last.kind, desk.last.job, desk.last.detail) == ("cancelled", job_id(2), "too_late")
    desk.recorder.replayed(desk.life)(ReplayReply(NOW, (job_id(3),)))
    assert (desk.last.kind, desk.last.job, desk.last.due_us) == ("replayed", job_id(3), NOW)


def test_what_a_worker_says_is_recorded_while_its_life_lasts_and_refused_afterwards():
    desk = Desk()
    observe = desk.recorder.observer(desk.life)
    observe("executing", held_job(token=4, attempt=3), "")
    assert (desk.last.kind, desk.last.token, desk.last.attempt) == ("executing", 4, 3)
    observe("unavailable", None, "poll: away")
    assert (desk.last.kind, desk.last.job, desk.last.detail) == ("unavailable", None, "poll: away")
    recorded = len(desk.history)
    observe("claimed", held_job(), "")
    desk.bench.host.crash()
    observe("executed", held_job(), "last words")
    desk.bench.host.restart()
    observe("executed", held_job(), "from the other side")
    assert len(desk.history) == recorded
    desk.recorder.observer(desk.bench.host.life)("executing", held_job(), "")
    assert desk.last.incarnation == 2


def test_the_outside_world_either_changes_or_refuses():
    desk = Desk()
    for new, kind in ((True, "effect"), (False, "duplicate")):
        desk.recorder.effect(desk.life, db_us=NOW, job=job_id(1), token=4, attempt=3, new=new)
        assert (desk.last.kind, desk.last.db_us) == (kind, NOW)


def test_what_the_store_did_is_recorded_even_when_the_reply_is_lost():
    with opened_story(faults=[ReplyLost(host="w1", verb="claim")]) as story:
        job = story.enqueue()
        story.to(2)
        assert story.kinds(job) == ["claimed"]
