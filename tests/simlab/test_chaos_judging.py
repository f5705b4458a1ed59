"""The judge of real runs has teeth: evidence with one thing wrong in it makes the check of that name say INVALID.

The evidence is what a run leaves: lines of the audit, of the journals, effects, and the table. Each case tells the
story of one good job, and spoils it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from scheduler.jobs import Job, JobState
from simlab.chaos.audit import AuditLine, Incident, JournalLine, Story, build_history, read_journals, rebased
from simlab.chaos.judging import CHAOS_SETTINGS, DIED, TIMED, Turns, judge_real
from simlab.checks import CheckResult, Verdict, overall
from simlab.effects import Effect
from simlab.hosts import EPOCH_US

START_US = 1_800_000_000_000_000
SECOND_US = 1_000_000
LEASE_US = CHAOS_SETTINGS.lease_us
QUIET = Turns(late_ms=5, percent=110)
STARVING = Turns(late_ms=5, percent=900)


def instant(us: int | None) -> str | None:
    """Write an instant of the story as PostgreSQL's JSON does."""
    return None if us is None else datetime.fromtimestamp((START_US + us) / 1e6, tz=UTC).isoformat()


class Tale:
    """Writes down what a scheduler does to jobs, right or wrong; instants in microseconds from the start."""

    def __init__(self) -> None:
        self.audit: list[AuditLine] = []
        self.journal: list[JournalLine] = []
        self.effects: list[tuple[int, Effect]] = []
        self.incidents = [
            Incident(at_us=START_US, host="database", detail="2 of 4 connections are terminated", for_us=0),
            Incident(at_us=START_US + SECOND_US // 10, host="database", detail="everything is healed"),
        ]
        self.acknowledged: dict[UUID, int] = {}
        self.rows: dict[UUID, dict[str, Any]] = {}
        self.payloads: dict[UUID, dict[str, Any]] = {}

    def change(self, at_us: int, writer: str, job: UUID, **columns: Any) -> None:
        """Change a row, or insert it."""
        old = self.rows.get(job, {})
        new = {**old, **columns}
        self.rows[job] = new
        self.audit.append(
            AuditLine(
                seq=len(self.audit) + 1,
                at_us=START_US + at_us,
                now_us=START_US + at_us,
                writer=writer,
                job=job,
                old=old,
                new=new,
            )
        )

    def enqueue(self, n: int, *, at_us: int = 0, due_us: int = 0) -> UUID:
        job = UUID(int=n)
        self.payloads[job] = {"n": n, "idempotent": True}
        self.change(
            at_us, "client", job, task="work", state="PENDING", run_at=instant(due_us), attempt=0, max_attempts=5,
            expires_at=None, lease_owner=None, lease_token=0, lease_expires_at=None, idempotency_key=f"key-{n}",
            cancel_requested=False, last_error=None, created_at=instant(at_us), finished_at=None,
        )  # fmt: skip
        self.acknowledged[job] = START_US + at_us
        return job

    def claim(self, at_us: int, worker: str, job: UUID, *, token: int | None = None) -> int:
        row = self.rows[job]
        token = row["lease_token"] + 1 if token is None else token
        self.change(
            at_us, worker, job, state="CLAIMED", attempt=row["attempt"] + 1, lease_token=token,
            lease_owner=f"{worker}/boot", lease_expires_at=instant(at_us + LEASE_US), finished_at=None,
        )  # fmt: skip
        return token

    def start(self, at_us: int, worker: str, job: UUID, token: int) -> None:
        self.change(at_us, worker, job, state="RUNNING")
        self.note(at_us + 1000, worker, "executing", job, token)

    def note(self, at_us: int, worker: str, kind: str, job: UUID, token: int) -> None:
        row = self.rows[job]
        due_us = round(datetime.fromisoformat(row["run_at"]).timestamp() * 1e6)
        self.journal.append(
            JournalLine(
                at_us=START_US + at_us, writer=worker, kind=kind, job=job, token=token, attempt=row["attempt"],
                due_us=due_us,
            )
        )  # fmt: skip

    def effect(self, at_us: int, worker: str, job: UUID, token: int) -> None:
        us = START_US + at_us
        self.effects.append((us, Effect(job_id=job, token=token, host=worker.partition(".")[0], at_us=us)))

    def finish(self, at_us: int, worker: str, job: UUID, token: int, *, state: str = "SUCCEEDED") -> None:
        self.note(at_us - 1000, worker, "executed", job, token)
        self.change(
            at_us, worker, job, state=state, lease_owner=None, lease_expires_at=None,
            finished_at=None if state == "PENDING" else instant(at_us),
        )  # fmt: skip

    def run(self, worker: str, job: UUID, *, from_us: int) -> int:
        """Tell a whole good execution, a second long."""
        token = self.claim(from_us, worker, job)
        self.start(from_us + 10_000, worker, job, token)
        self.effect(from_us + SECOND_US // 2, worker, job, token)
        self.finish(from_us + SECOND_US, worker, job, token)
        return token

    def table(self) -> list[Job]:
        def us(text: str | None) -> int | None:
            return None if text is None else round(datetime.fromisoformat(text).timestamp() * 1e6)

        return [
            rebased(
                Job(
                    job_id=job,
                    payload=self.payloads[job],
                    state=JobState(row["state"]),
                    run_at_us=us(row["run_at"]) or 0,
                    created_at_us=us(row["created_at"]) or 0,
                    expires_at_us=us(row["expires_at"]),
                    lease_expires_at_us=us(row["lease_expires_at"]),
                    finished_at_us=us(row["finished_at"]),
                    **{
                        name: row[name]
                        for name in (
                            "task", "attempt", "max_attempts", "lease_owner", "lease_token", "idempotency_key",
                            "cancel_requested", "last_error",
                        )
                    },
                ),
                START_US,
            )
            for job, row in self.rows.items()
        ]  # fmt: skip

    def judged(self, *, converged: bool = True, turns: Turns = QUIET) -> dict[str, CheckResult]:
        history = build_history(
            Story(
                start_us=START_US,
                audit=self.audit,
                journal=self.journal,
                incidents=self.incidents,
                effects=self.effects,
                acknowledged=self.acknowledged,
            )
        )
        effects = [replace(one, at_us=one.at_us - START_US + EPOCH_US) for _, one in self.effects]
        checks = judge_real(history, self.table(), effects, converged=converged, turns=turns)
        return {check.name: check for check in checks}


def invalid(checks: dict[str, CheckResult]) -> set[str]:
    return {name for name, check in checks.items() if check.verdict is Verdict.INVALID}


def good() -> tuple[Tale, UUID, int]:
    """Tell of two jobs that end well; return the first, and the token under which it did."""
    tale = Tale()
    job, other = tale.enqueue(1), tale.enqueue(2)
    tale.run("w2.0", other, from_us=SECOND_US)
    return tale, job, tale.run("w1.0", job, from_us=SECOND_US)


def test_a_good_story_is_valid() -> None:
    """Two workers, two jobs, nothing wrong; and a job that a killed worker leaves behind is nothing wrong either."""
    tale, _, _ = good()
    left = tale.enqueue(3)
    first = tale.claim(SECOND_US, "w1.0", left)
    tale.start(SECOND_US + 10_000, "w1.0", left, first)
    tale.incidents.append(Incident(at_us=START_US + 2 * SECOND_US, host="w1", detail="crash"))
    expired = "the lease expired: the worker died, or could not be heard"
    tale.change(
        5 * SECOND_US,
        "w2.0",
        left,
        state="PENDING",
        lease_owner=None,
        lease_expires_at=None,
        last_error=expired,
    )
    tale.run("w2.0", left, from_us=6 * SECOND_US)
    checks = tale.judged()
    assert invalid(checks) == set()
    assert overall(checks.values()) is Verdict.VALID


def two_owners(tale: Tale, job: UUID, token: int) -> None:
    third = tale.enqueue(3)
    tale.claim(SECOND_US, "w1.0", third)
    tale.run("w2.0", third, from_us=2 * SECOND_US)


def token_goes_back(tale: Tale, job: UUID, token: int) -> None:
    third = tale.enqueue(3)
    tale.claim(SECOND_US, "w1.0", third, token=7)
    tale.run("w2.0", third, from_us=9 * SECOND_US)
    tale.change(11 * SECOND_US, "w2.0", third, state="PENDING", finished_at=None, attempt=0)
    tale.claim(12 * SECOND_US, "w1.0", third, token=6)


def lost_for_good(tale: Tale, job: UUID, token: int) -> None:
    """The client was told of a job that no line of the audit knows: lost with the server."""
    tale.acknowledged[UUID(int=9)] = START_US + SECOND_US


def never_ends(tale: Tale, job: UUID, token: int) -> None:
    tale.enqueue(3)


def changed_twice(tale: Tale, job: UUID, token: int) -> None:
    tale.effect(3 * SECOND_US, "w2.0", job, token)


def stale_finish(tale: Tale, job: UUID, token: int) -> None:
    """A worker that stood still writes its outcome over the one of its successor, which is at work."""
    third = tale.enqueue(3)
    old = tale.claim(SECOND_US, "w1.0", third)
    tale.start(SECOND_US + 10_000, "w1.0", third, old)
    new = tale.claim(5 * SECOND_US, "w2.0", third)
    tale.start(5 * SECOND_US + 10_000, "w2.0", third, new)
    tale.effect(6 * SECOND_US, "w2.0", third, new)
    tale.finish(6 * SECOND_US, "w1.0", third, old)
    tale.note(6 * SECOND_US, "w2.0", "aborted", third, new)


def stranger_renews(tale: Tale, job: UUID, token: int) -> None:
    third = tale.enqueue(3)
    mine = tale.claim(SECOND_US, "w1.0", third)
    tale.start(SECOND_US + 10_000, "w1.0", third, mine)
    tale.change(2 * SECOND_US, "w2.0", third, lease_expires_at=instant(9 * SECOND_US))
    tale.effect(2 * SECOND_US, "w1.0", third, mine)
    tale.finish(3 * SECOND_US, "w1.0", third, mine)


def rises_from_the_dead(tale: Tale, job: UUID, token: int) -> None:
    tale.run("w2.0", job, from_us=8 * SECOND_US)
    tale.effects.pop()


def begins_early(tale: Tale, job: UUID, token: int) -> None:
    tale.run("w1.0", tale.enqueue(3, due_us=5 * SECOND_US), from_us=SECOND_US)


def runs_without_a_claim(tale: Tale, job: UUID, token: int) -> None:
    tale.note(4 * SECOND_US, "w2.0", "executing", job, token)
    tale.note(4 * SECOND_US + 1, "w2.0", "executed", job, token)


def runs_though_cancelled(tale: Tale, job: UUID, token: int) -> None:
    third = tale.enqueue(3)
    mine = tale.claim(SECOND_US, "w1.0", third)
    tale.change(
        SECOND_US + 1, "client", third, state="CANCELLED", cancel_requested=True, lease_owner=None,
        lease_expires_at=None, finished_at=instant(SECOND_US + 1),
    )  # fmt: skip
    tale.note(2 * SECOND_US, "w1.0", "executing", third, mine)
    tale.note(2 * SECOND_US + 1, "w1.0", "executed", third, mine)


def dead_too_soon(tale: Tale, job: UUID, token: int) -> None:
    third = tale.enqueue(3)
    mine = tale.claim(SECOND_US, "w1.0", third)
    tale.start(SECOND_US + 10_000, "w1.0", third, mine)
    tale.finish(2 * SECOND_US, "w1.0", third, mine, state="FAILED")


def runs_leaseless(tale: Tale, job: UUID, token: int) -> None:
    third = tale.enqueue(3)
    tale.claim(SECOND_US, "w1.0", third)
    tale.change(2 * SECOND_US, "w1.0", third, lease_owner=None)


def asked_once_inserted_twice(tale: Tale, job: UUID, token: int) -> None:
    third = tale.enqueue(3)
    tale.payloads[third] = tale.payloads[job]
    tale.run("w1.0", third, from_us=3 * SECOND_US)


def loser_goes_on(tale: Tale, job: UUID, token: int) -> None:
    third = tale.enqueue(3)
    old = tale.claim(SECOND_US, "w1.0", third)
    tale.start(SECOND_US + 10_000, "w1.0", third, old)
    tale.run("w2.0", third, from_us=6 * SECOND_US)
    tale.note(12 * SECOND_US, "w1.0", "aborted", third, old)


def begins_very_late(tale: Tale, job: UUID, token: int) -> None:
    tale.run("w1.0", tale.enqueue(3), from_us=100 * SECOND_US)


def more_handlers_than_slots(tale: Tale, job: UUID, token: int) -> None:
    many = [tale.enqueue(n) for n in range(10, 10 + CHAOS_SETTINGS.concurrency + 1)]
    tokens = [tale.claim(SECOND_US, "w3.0", one) for one in many]
    for one, mine in zip(many, tokens, strict=True):
        tale.start(2 * SECOND_US, "w3.0", one, mine)
        tale.effect(2 * SECOND_US + 2000, "w3.0", one, mine)
    for one, mine in zip(many, tokens, strict=True):
        tale.finish(3 * SECOND_US, "w3.0", one, mine)


def dies(tale: Tale, job: UUID, token: int) -> None:
    incident = Incident(at_us=START_US + 4 * SECOND_US, host="w1", detail=f"{DIED}exit 1: KeyError")
    tale.incidents.append(incident)


CASES: Sequence[tuple[str, Callable[[Tale, UUID, int], None]]] = (
    ("one-live-lease", two_owners),
    ("token-rises", token_goes_back),
    ("all-end", lost_for_good),
    ("all-end", never_ends),
    ("one-effect", changed_twice),
    ("no-stale-write", stale_finish),
    ("no-stale-write", stranger_renews),
    ("terminal-absorbs", rises_from_the_dead),
    ("never-early", begins_early),
    ("attempts-bounded", runs_without_a_claim),
    ("cancelled-never-runs", runs_though_cancelled),
    ("dead-letters-earned", dead_too_soon),
    ("running-is-leased", runs_leaseless),
    ("one-job-per-request", asked_once_inserted_twice),
    ("loser-stops", loser_goes_on),
    ("lateness-bounded", begins_very_late),
    ("slots-bounded", more_handlers_than_slots),
    ("workers-survive", dies),
)


@pytest.mark.parametrize(("check", "spoil"), CASES, ids=[spoil.__name__ for _, spoil in CASES])
def test_what_is_wrong_is_found_by_its_check(check: str, spoil: Callable[[Tale, UUID, int], None]) -> None:
    tale, job, token = good()
    assert invalid(tale.judged()) == set()
    spoil(tale, job, token)
    checks = tale.judged()
    assert check in invalid(checks)
    assert checks[check].says


@pytest.mark.parametrize(("check", "spoil"), CASES, ids=[spoil.__name__ for _, spoil in CASES])
def test_starvation_excuses_what_came_late_and_nothing_else(
    check: str, spoil: Callable[[Tale, UUID, int], None]
) -> None:
    tale, job, token = good()
    spoil(tale, job, token)
    found = tale.judged(turns=STARVING)[check]
    excused = check in TIMED or spoil is never_ends
    assert found.verdict is (Verdict.UNKNOWN if excused else Verdict.INVALID)
    assert not excused or "starved" in found.says


def test_a_plain_handler_may_change_the_world_twice() -> None:
    """At-least-once: only who deduplicates is promised one effect."""
    tale, job, token = good()
    tale.payloads[job]["idempotent"] = False
    changed_twice(tale, job, token)
    assert invalid(tale.judged()) == set()


@pytest.mark.parametrize(("turns", "verdict"), [(QUIET, Verdict.INVALID), (STARVING, Verdict.UNKNOWN)])
def test_a_run_that_does_not_converge_is_not_valid(turns: Turns, verdict: Verdict) -> None:
    tale, _, _ = good()
    assert tale.judged(converged=False, turns=turns)["converges"].verdict is verdict


def test_a_run_in_which_nothing_happened_proves_nothing() -> None:
    tale, _, _ = good()
    del tale.incidents[0]
    found = tale.judged()["something-happened"]
    assert found.verdict is Verdict.UNKNOWN
    assert "0 incidents" in found.says


def test_one_late_turn_is_starvation_too() -> None:
    assert Turns(late_ms=1000, percent=100).starved
    assert not QUIET.starved


def test_a_journal_that_ends_in_the_middle_of_a_line_loses_that_line_only(tmp_path: Path) -> None:
    words = f"{START_US} executing {UUID(int=1)} 3 2 {START_US - 5}"
    (tmp_path / "w1.4.journal").write_text(f"{words}\n{words[:30]}")
    assert read_journals(tmp_path) == [
        JournalLine(
            at_us=START_US,
            writer="w1.4",
            kind="executing",
            job=UUID(int=1),
            token=3,
            attempt=2,
            due_us=START_US - 5,
        )
    ]
