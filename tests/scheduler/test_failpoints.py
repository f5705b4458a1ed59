"""Failpoints: named places, set from the environment, that kill at the time asked for."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from scheduler.errors import InvalidSetting
from scheduler.failpoints import ENVIRONMENT, FAILPOINTS, from_environment


@pytest.mark.parametrize("environment", [{}, {ENVIRONMENT: ""}, {ENVIRONMENT: "  "}])
def test_none_is_set_by_default(environment: dict[str, str]) -> None:
    assert from_environment(environment) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("at_lunch=kill", "no failpoint 'at_lunch'; there are after_claim, "),
        ("after_claim", "write NAME=kill or NAME=kill@COUNT"),
        ("after_claim=pause", "write NAME=kill or NAME=kill@COUNT"),
        ("after_claim=kill@0", "COUNT at least 1"),
        ("after_claim=kill@-1", "COUNT at least 1"),
        ("after_claim=kill@x", "COUNT at least 1"),
        ("after_claim=kill,", "no failpoint ''"),
    ],
)
def test_a_setting_that_does_not_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        from_environment({ENVIRONMENT: text})
    assert message in str(caught.value)


@pytest.mark.parametrize("name", FAILPOINTS)
def test_a_failpoint_kills_at_its_place_and_time_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    failpoint = from_environment({ENVIRONMENT: f" {name}=kill@2 "})
    assert failpoint is not None

    async def story() -> None:
        for other in FAILPOINTS:
            if other != name:
                await failpoint(other, None)
        await failpoint(name, None)
        assert sent == []
        await failpoint(name, None)
        assert sent == [(os.getpid(), signal.SIGKILL)]
        await failpoint(name, None)

    asyncio.run(story())
    assert len(sent) == 1


def test_several_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
    failpoint = from_environment({ENVIRONMENT: "after_claim=kill, before_start=kill@1"})
    assert failpoint is not None

    async def story() -> None:
        await failpoint("after_claim", None)
        await failpoint("before_start", None)

    asyncio.run(story())
    assert len(sent) == 2
