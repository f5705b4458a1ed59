"""The history: columns of integers, a digest that any change changes, and frames that lose nothing."""

import json
import tracemalloc
from array import array
from dataclasses import fields
from uuid import UUID

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlab.errors import InvalidExperiment
from simlab.history import KINDS, Event, History, describe_kind, short_names
from tests.simlab.bench import job_id

JOB = UUID("12345678-1234-4234-8234-123456789abc")

TINY: list[dict] = [
    {"kind": "enqueued", "time_us": 0, "db_us": 1_767_225_600_000_000, "host": "client", "incarnation": 1, "job": JOB,
     "due_us": 1_767_225_601_000_000, "detail": "work"},
    {"kind": "claimed", "time_us": 1, "db_us": 1_767_225_600_000_001, "host": "w1", "incarnation": 1, "job": JOB,
     "token": 1, "attempt": 1, "due_us": 1_767_225_601_000_000, "until_us": 1_767_225_660_000_001},
    {"kind": "fault", "time_us": 2, "host": "w1", "incarnation": 1, "detail": "crash"},
]  # fmt: skip

GOLDEN = "611171156cc494e4ec8078e28835a5fb003d1ccb7fa9f207520e0e9160e932d4"
GOLDEN_WITH_TABLES = "280c738bff3bc8d7180a8c34df9647661ffc6369d493b17d6ca2a13d38139143"


def made(events: list[dict]) -> History:
    history = History()
    for event in events:
        history.record(event["kind"], **{name: value for name, value in event.items() if name != "kind"})
    return history


def test_the_canonical_digest_is_this_one_on_every_machine():
    assert made(TINY).digest() == GOLDEN
    assert made(TINY).digest([[{"b": 1, "a": None}], []]) == GOLDEN_WITH_TABLES


def test_the_digest_of_nothing_is_stable_and_of_its_own():
    assert History().digest() == History().digest()
    assert History().digest() != made(TINY).digest()


CHANGES = {
    "time_us": 3, "db_us": 5, "host": "w2", "incarnation": 2, "kind": "swept", "job": job_id(5), "token": 2,
    "attempt": 2, "due_us": 6, "until_us": 7, "detail": "other",
}  # fmt: skip


@pytest.mark.parametrize("name", [field.name for field in fields(Event)])
@pytest.mark.parametrize("index", range(len(TINY)))
def test_any_change_of_any_field_of_any_event_changes_the_digest(name, index):
    changed = [dict(event) for event in TINY]
    changed[index][name] = CHANGES[name]
    assert made(changed).digest() != made(TINY).digest()


def test_the_order_and_the_number_of_events_count():
    digests = {
        made(events).digest()
        for events in (TINY, TINY[::-1], TINY[:2], [*TINY, TINY[2]], [TINY[1], TINY[0], TINY[2]])
    }
    assert len(digests) == 5


def test_the_final_tables_count_by_row_order_and_place():
    history = made(TINY)
    row, other = {"a": 1}, {"a": 2}
    digests = {
        history.digest(tables)
        for tables in (
            [],
            [[]],
            [[row]],
            [[other]],
            [[row, other]],
            [[other, row]],
            [[row], [other]],
            [[], [row]],
        )
    }
    assert len(digests) == 8
    assert history.digest([[{"a": 1, "b": 2}]]) == history.digest([[{"b": 2, "a": 1}]])


texts = st.text(alphabet=st.characters(codec=None), max_size=4)
events = st.lists(
    st.fixed_dictionaries(
        {"kind": st.sampled_from(sorted(KINDS)), "time_us": st.integers(0, 9), "host": texts, "detail": texts}
    ),
    max_size=4,
)


@given(one=events, two=events)
def test_two_histories_have_one_digest_only_if_they_are_equal(one, two):
    assert (made(one).digest() == made(two).digest()) == (list(made(one)) == list(made(two)))


def test_details_that_only_differ_in_where_a_nul_falls_are_told_apart():
    one = made([{"kind": "fault", "time_us": 0, "detail": detail} for detail in ("a\x00b", "c")])
    two = made([{"kind": "fault", "time_us": 0, "detail": detail} for detail in ("a", "b\x00c")])
    assert one.digest() != two.digest()


# Events.


def test_what_is_recorded_is_what_is_read():
    history = made(TINY)
    assert len(history) == 3
    assert list(history) == [history.event(index) for index in range(3)]
    first = history.event(0)
    assert first.job == JOB
    assert (first.kind, first.host, first.detail, first.token) == ("enqueued", "client", "work", -1)
    assert history.event(2).job is None


def test_an_unknown_kind_is_refused_and_leaves_nothing_behind():
    history = made(TINY)
    with pytest.raises(InvalidExperiment, match="unknown kind of event 'exploded'; add it to"):
        history.record("exploded", time_us=5)
    assert history.digest() == made(TINY).digest()


def test_every_kind_is_explained():
    for kind in KINDS:
        assert describe_kind(kind)[0].islower()
    with pytest.raises(KeyError):
        describe_kind("exploded")


def test_two_hundred_thousand_events_cost_less_than_150_bytes_each():
    tracemalloc.start()
    try:
        history = History()
        jobs = [job_id(number) for number in range(1_000)]
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(200_000):
            history.record(
                "renewed",
                time_us=number,
                db_us=1_767_225_600_000_000 + number,
                host=f"w{number % 10}",
                incarnation=1,
                job=jobs[number % 1_000],
                token=number,
                attempt=1,
                until_us=1_767_225_660_000_000 + number,
                detail="",
            )
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(history) == 200_000
    assert used / 200_000 < 150


# Frames.


def test_a_frame_has_one_row_an_event_and_these_columns_and_types():
    frame = made(TINY).frame()
    assert {name: str(kind) for name, kind in frame.dtypes.items()} == {
        "time_s": "float64",
        "time_us": "int64",
        "db_us": "Int64",
        "host": "category",
        "incarnation": "int64",
        "kind": "category",
        "job": "category",
        "job_id": "category",
        "token": "Int64",
        "attempt": "Int64",
        "due_us": "Int64",
        "until_us": "Int64",
        "detail": "category",
    }
    assert len(frame) == 3
    assert list(frame["kind"]) == ["enqueued", "claimed", "fault"]


def test_a_frame_loses_no_microsecond():
    """2**53 + 1 is the first integer that a column of floats would get wrong."""
    history = History()
    for at in (2**53 + 1, 2**53 + 3, 2**62):
        history.record("fault", time_us=at, db_us=at, due_us=at, until_us=at)
    history.record("fault", time_us=2**53 + 5)
    frame = history.frame()
    for name in ("db_us", "due_us", "until_us"):
        assert [int(value) for value in frame[name][:3]] == [2**53 + 1, 2**53 + 3, 2**62]
        assert frame[name][3] is pd.NA
    assert list(frame["time_us"]) == [2**53 + 1, 2**53 + 3, 2**62, 2**53 + 5]


def test_what_is_missing_is_missing_and_not_minus_one():
    frame = made(TINY).frame()
    assert frame["token"].isna().tolist() == [True, False, True]
    assert frame["job"].isna().tolist() == [False, False, True]
    assert frame["job_id"].isna().tolist() == [False, False, True]
    assert frame["db_us"].isna().tolist() == [False, False, True]


def test_jobs_are_named_by_as_much_of_their_identity_as_keeps_them_apart():
    assert short_names(["12345678-a", "12345679-a"]) == ["12345678", "12345679"]
    assert short_names(["12345678-a", "12345678-b"]) == ["12345678-a", "12345678-b"]
    assert short_names([]) == []
    assert made(TINY).frame()["job"].iloc[0] == "12345678"


def test_a_history_of_nothing_has_an_empty_frame():
    frame = History().frame()
    assert len(frame) == 0
    assert list(frame.columns) == list(made(TINY).frame().columns)


def test_a_history_can_be_added_to_after_a_frame_was_made_and_the_frame_stays():
    history = made(TINY)
    frame = history.frame()
    history.record("fault", time_us=9, host="w9", detail="late")
    assert len(frame) == 3
    assert len(history.frame()) == 4
    frame.loc[0, "time_us"] = 77
    assert history.event(0).time_us == 0


# Saving.


def test_a_saved_history_comes_back_equal(tmp_path):
    history = made(TINY)
    history.save(tmp_path / "history.npz")
    loaded = History.load(tmp_path / "history.npz")
    assert list(loaded) == list(history)
    assert loaded.digest() == history.digest()
    pd.testing.assert_frame_equal(loaded.frame(), history.frame())
    loaded.record("fault", time_us=9, host="w1", detail="crash")
    history.record("fault", time_us=9, host="w1", detail="crash")
    assert loaded.digest() == history.digest()


def test_an_empty_history_can_be_saved(tmp_path):
    History().save(tmp_path / "history.npz")
    assert History.load(tmp_path / "history.npz").digest() == History().digest()


def _truncated(path):
    made(TINY).save(path)
    path.write_bytes(path.read_bytes()[:-200])


def _flipped(path):
    made(TINY).save(path)
    data = bytearray(path.read_bytes())
    for index in range(60, len(data) // 2, 7):
        data[index] ^= 0xFF
    path.write_bytes(bytes(data))


def _without_a_column(path):
    np.savez_compressed(path, names=np.zeros(1, dtype=np.uint8))


def _names_missing(path):
    _with(path, names={"host": [], "kind": []})


def _no_identity(path):
    _with(path, names={"host": [], "kind": [], "detail": [], "job": ["not an identity"]})


def _names_that_are_none(path):
    _with(path, names=[1, 2])


def _uneven(path):
    _with(path, names={"host": ["w1"], "kind": ["fault"], "detail": [""], "job": []}, time_us=[1, 2, 3])


def _names_out_of_range(path):
    columns = {field.name: [5] for field in fields(Event)}
    _with(path, names={"host": ["w1"], "kind": ["fault"], "detail": [""], "job": []}, **columns)


def _with(path, *, names, **columns):
    data = {field.name: columns.get(field.name, []) for field in fields(Event)}
    np.savez_compressed(
        path,
        names=np.frombuffer(json.dumps(names).encode(), dtype=np.uint8),
        **{name: np.frombuffer(array("q", values), dtype=np.int64) for name, values in data.items()},
    )


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: None,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"PK\x03\x04 not a zip at all"),
        lambda path: path.write_text("hello"),
        lambda path: path.mkdir(),
        _truncated,
        _flipped,
        _without_a_column,
        _names_missing,
        _no_identity,
        _names_that_are_none,
        _uneven,
        _names_out_of_range,
    ],
    ids=[
        "missing", "empty", "half a zip", "text", "a folder", "truncated", "flipped bytes", "without columns",
        "without names", "no identity", "names of no kind", "uneven columns", "names out of range",
    ],
)  # fmt: skip
def test_a_file_that_is_no_history_is_refused_in_one_line(spoil, tmp_path):
    path = tmp_path / "history.npz"
    spoil(path)
    with pytest.raises(InvalidExperiment, match=r"history.npz is not a saved history") as told:
        History.load(path)
    assert "\n" not in str(told.value)
