"""The poller in virtual time: never beyond the room there is, early enough, and anchored on the safe sides."""

import itertools
from collections.abc import Iterator

import pytest

from scheduler.jobs import JobState
from scheduler.policy import WorkerSettings
from scheduler.store import ClaimReply, ClaimRequest
from simlab.faults import ReplyLost, RequestLost
from simlab.network import Latency
from simlab.store import ModelStore
from tests.simlab.bench import MS, SECOND, job_id, opened_story, working_app

CLAIMS: list[tuple[float, ClaimRequest, int]] = []
SWEEPS: list[float] = []


class Spy(ModelStore):
    """Notes each claim: when it was served, what was asked, and how many were granted."""

    async def claim(self, request: ClaimRequest, /) -> ClaimReply:
        reply = await super().claim(request)
        CLAIMS.append((self._now_us(), request, len(reply.leases)))
        return reply

    async def sweep(self, *, limit: int):
        SWEEPS.append(self._now_us())
        return await super().sweep(limit=limit)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    CLAIMS.clear()
    SWEEPS.clear()
    yield
    CLAIMS.clear()
    SWEEPS.clear()


def test_a_poll_never_asks_beyond_the_room_there_is():
    settings = WorkerSettings(concurrency=3, prefetch=4)
    with opened_story(app=working_app(seconds=2), settings=settings, store_class=Spy) as story:
        worker = story.workers["w1"][0]
        most = 0
        for _ in range(60):
            story.enqueue()
        for tenth in range(1, 600):
            story.to(tenth / 10)
            most = max(most, len(worker.held))
        assert most == settings.capacity == 7
        assert {story.row(job_id(number)).state for number in range(1, 61)} == {JobState.SUCCEEDED}
        assert all(1 <= request.limit <= 7 for _, request, _ in CLAIMS)
        claimed = story.events("claimed")
        ended = story.events("finished")
        for event in claimed:
            before = [other for other in claimed if other.time_us <= event.time_us]
            over = [other for other in ended if other.time_us < event.time_us]
            assert len(before) - len(over) <= 7


def test_a_full_worker_does_not_ask_at_all():
    with opened_story(app=working_app(seconds=100), store_class=Spy) as story:
        for _ in range(10):
            story.enqueue()
        story.to(90)
        assert sum(granted for _, _, granted in CLAIMS) == 4
        assert len(CLAIMS) == 1
        assert len(SWEEPS) >= 9, "sweeping goes on"


def test_a_batch_bounds_one_poll_and_the_next_follows_at_once_while_there_is_more():
    settings = WorkerSettings(concurrency=5, prefetch=20, batch=10)
    with opened_story(app=working_app(seconds=100), settings=settings, store_class=Spy) as story:
        for _ in range(30):
            story.enqueue()
        story.to(1)
        assert [(request.limit, granted) for _, request, granted in CLAIMS] == [(10, 10), (10, 10), (5, 5)]


def test_what_is_due_within_the_lookahead_is_claimed_ahead_of_time_and_nothing_later():
    with opened_story() as story:
        soon, later = story.enqueue(delay_s=29), story.enqueue(delay_s=100)
        story.to(1)
        assert story.row(soon).state is JobState.CLAIMED
        assert story.row(later).state is JobState.PENDING
        story.to(150)
        claimed_s = story.times_s("claimed", later)[0]
        assert 100 - 30 <= claimed_s <= 100 - 30 + 5.1


def test_a_job_is_fired_exactly_when_it_is_due_plus_the_replys_way_back():
    """The fire time is anchored at the arrival of the reply: never early, late by at most the way back."""
    with opened_story(latency=Latency(5 * MS, 5 * MS)) as story:
        job = story.enqueue(delay_s=20)
        story.to(30)
        assert story.times_s("fired", job) == [20.005]
        assert story.times_s("executing", job) == [20.015]


def test_the_lease_is_counted_from_the_sending_and_the_firing_from_the_arrival_however_slow_the_network():
    with opened_story(latency=Latency(700 * MS, 900 * MS)) as story:
        job = story.enqueue(delay_s=20)
        story.to(10)
        (held,) = story.workers["w1"][0].held
        (claimed,) = story.events("claimed", job=job)
        lease_us = story.settings.lease_us
        # Sent 0.7 to 0.9 s before the store served it; the reply arrived 0.7 to 0.9 s after.
        assert (
            claimed.time_us + lease_us - 900 * MS
            <= held.lease_until_us
            <= claimed.time_us + lease_us - 700 * MS
        )
        assert 20 * SECOND + 700 * MS <= held.fire_at_us <= 20 * SECOND + 900 * MS
        assert held.lease_until_us < claimed.until_us - story.world.database_clock.now_us() + 10 * SECOND


def test_an_overdue_job_is_fired_at_once():
    with opened_story() as story:
        story.to(1)
        job = story.enqueue()
        story.to(10)
        (claimed_s,) = story.times_s("claimed", job)
        assert story.times_s("fired", job) == [pytest.approx(claimed_s + 0.001)]


def test_an_idle_worker_polls_at_its_interval_shortened_by_up_to_a_tenth():
    with opened_story(store_class=Spy) as story:
        story.to(300)
        gaps = [(later[0] - earlier[0]) / SECOND for earlier, later in itertools.pairwise(CLAIMS)]
        assert len(gaps) >= 59
        assert min(gaps) >= 4.5
        assert max(gaps) <= 5.005
        assert max(gaps) - min(gaps) > 0.2, "no jitter"


def test_waking_a_worker_polls_now():
    with opened_story() as story:
        story.to(1)
        job = story.enqueue()
        story.workers["w1"][0].wake()
        story.to(1.1)
        assert story.times_s("executing", job) != []


def test_room_made_is_refilled_without_waiting_for_the_interval():
    settings = WorkerSettings(concurrency=1, prefetch=1)
    with opened_story(app=working_app(seconds=0.01), settings=settings) as story:
        jobs = [story.enqueue() for _ in range(20)]
        story.to(2)
        assert {story.row(job).state for job in jobs} == {JobState.SUCCEEDED}


def test_a_poll_that_is_not_answered_is_tried_again_after_the_retry_pause():
    faults = [RequestLost(host="w1", verb="sweep"), RequestLost(host="w1", verb="claim")]
    with opened_story(faults=faults) as story:
        job = story.enqueue()
        story.to(20)
        unavailable = story.events("unavailable")
        assert [event.detail for event in unavailable] == [
            "poll: no answer to sweep within 2.5 s",
            "poll: no answer to claim within 2.5 s",
        ]
        # 2.5 s for the sweep, 1 s, the sweep, 2.5 s for the claim, 1 s, the claim.
        assert story.times_s("claimed", job) == [pytest.approx(7.003, abs=0.002)]


def test_jobs_granted_in_a_reply_that_was_lost_are_swept_when_their_lease_ends_and_run_then():
    with opened_story(faults=[ReplyLost(host="w1", verb="claim")]) as story:
        job = story.enqueue()
        story.to(59)
        assert story.row(job).state is JobState.CLAIMED
        assert story.times_s("executing", job) == []
        story.to(80)
        assert story.kinds(job) == [
            "claimed",
            "swept",
            "claimed",
            "fired",
            "started",
            "executing",
            "executed",
            "finished",
        ]
        assert story.row(job).attempt == 2
        assert story.row(job).lease_token == 2


def test_a_worker_asks_only_for_tasks_it_has():
    with opened_story() as story:
        strange = story.enqueue(task="somebody else's")
        story.to(20)
        assert story.row(strange).state is JobState.PENDING
