"""Faults as data: every one printable, JSON-able, checked, and refused in one line when it makes no sense."""

import json
import math
import typing
from dataclasses import MISSING, FrozenInstanceError, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.failpoints import FAILPOINTS
from simlab import faults
from simlab.errors import InvalidExperiment
from simlab.faults import (
    FAULTS,
    VERBS,
    At,
    Crash,
    Pause,
    Reached,
    ReplyLost,
    RequestLost,
    check_hosts,
    fault_from_dict,
    fault_to_dict,
)

ATS = st.builds(At, st.integers(0, 10**12))
REACHED = st.builds(Reached, st.sampled_from(FAILPOINTS), st.integers(1, 100))

VALUES: dict[str, st.SearchStrategy] = {
    "host": st.sampled_from(["w1", "w2", "client", "host with spaces", "ü"]),
    "verb": st.sampled_from(VERBS),
    "nth": st.integers(1, 1000),
    "ppm": st.integers(-500_000, 1_000_000),
    "lose": st.sampled_from(faults.LOSSES),
    "job": st.integers(0, 1000),
    "attempts": st.integers(1, 10),
    "period_us": st.integers(4, 10**12),
}


def field_values(kind: type, name: str) -> st.SearchStrategy:
    if name == "when":
        wanted = typing.get_type_hints(kind)["when"]
        return ATS if wanted is At else st.one_of(ATS, REACHED)
    if name in VALUES:
        return VALUES[name]
    assert name.endswith("_us"), f"{kind.__name__}.{name}: give its values in this test"
    if kind is Crash:
        return st.none() | st.integers(0, 10**12)
    return st.integers(1, 10**12)


def of_kind(kind: type) -> st.SearchStrategy:
    return st.builds(kind, **{field.name: field_values(kind, field.name) for field in fields(kind)})


ALL = st.one_of([of_kind(kind) for kind in FAULTS.values()])


def smallest(kind: type) -> dict[str, object]:
    """Return valid arguments for what a kind requires."""
    simple = {"host": "w1", "verb": "claim", "when": At(5), "ppm": 10, "job": 0, "period_us": 4}
    return {
        field.name: simple.get(field.name, 7)
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    }


@given(fault=ALL)
def test_a_fault_goes_through_json_and_comes_back_equal(fault):
    data = json.loads(json.dumps(fault_to_dict(fault)))
    assert fault_from_dict(data) == fault
    assert hash(fault_from_dict(data)) == hash(fault)


@given(fault=ALL)
def test_every_fault_prints_as_one_line_that_names_its_host(fault):
    text = str(fault)
    assert "\n" not in text
    assert "(" not in text, "the dataclass's own form, not a sentence"
    assert getattr(fault, "host", "") in text


@pytest.mark.parametrize("kind", FAULTS.values(), ids=FAULTS)
def test_every_kind_is_frozen_and_exported(kind):
    fault = kind(**smallest(kind))
    assert kind.__name__ in faults.__all__
    with pytest.raises(FrozenInstanceError):
        setattr(fault, fields(kind)[0].name, "w9")


def test_faults_read_as_sentences():
    assert str(Crash(host="w1", when=Reached("after_execute"), restart_after_us=20_000_000)) == (
        "w1 loses power at after_execute, back after 20 s"
    )
    assert str(Crash(host="w1", when=At(1_500_000))) == "w1 loses power at 1.5 s, never back"
    assert str(Pause(host="w2", when=Reached("after_execute", 2), for_us=90_000_000)) == (
        "w2 stands still for 90 s at after_execute number 2"
    )
    assert str(RequestLost(host="w1", verb="finish")) == "w1's finish request number 1 is lost"
    assert str(ReplyLost(host="w1", verb="claim", nth=3)) == "the reply to w1's claim number 3 is lost"


DURATIONS = [
    (kind, field.name)
    for kind in FAULTS.values()
    for field in fields(kind)
    if field.name.endswith("_us") or field.name in {"nth", "job", "attempts", "ppm"}
]


@pytest.mark.parametrize("value", [1.0, 0.5, math.nan, math.inf, True, "1", []], ids=repr)
@pytest.mark.parametrize(
    ("kind", "name"), DURATIONS, ids=[f"{kind.__name__}.{name}" for kind, name in DURATIONS]
)
def test_a_number_that_is_no_whole_number_is_refused_in_one_line(kind, name, value):
    with pytest.raises(InvalidExperiment, match=f"{name}=.*must be a whole number") as told:
        kind(**{**smallest(kind), name: value})
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, name in DURATIONS if name not in {"by_us", "ppm"}],
    ids=[f"{kind.__name__}.{name}" for kind, name in DURATIONS if name not in {"by_us", "ppm"}],
)
def test_a_negative_number_is_refused(kind, name):
    with pytest.raises(InvalidExperiment, match=f"{name}=-1: must be a whole number of at least"):
        kind(**{**smallest(kind), name: -1})


@pytest.mark.parametrize("at_us", [-1, 1.0, math.nan, True, None])
def test_an_instant_that_is_none_is_refused(at_us):
    with pytest.raises(InvalidExperiment, match=r"at_us=.*must be a whole number of at least 0"):
        At(at_us)


@pytest.mark.parametrize("nth", [0, -1, 1.0, True])
def test_a_count_of_a_failpoint_begins_at_one(nth):
    with pytest.raises(InvalidExperiment, match=r"nth=.*at least 1"):
        Reached("after_execute", nth)


def test_an_unknown_failpoint_names_those_there_are():
    with pytest.raises(
        InvalidExperiment, match="no failpoint 'after_lunch'; there are after_claim, "
    ) as told:
        Reached("after_lunch")
    assert "after_heartbeat" in str(told.value)


def test_an_unknown_verb_names_those_there_are():
    with pytest.raises(InvalidExperiment, match="no call 'select'; there are enqueue, claim"):
        RequestLost(host="w1", verb="select")


WITH_WHEN = [kind for kind in FAULTS.values() if any(field.name == "when" for field in fields(kind))]


@pytest.mark.parametrize("when", [5, "soon", None, {"at_us": 5}], ids=repr)
@pytest.mark.parametrize("kind", WITH_WHEN, ids=[kind.__name__ for kind in WITH_WHEN])
def test_a_moment_that_is_none_is_refused_and_not_silently_never_reached(kind, when):
    with pytest.raises(InvalidExperiment, match="when=") as told:
        kind(**{**smallest(kind), "when": when})
    assert "\n" not in str(told.value)


AT_ONLY = [kind for kind in WITH_WHEN if typing.get_type_hints(kind)["when"] is At]


@pytest.mark.parametrize("kind", AT_ONLY, ids=[kind.__name__ for kind in AT_ONLY])
def test_the_store_reaches_no_failpoints(kind):
    with pytest.raises(InvalidExperiment, match="when="):
        kind(**{**smallest(kind), "when": Reached("after_execute")})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"fault": "Meteor", "host": "w1"}, "unknown kind of fault 'Meteor'; there are Crash, Pause"),
        ({"host": "w1"}, "unknown kind of fault None"),
        ({"fault": ["Crash"], "host": "w1"}, r"unknown kind of fault \['Crash'\]"),
        (
            {"fault": "Crash", "host": "w1", "when": {"when": "At", "at_us": 1}, "size": 3},
            "Crash has no size; it has",
        ),
        ({"fault": "Crash", "when": {"when": "At", "at_us": 1}}, "Crash: .*missing.*'host'"),
        ({"fault": "Crash", "host": "w1"}, "Crash: .*missing.*'when'"),
        (
            {"fault": "Crash", "host": "w1", "when": {"when": "Later", "at_us": 1}},
            "unknown kind of when 'Later'",
        ),
        ({"fault": "Crash", "host": "w1", "when": {"when": "At"}}, "At: .*missing.*'at_us'"),
        ({"fault": "Crash", "host": "w1", "when": {"when": "At", "at_us": -1}}, "at_us=-1"),
        ({"fault": "Crash", "host": "w1", "when": 7}, "when="),
        ({"fault": "Pause", "host": "w1", "when": {"when": "At", "at_us": 1}, "for_us": 0}, "for_us=0"),
        ({"fault": "ReplyLost", "host": "w1", "verb": "x"}, "no call 'x'"),
    ],
)
def test_a_dict_that_is_no_fault_is_refused_in_one_line(data, says):
    with pytest.raises(InvalidExperiment, match=says) as told:
        fault_from_dict(data)
    assert "\n" not in str(told.value)


def test_reading_a_fault_leaves_the_dict_alone():
    data = fault_to_dict(Crash(host="w1", when=At(1)))
    copy = json.loads(json.dumps(data))
    fault_from_dict(data)
    assert data == copy


def test_a_plan_that_names_an_unknown_host_is_refused():
    plan = [Pause(host="w1", when=At(1), for_us=1), Crash(host="w9", when=At(1))]
    with pytest.raises(InvalidExperiment, match=r"w9 loses power .* no host 'w9'; there are w1, w2"):
        check_hosts(plan, ["w1", "w2"])
    check_hosts(plan[:1], ["w1", "w2"])
