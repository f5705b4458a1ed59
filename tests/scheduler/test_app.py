"""The application: what it registers, and what it lets in. Every refusal is one line with the mend."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.app import (
    MAX_ENQUEUE,
    MAX_HORIZON,
    MAX_KEY_CHARS,
    MAX_PAYLOAD_BYTES,
    MAX_PAYLOAD_DEPTH,
    App,
    Client,
    JobRequest,
    checked_payload,
)
from scheduler.errors import (
    IdempotencyConflict,
    InvalidPayload,
    InvalidSetting,
    NaiveDatetime,
    TooMany,
    UnknownTask,
    UsageError,
)
from scheduler.jobs import NewJob, instant_to_us
from scheduler.policy import Retry
from simlab.store import ModelStore


@pytest.fixture
def app() -> App:
    app = App()

    @app.task(max_attempts=5, max_age=timedelta(hours=1))
    async def remind(job: object, *, user_id: int) -> None: ...

    return app


def job(app: App, **fields: Any) -> NewJob:
    return app.new_job(JobRequest(task="remind", **fields), random.Random(1))


def refusal(app: App, **fields: Any) -> str:
    with pytest.raises(UsageError) as caught:
        app.new_job(JobRequest(**{"task": "remind"} | fields), random.Random(1))
    message = str(caught.value)
    assert "\n" not in message
    return message


# ------------------------------------------------------------------------------------- registering


def test_a_task_is_registered_under_its_functions_name_or_its_own(app: App) -> None:
    @app.task("mail.send")
    def send(job: object) -> None: ...

    assert app.tasks == ("mail.send", "remind")
    assert app.definition("remind").is_async
    assert not app.definition("mail.send").is_async
    assert app.definition("mail.send").handler is send
    assert app.definition("mail.send").retry == Retry()
    assert app.definition("remind").max_age_us == 3_600_000_000


def test_a_name_is_registered_once(app: App) -> None:
    with pytest.raises(InvalidSetting, match="is registered already; give one of them another name"):
        app.task("remind")(lambda job: None)


@pytest.mark.parametrize("name", ["", "x" * (MAX_KEY_CHARS + 1), "nul\x00", "half \ud800"])
def test_a_name_that_a_table_cannot_hold_is_refused(app: App, name: str) -> None:
    with pytest.raises(InvalidSetting, match="a task's name"):
        app.task(name)(lambda job: None)


@pytest.mark.parametrize("attempts", [0, -1, 1.0, True, None, 1_000_001])
def test_a_number_of_attempts_is_a_whole_one(app: App, attempts: Any) -> None:
    with pytest.raises(InvalidSetting, match="max_attempts"):
        app.task("other", max_attempts=attempts)


@pytest.mark.parametrize(
    "age", [timedelta(0), timedelta(seconds=-1), MAX_HORIZON + timedelta(microseconds=1)]
)
def test_an_age_limit_leaves_time_and_is_a_limit(app: App, age: timedelta) -> None:
    with pytest.raises(InvalidSetting, match="max_age"):
        app.task("other", max_age=age)


def test_an_unknown_task_is_told_with_those_that_are_known(app: App) -> None:
    message = refusal(app, task="remnid")
    assert message == "unknown task 'remnid'; registered: remind; register it with @app.task"
    with pytest.raises(UnknownTask):
        App().definition("remind")


# -------------------------------------------------------------------------------------------- times


def test_without_a_time_a_job_is_due_at_once(app: App) -> None:
    made = job(app)
    assert (made.run_at_us, made.delay_us) == (None, 0)
    assert (made.max_attempts, made.max_age_us) == (5, 3_600_000_000)


def test_a_delay_stays_a_duration(app: App) -> None:
    assert job(app, delay=timedelta(microseconds=1)).delay_us == 1


def test_an_instant_may_come_in_any_zone(app: App) -> None:
    at = datetime(2030, 1, 31, 9, 0, 0, 1, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert job(app, run_at=at).run_at_us == instant_to_us("at", at)


def test_a_naive_datetime_is_refused(app: App) -> None:
    message = refusal(app, run_at=datetime(2030, 1, 31, 9))  # noqa: DTZ001
    assert message.startswith(
        "run_at=2030-01-31 09:00:00 has no time zone, so it names no instant; pass an aware"
    )
    with pytest.raises(NaiveDatetime):
        job(app, run_at=datetime(2030, 1, 31, 9))  # noqa: DTZ001


def test_two_times_are_one_too_many(app: App) -> None:
    message = refusal(app, run_at=datetime.now(UTC), delay=timedelta(1))
    assert message == "job of 'remind': give run_at or delay, not both"


def test_a_negative_delay_is_refused(app: App) -> None:
    assert "cannot be negative; an overdue job takes run_at" in refusal(app, delay=timedelta(microseconds=-1))


@pytest.mark.parametrize(
    "fields",
    [
        {"delay": MAX_HORIZON + timedelta(microseconds=1)},
        {"delay": timedelta.max},
        {"run_at": datetime.max.replace(tzinfo=UTC)},
        {"run_at": datetime.min.replace(tzinfo=UTC)},
        {"run_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))},
    ],
)
def test_a_time_beyond_what_a_table_can_hold_is_refused(app: App, fields: dict[str, Any]) -> None:
    refusal(app, **fields)


# -------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize("key", ["", "x" * (MAX_KEY_CHARS + 1), "nul\x00", "half \udfff", 7])
def test_a_key_that_a_table_cannot_hold_is_refused(app: App, key: Any) -> None:
    assert "an idempotency key" in refusal(app, idempotency_key=key)


def test_identities_come_from_the_stream(app: App) -> None:
    assert job(app).job_id == job(app).job_id
    assert job(app).job_id != app.new_job(JobRequest(task="remind"), random.Random(2)).job_id
    assert job(app).job_id.version == 4


# ----------------------------------------------------------------------------------------- payloads


@pytest.mark.parametrize(
    ("payload", "where", "why"),
    [
        ([1], "$", "must be a JSON object (a dict), not list"),
        (None, "$", "must be a JSON object (a dict), not NoneType"),
        ("{}", "$", "must be a JSON object (a dict), not str"),
        ({"a": {1}}, "$.a", "JSON has no word for set; convert it first"),
        ({"a": [0, b"x"]}, "$.a[1]", "JSON has no word for bytes"),
        ({"a": {"b": datetime(2026, 1, 1, tzinfo=UTC)}}, "$.a.b", "JSON has no word for datetime"),
        ({"a": object()}, "$.a", "JSON has no word for object"),
        ({1: 2}, "$", "the key 1 is not text"),
        ({"a": [{None: 1}]}, "$.a[0]", "the key None is not text"),
        ({"a": "x\x00"}, "$.a", "holds a NUL character, which PostgreSQL refuses; remove it"),
        ({"a": {"\x00": 1}}, "$.a, the key '\\x00'", "holds a NUL character"),
        ({"a": ["\ud800"]}, "$.a[0]", "holds half of a surrogate pair, which is not Unicode text; remove it"),
        ({"\udc00": 1}, "$, the key '\\udc00'", "holds half of a surrogate pair"),
        ({"a": math.nan}, "$.a", "nan is not a JSON number"),
        ({"a": [math.inf]}, "$.a[0]", "inf is not a JSON number"),
        ({"a": -math.inf}, "$.a", "-inf is not a JSON number"),
        ({"a": 10**1000}, "$.a", "a number of more than 1000 digits"),
        (
            {"a": "x" * MAX_PAYLOAD_BYTES},
            "$",
            "1,000,009 bytes of JSON, at most 1,000,000; store it elsewhere",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isascii() and len(value) < 40 else "",
)
def test_a_payload_that_jsonb_refuses_is_refused_with_its_place(
    app: App, payload: Any, where: str, why: str
) -> None:
    message = refusal(app, payload=payload)
    assert message.startswith(f"payload of 'remind' at {where}: {why}")


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def test_a_payload_is_nested_up_to_a_limit(app: App) -> None:
    assert job(app, payload=nested(MAX_PAYLOAD_DEPTH)).payload == nested(MAX_PAYLOAD_DEPTH)
    assert f"nested more than {MAX_PAYLOAD_DEPTH} deep" in refusal(app, payload=nested(MAX_PAYLOAD_DEPTH + 1))


def test_a_payload_that_holds_itself_is_too_deep(app: App) -> None:
    endless: dict[str, Any] = {}
    endless["me"] = endless
    assert "deep" in refusal(app, payload=endless)


def test_a_payload_is_measured_in_utf8(app: App) -> None:
    """What is measured is what the documentation says, not the escapes of one encoder."""
    job(app, payload={"a": "\u00e9" * 499_000})
    assert "bytes of JSON" in refusal(app, payload={"a": "\u00e9" * 500_000})


def test_other_mappings_and_sequences_become_plain_ones() -> None:
    payload = MappingProxyType({"m": MappingProxyType({"a": 1}), "r": range(3), "t": (1, (2,))})
    assert checked_payload("task", payload) == {"m": {"a": 1}, "r": [0, 1, 2], "t": [1, [2]]}


def test_a_payload_is_copied(app: App) -> None:
    """What the caller does to its dict afterwards does not reach the job."""
    given_payload: dict[str, Any] = {"a": [1]}
    made = job(app, payload=given_payload)
    given_payload["a"].append(2)
    assert made.payload == {"a": [1]}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\x00")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3).filter(lambda key: "\x00" not in key), inner),
    max_leaves=10,
)  # fmt: skip


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from(["a", "b", "\u00e9"]), json_values))
def test_whatever_json_can_say_passes_unchanged(payload: dict[str, Any]) -> None:
    assert checked_payload("task", payload) == payload


@given(st.recursive(st.text() | st.floats() | st.binary() | st.none(), st.lists, max_leaves=5))
def test_whatever_json_cannot_say_is_one_of_our_errors(value: object) -> None:
    try:
        checked_payload("task", {"a": value})
    except InvalidPayload as error:
        assert error.where.startswith("$.a")  # noqa: PT017 - either outcome is right


# ------------------------------------------------------------------------------------------- client


class Recorded:
    """A store that records what it is handed."""

    def __init__(self) -> None:
        self.calls: list[Sequence[NewJob]] = []
        self.store = ModelStore(lambda: 0)

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.store, verb)

    async def enqueue(self, jobs: Sequence[NewJob], /) -> Any:
        self.calls.append(jobs)
        return await self.store.enqueue(jobs)


def client_of(app: App, store: Any) -> Client:
    return Client(app, store, rng=random.Random(1))


def test_a_batch_is_one_call_and_keeps_its_order(app: App) -> None:
    store = Recorded()
    requests = [JobRequest(task="remind", payload={"user_id": n}) for n in range(5)]
    job_ids = asyncio.run(client_of(app, store).enqueue_many(iter(requests)))
    assert len(store.calls) == 1
    assert [made.job_id for made in store.calls[0]] == job_ids
    assert [made.payload for made in store.calls[0]] == [{"user_id": n} for n in range(5)]


def test_nothing_to_enqueue_asks_nothing(app: App) -> None:
    store = Recorded()
    assert asyncio.run(client_of(app, store).enqueue_many([])) == []
    assert store.calls == []


def test_one_bad_job_keeps_the_whole_batch_out(app: App) -> None:
    store = Recorded()
    requests = [JobRequest(task="remind"), JobRequest(task="remind", payload={"a": "\x00"})]
    with pytest.raises(InvalidPayload):
        asyncio.run(client_of(app, store).enqueue_many(requests))
    assert store.calls == []


def test_a_batch_has_a_limit(app: App) -> None:
    with pytest.raises(TooMany, match="100,001 jobs in one call; at most 100,000: split the call"):
        asyncio.run(client_of(app, Recorded()).enqueue_many([JobRequest(task="remind")] * (MAX_ENQUEUE + 1)))


def test_a_taken_key_returns_the_earlier_job(app: App) -> None:
    client = client_of(app, ModelStore(lambda: 0))

    async def story() -> list[UUID]:
        return [await client.enqueue("remind", {"user_id": 7}, idempotency_key="k") for _ in range(2)]

    first, second = asyncio.run(story())
    assert first == second


@pytest.mark.parametrize("payload", [{}, {"user_id": 8}])
def test_a_key_taken_by_another_request_is_told(app: App, payload: Mapping[str, Any]) -> None:
    client = client_of(app, ModelStore(lambda: 0))

    async def story() -> None:
        job_id = await client.enqueue("remind", {"user_id": 7}, idempotency_key="k")
        with pytest.raises(IdempotencyConflict) as caught:
            await client.enqueue("remind", payload, idempotency_key="k")
        assert caught.value.job_id == job_id
        assert "use a key of its own" in str(caught.value)

    asyncio.run(story())
