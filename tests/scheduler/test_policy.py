"""Policy: backoff within its bounds whatever the attempt, and settings that fit together."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import InvalidSetting
from scheduler.policy import MAX_PAUSE_US, Retry, WorkerSettings, backoff_us, jittered_us

attempts = st.integers(1, 10**9)
retries = st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)).map(
    lambda pair: Retry(base_us=min(pair), cap_us=max(pair))
)


class Extreme:
    """A stream that always draws the lowest, or always the highest."""

    def __init__(self, *, highest: bool) -> None:
        self._highest = highest

    def randint(self, a: int, b: int, /) -> int:
        return b if self._highest else a

    def getrandbits(self, k: int, /) -> int:
        return 0


@given(retries, attempts, st.integers())
def test_a_pause_lies_between_half_and_all_of_the_longest(retry: Retry, attempt: int, seed: int) -> None:
    longest = min(retry.base_us * 2 ** min(attempt - 1, 100), retry.cap_us)
    assert longest // 2 <= backoff_us(retry, attempt, random.Random(seed)) <= longest


@pytest.mark.parametrize(("attempt", "longest"), [(1, 10), (2, 20), (3, 40), (4, 80), (5, 100), (6, 100)])
def test_pauses_double_up_to_the_cap(attempt: int, longest: int) -> None:
    retry = Retry(base_us=10, cap_us=100)
    assert backoff_us(retry, attempt, Extreme(highest=True)) == longest
    assert backoff_us(retry, attempt, Extreme(highest=False)) == longest // 2


@pytest.mark.parametrize("attempt", [63, 64, 65, 10**6, 10**18])
def test_a_huge_attempt_is_the_cap_and_costs_nothing(attempt: int) -> None:
    assert backoff_us(Retry(), attempt, Extreme(highest=True)) == Retry().cap_us


def test_no_pause_at_all_stays_none() -> None:
    assert backoff_us(Retry(base_us=0), 100, Extreme(highest=True)) == 0


@given(retries, attempts, st.integers())
def test_the_same_stream_gives_the_same_pause(retry: Retry, attempt: int, seed: int) -> None:
    assert backoff_us(retry, attempt, random.Random(seed)) == backoff_us(retry, attempt, random.Random(seed))


@given(st.integers(0, 10**15), st.integers())
def test_jitter_shortens_by_a_tenth_at_most(interval_us: int, seed: int) -> None:
    drawn = jittered_us(interval_us, random.Random(seed))
    assert interval_us - interval_us // 10 <= drawn <= interval_us


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"base_us": -1}, "base_us=-1: a pause cannot be negative"),
        ({"base_us": 2, "cap_us": 1}, "cap_us=1: must be at least base_us=2"),
        ({"base_us": 0.5}, f"base_us=0.5: must be a whole number, at most {MAX_PAUSE_US:,} (100 years)"),
        (
            {"cap_us": 10**18},
            f"cap_us={10**18}: must be a whole number, at most {MAX_PAUSE_US:,} (100 years)",
        ),
    ],
)
def test_a_retry_rule_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        Retry(**fields)
    assert str(caught.value) == message


def test_the_default_settings_fit_together() -> None:
    settings = WorkerSettings()
    assert settings.capacity == settings.concurrency + settings.prefetch
    assert 3 * (settings.heartbeat_interval_us + 2 * settings.request_timeout_us) <= settings.lease_us


@pytest.mark.parametrize("name", list(WorkerSettings.__dataclass_fields__))
@pytest.mark.parametrize("value", [-1, 1.5, "1", None, True])
def test_a_size_that_is_no_size_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidSetting) as caught:
        WorkerSettings(**{name: value})
    assert caught.value.name == name
    assert "must be a whole number of at least" in str(caught.value)


def test_only_some_sizes_may_be_nothing() -> None:
    WorkerSettings(prefetch=0, lookahead_us=0, drain_timeout_us=0)
    with pytest.raises(InvalidSetting, match="concurrency=0: must be a whole number of at least 1"):
        WorkerSettings(concurrency=0)


def test_a_poll_longer_than_the_lookahead_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="must be shorter than lookahead_us=5"):
        WorkerSettings(lookahead_us=5, poll_interval_us=5)
    WorkerSettings(lookahead_us=6, poll_interval_us=5)


def test_a_heartbeat_that_does_not_fit_the_lease_three_times_is_refused() -> None:
    WorkerSettings(lease_us=90, heartbeat_interval_us=10, request_timeout_us=10)
    with pytest.raises(InvalidSetting, match=r"= 30 must fit in a third of lease_us=89"):
        WorkerSettings(lease_us=89, heartbeat_interval_us=10, request_timeout_us=10)
