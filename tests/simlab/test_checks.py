"""Each check fires on a history made to break its invariant, and keeps quiet on the close neighbour."""

from dataclasses import replace
from typing import Any

import pytest

from scheduler.jobs import Job, JobState
from scheduler.policy import WorkerSettings
from simlab.checks import CHECKS, CheckResult, Evidence, Verdict, judge, overall
from simlab.effects import Effect
from simlab.history import History
from simlab.hosts import EPOCH_US
from tests.simlab.bench import MS, SECOND, job_id

ONE = job_id(1)


def row(number: int = 1, state: JobState = JobState.SUCCEEDED, **fields: Any) -> Job:
    values: dict[str, Any] = {
        "job_id": job_id(number),
        "task": "work",
        "payload": {},
        "run_at_us": EPOCH_US,
        "state": state,
        "attempt": 1,
        "max_attempts": 3,
        "expires_at_us": None,
        "lease_owner": None,
        "lease_token": 1,
        "lease_expires_at_us": None,
        "idempotency_key": None,
        "cancel_requested": False,
        "last_error": None,
        "created_at_us": EPOCH_US,
        "finished_at_us": EPOCH_US + 10 * SECOND,
    }
    return Job(**{**values, **fields})


class Tale:
    """A fabricated run: events at seconds, by hosts, about job 1 unless said otherwise."""

    def __init__(self, **bounds: Any) -> None:
        self.history = History()
        self.effects: list[Effect] = []
        self.rows: list[Job] | None = None
        self.bounds = bounds

    def says(self, kind: str, at_s: float, host: str = "w1", **fields: Any) -> "Tale":
        number = fields.pop("job", 1)
        for name in ("due_s", "until_s"):
            if name in fields:
                fields[f"{name[:-2]}_us"] = EPOCH_US + round(fields.pop(name) * SECOND)
        at_us = round(at_s * SECOND)
        self.history.record(
            kind,
            time_us=at_us,
            db_us=EPOCH_US + round(fields.pop("db_s", at_s) * SECOND),
            host=host,
            incarnation=fields.pop("incarnation", 1),
            job=None if number is None else job_id(number),
            **fields,
        )
        return self

    def enqueued(self, at_s: float = 0, **fields: Any) -> "Tale":
        return self.says("enqueued", at_s, "client", **{"due_s": at_s, **fields})

    def claimed(self, at_s: float, host: str = "w1", *, token: int = 1, **fields: Any) -> "Tale":
        until_s = fields.pop("until_s", at_s + 60)
        return self.says("claimed", at_s, host, token=token, attempt=token, until_s=until_s, **fields)

    def ran(self, at_s: float, host: str = "w1", *, token: int = 1, **fields: Any) -> "Tale":
        self.says("started", at_s, host, token=token, **fields)
        return self.says("executing", at_s, host, token=token, **{"due_s": 0, **fields})

    def finished(self, at_s: float, host: str = "w1", *, token: int = 1, **fields: Any) -> "Tale":
        return self.says(
            "finished", at_s, host, token=token, **{"detail": "succeeded to SUCCEEDED", **fields}
        )

    def swept(
        self, at_s: float, host: str = "w2", *, token: int = 1, detail: str = "RUNNING to PENDING"
    ) -> "Tale":
        return self.says("swept", at_s, host, token=token, detail=detail)

    def effect(self, at_s: float, host: str = "w1", *, token: int = 1, job: int = 1) -> "Tale":
        self.effects.append(
            Effect(job_id=job_id(job), token=token, host=host, at_us=EPOCH_US + round(at_s * SECOND))
        )
        return self.says("effect", at_s, host, token=token, job=job)

    def table(self, *rows: Job) -> "Tale":
        self.rows = list(rows)
        return self

    def judged(self, name: str) -> CheckResult:
        rows = self.rows if self.rows is not None else [row()]
        (result,) = judge(Evidence(self.history, rows, self.effects, **self.bounds), [name])
        return result


def plain() -> Tale:
    """Return a job's whole and healthy life."""
    tale = Tale().enqueued().claimed(1).ran(2)
    return tale.effect(3).says("executed", 3, token=1).finished(4)


# Each case: the check, a history that breaks it, the events it must name, what it must say, and the neighbour.

LONG = WorkerSettings(concurrency=1)
CASES = {
    "one-live-lease": (
        lambda: Tale().enqueued().claimed(1).claimed(60.9, "w2", token=2),
        (1, 2),
        "was leased to w2 (token 2) while the lease of w1 (token 1) had 0.1 s to run",
        lambda: Tale().enqueued().claimed(1).claimed(61, "w2", token=2),
    ),
    "one-live-lease, renewed": (
        lambda: Tale().enqueued().claimed(1).says("renewed", 15, token=1, until_s=75).claimed(61, "w2", token=2),
        (1, 3),
        "had 14 s to run",
        lambda: Tale().enqueued().claimed(1).says("renewed", 15, token=1, until_s=75).claimed(75, "w2", token=2),
    ),
    "one-live-lease, swept early": (
        lambda: Tale().enqueued().claimed(1).swept(60.5),
        (1, 2),
        "w2 swept job 00000000 from w1 (token 1), whose lease had 0.5 s to run",
        lambda: Tale().enqueued().claimed(1).swept(61),
    ),
    "one-live-lease, lost cancellation": (
        lambda: Tale().enqueued().claimed(1).says("cancelled", 5, detail="requested").claimed(6, "w2", token=2),
        (1, 3),
        "had 55 s to run",
        lambda: Tale().enqueued().claimed(1).says("cancelled", 5, detail="cancelled").claimed(6, "w2", token=2),
    ),
    "token-rises": (
        lambda: Tale().enqueued().claimed(1, token=2).finished(2, token=2, detail="retry to PENDING").claimed(3, token=2),
        (1, 3),
        "was claimed with token 2 after token 2",
        lambda: Tale().enqueued().claimed(1, token=2).finished(2, token=2, detail="retry to PENDING").claimed(3, token=3),
    ),
    "token-rises, from nothing": (
        lambda: Tale().enqueued().claimed(1, token=0),
        (1,),
        "token 0 after token 0",
        lambda: Tale().enqueued().claimed(1, token=1),
    ),
    "no-stale-write": (
        lambda: plain().claimed(70, "w2", token=2).finished(71, "w1", token=1),
        (7, 8),
        "w1 wrote 'finished' to job 00000000 with token 1, though the job was held by token 2",
        lambda: plain().claimed(70, "w2", token=2).says("rejected", 71, "w1", token=1, detail="finish (succeeded)"),
    ),
    "no-stale-write, after the end": (
        lambda: Tale().enqueued().claimed(1).ran(2).swept(61).says("renewed", 62, token=1, until_s=122),
        (1, 5),
        "though the job was held by nobody",
        lambda: Tale().enqueued().claimed(1).ran(2).says("renewed", 60, token=1, until_s=120).swept(121),
    ),
    "no-stale-write, never claimed": (
        lambda: Tale().enqueued().says("started", 2, token=1),
        (1,),
        "wrote 'started'",
        lambda: Tale().enqueued().claimed(1).says("started", 2, token=1),
    ),
    "all-end": (
        lambda: plain().table(row(state=JobState.RUNNING)),
        (0, 6),
        "is still RUNNING at the end",
        lambda: plain().table(row(state=JobState.FAILED)),
    ),
    "all-end, lost": (
        lambda: plain().enqueued(5, job=2),
        (7,),
        "was acknowledged and is not in the table",
        lambda: plain().enqueued(5, job=2).table(row(), row(2)),
    ),
    "all-end, everything lost": (
        lambda: Tale().enqueued().table(),
        (0,),
        "was acknowledged and is not in the table",
        lambda: Tale().enqueued().table(row()),
    ),
    "terminal-absorbs": (
        lambda: plain().claimed(70, "w2", token=2),
        (6, 7),
        "was SUCCEEDED and became CLAIMED by 'claimed' from w2",
        lambda: plain().says("replayed", 65).claimed(70, "w2", token=2),
    ),
    "terminal-absorbs, cancelled": (
        lambda: Tale().enqueued().says("cancelled", 1, detail="cancelled").claimed(2),
        (1, 2),
        "was CANCELLED and became CLAIMED",
        lambda: Tale().enqueued().claimed(1).says("cancelled", 2, detail="requested").ran(2.5).finished(3),
    ),
    "attempts-bounded": (
        lambda: Tale().enqueued().claimed(1).claimed(61, token=2).claimed(121, token=3).claimed(181, token=4),
        (1, 2, 3, 4),
        "was claimed 4 times, at most 3 allowed",
        lambda: Tale().enqueued().claimed(1).claimed(61, token=2).claimed(121, token=3),
    ),
    "attempts-bounded, released": (
        lambda: Tale().enqueued().claimed(1).claimed(61, token=2).claimed(121, token=3)
        .finished(122, token=3, detail="retry to PENDING").claimed(181, token=4),
        (1, 2, 3, 5),
        "claimed 4 times",
        lambda: Tale().enqueued().claimed(1).claimed(61, token=2).claimed(121, token=3)
        .finished(122, token=3, detail="released to PENDING").claimed(181, token=4),
    ),
    "attempts-bounded, runs": (
        lambda: plain().says("executing", 5, token=1, due_s=0),
        (3, 7),
        "ran 2 times on 1 claims",
        lambda: plain().claimed(70, token=2).says("executing", 75, token=2, due_s=0),
    ),
    "never-early": (
        lambda: Tale().enqueued(due_s=10).claimed(1).says("executing", 9.999999, token=1, due_s=10),
        (2,),
        "began on w1 1e-06 s early",
        lambda: Tale().enqueued(due_s=10).claimed(1).says("executing", 10, token=1, due_s=10),
    ),
    "never-early, by the database": (
        lambda: Tale().enqueued(due_s=10).claimed(1).says("executing", 12, db_s=9, token=1, due_s=10),
        (2,),
        "1 s early",
        lambda: Tale().enqueued(due_s=10).claimed(1).says("executing", 9, db_s=12, token=1, due_s=10),
    ),
    "running-is-leased": (
        lambda: plain().table(row(state=JobState.RUNNING, lease_owner="w1/0")),
        (),
        "is RUNNING with owner w1/0",
        lambda: plain().table(row(state=JobState.RUNNING, lease_owner="w1/0", lease_expires_at_us=5)),
    ),
    "running-is-leased, the other way": (
        lambda: plain().table(row(lease_owner="w1/0", lease_expires_at_us=5)),
        (),
        "is SUCCEEDED with owner w1/0",
        lambda: plain().table(row()),
    ),
    "dead-letters-earned": (
        lambda: plain().table(row(state=JobState.FAILED, attempt=2)),
        (),
        "is FAILED after 2 of 3 attempts",
        lambda: plain().table(row(state=JobState.FAILED, attempt=3)),
    ),
    "dead-letters-earned, by age": (
        lambda: plain().table(row(state=JobState.FAILED, attempt=0, expires_at_us=EPOCH_US + 11 * SECOND)),
        (),
        "is FAILED after 0 of 3 attempts",
        lambda: plain().table(row(state=JobState.FAILED, attempt=0, expires_at_us=EPOCH_US + 10 * SECOND)),
    ),
    "cancelled-never-runs": (
        lambda: Tale().enqueued().claimed(1).says("cancelled", 2, "client", detail="cancelled").says("executing", 3, due_s=0),
        (2, 3),
        "ran on w1 after its cancellation had won",
        lambda: Tale().enqueued().claimed(1).says("cancelled", 2, "client", detail="requested").says("executing", 3, due_s=0),
    ),
    "too-old-never-claimed": (
        lambda: Tale().enqueued().claimed(10).finished(11).table(row(expires_at_us=EPOCH_US + 10 * SECOND)),
        (1,),
        "was claimed by w1 0 s after its age limit",
        lambda: Tale().enqueued().claimed(9.999999).finished(11).table(row(expires_at_us=EPOCH_US + 10 * SECOND)),
    ),
    "one-effect": (
        lambda: plain().effect(5, "w2", token=2),
        (4, 7),
        "is SUCCEEDED and changed the world 2 times",
        plain,
    ),
    "one-effect, none": (
        lambda: Tale().enqueued().claimed(1).ran(2).finished(4),
        (),
        "is SUCCEEDED and changed the world 0 times",
        lambda: Tale().enqueued().claimed(1).ran(2).finished(4, detail="failed to FAILED")
        .table(row(state=JobState.FAILED)),
    ),
    "fence-holds": (
        lambda: plain().effect(70, "w2", token=2).effect(71, "w1", token=1),
        (4, 7, 8),
        "changed the world with token 1 from w1 after token 2 from w2",
        lambda: plain().effect(70, "w2", token=2).effect(71, "w2", token=2).effect(72, "w1", token=1, job=2),
    ),
    "lateness-bounded": (
        lambda: Tale(lateness_bound_us=SECOND).enqueued(due_s=10).says("executing", 11.000001, due_s=10),
        (1,),
        "began 1 s late on w1; 1 s are allowed",
        lambda: Tale(lateness_bound_us=SECOND).enqueued(due_s=10).says("executing", 11, due_s=10),
    ),
    "lateness-bounded, after healing": (
        lambda: Tale(lateness_bound_us=SECOND).enqueued().says("fault", 50, job=None).says("executing", 51.5, due_s=0),
        (2,),
        "began 1.5 s late",
        lambda: Tale(lateness_bound_us=SECOND).enqueued().says("fault", 51, job=None).says("executing", 51.5, due_s=0),
    ),
    "healthy-keeps-lease": (
        lambda: Tale().enqueued().claimed(1).ran(2).swept(61),
        (1, 4),
        "w1 was well and lost job 00000000 (token 1) by expiry",
        lambda: Tale().enqueued().claimed(1).ran(2).says("fault", 30, "w1", job=None, detail="pause").swept(61),
    ),
    "healthy-keeps-lease, another's fault": (
        lambda: Tale().enqueued().claimed(1).ran(2).says("fault", 30, "w3", job=None, detail="pause").swept(61),
        (1, 5),
        "w1 was well",
        lambda: Tale().enqueued().claimed(1).ran(2).says("fault", 30, "database", job=None).swept(61),
    ),
    "loser-stops": (
        lambda: Tale().enqueued().claimed(1).ran(2).claimed(70, "w2", token=2).says("executed", 90.1, "w1", token=1),
        (3, 4, 5),
        "w1 went on with job 00000000 (token 1) for 20.1 s after it was given to w2",
        lambda: Tale().enqueued().claimed(1).ran(2).claimed(70, "w2", token=2).says("aborted", 90, "w1", token=1),
    ),
    "loser-stops, asleep": (
        lambda: Tale().enqueued().claimed(1).ran(2).says("fault", 60, "w2", job=None, detail="pause")
        .claimed(70, "w2", token=2).says("fault", 200, "w2", job=None, detail="resume")
        .says("executed", 210, "w1", token=1),
        (3, 5, 7),
        "for 140 s",
        lambda: Tale().enqueued().claimed(1).ran(2).says("fault", 60, "w1", job=None, detail="pause")
        .claimed(70, "w2", token=2).says("fault", 200, "w1", job=None, detail="resume")
        .says("executed", 210, "w1", token=1),
    ),
    "loser-stops, never ends": (
        lambda: Tale().enqueued().claimed(1).ran(2).claimed(70, "w2", token=2).says("renewed", 95, "w2", token=2),
        (3, 4, 5),
        "w1 went on with job 00000000 (token 1) for 25 s after it was given to w2",
        lambda: Tale().enqueued().claimed(1).ran(2).says("fault", 60, job=None, detail="crash")
        .claimed(70, "w2", token=2).says("renewed", 95, "w2", token=2),
    ),
    "never-two-at-once": (
        lambda: Tale().enqueued().claimed(1).ran(2).claimed(61, "w2", token=2).ran(62, "w2", token=2)
        .says("aborted", 62.5, "w1", token=1),
        (3, 6, 7),
        "job 00000000 ran on w1 (token 1) and on w2 (token 2) at the same time, for 0.5 s",
        lambda: Tale().enqueued().claimed(1).ran(2).claimed(61, "w2", token=2).says("aborted", 61.5, "w1", token=1)
        .ran(62, "w2", token=2),
    ),
    "never-two-at-once, asleep": (
        lambda: Tale().enqueued().claimed(1).ran(2).says("fault", 60, "w2", job=None, detail="pause")
        .says("fault", 61, "w2", job=None, detail="resume").ran(62, "w2", token=2).says("raised", 63, "w1", token=1),
        (3, 7, 8),
        "for 1 s",
        lambda: Tale().enqueued().claimed(1).ran(2).says("fault", 60, "w1", job=None, detail="pause")
        .says("fault", 61, "w1", job=None, detail="resume").ran(62, "w2", token=2).says("raised", 63, "w1", token=1),
    ),
    "never-two-at-once, the older begins last": (
        lambda: Tale().enqueued().claimed(1).claimed(62, "w2", token=2).ran(63, "w2", token=2).ran(64)
        .says("aborted", 65, "w1", token=1).says("executed", 67, "w2", token=2),
        (6, 4, 7),
        "for 1 s",
        lambda: Tale().enqueued().claimed(1).says("fault", 2, "w1", job=None, detail="pause")
        .claimed(62, "w2", token=2).ran(63, "w2", token=2).says("fault", 64, "w1", job=None, detail="resume").ran(64)
        .says("aborted", 65, "w1", token=1).says("executed", 67, "w2", token=2),
    ),
    "never-two-at-once, slow clock": (
        lambda: Tale().enqueued().says("fault", 0, "w2", job=None, detail="w2's clocks drift by -500 ppm at 0 s")
        .claimed(1).ran(2).ran(62, "w2", token=2).says("raised", 63, "w1", token=1),
        (4, 6, 7),
        "for 1 s",
        lambda: Tale().enqueued().says("fault", 0, "w1", job=None, detail="w1's clocks drift by -500 ppm at 0 s")
        .claimed(1).ran(2).ran(62, "w2", token=2).says("raised", 63, "w1", token=1),
    ),
    "never-two-at-once, the store's clock": (
        lambda: Tale().enqueued().claimed(1).ran(2).ran(62, "w2", token=2).says("raised", 63, "w1", token=1)
        .says("fault", 64, "database", job=None, detail="the store's clock is stepped by +90 s at 64 s"),
        (3, 5, 6),
        "for 1 s",
        lambda: Tale().enqueued().claimed(1).ran(2)
        .says("fault", 30, "database", job=None, detail="the store's clock is stepped by +90 s at 30 s")
        .ran(62, "w2", token=2).says("raised", 63, "w1", token=1),
    ),
    "one-job-per-request": (
        lambda: Tale().enqueued().enqueued(1, job=2)
        .table(row(idempotency_key="a"), row(2, idempotency_key="b")),
        (0, 1),
        "are the same request",
        lambda: Tale().enqueued().enqueued(1, job=2).table(row(idempotency_key="a"), row(2)),
    ),
    "slots-bounded": (
        lambda: Tale(settings=LONG).says("executing", 1, token=1).says("executing", 2, job=2, token=1),
        (1,),
        "w1 runs 2 handlers in 1 slots",
        lambda: Tale(settings=LONG).says("executing", 1, token=1).says("raised", 1.5, token=1)
        .says("executing", 2, job=2, token=1),
    ),
    "slots-bounded, a life of its own": (
        lambda: Tale(settings=LONG).says("executing", 1, token=1).says("executing", 2, job=2, token=1, incarnation=1),
        (1,),
        "w1 runs 2 handlers",
        lambda: Tale(settings=LONG).says("executing", 1, token=1).says("executing", 2, job=2, token=1, incarnation=2),
    ),
    "retries-spread": (
        lambda: retries(40 * [100 * MS] + 20 * [100 * SECOND]),
        None,
        "of 60 retries come due within 50 ms",
        lambda: retries([number * SECOND for number in range(60)]),
    ),
}  # fmt: skip


def retries(due_us: list[int]) -> Tale:
    tale = Tale()
    for number, at_us in enumerate(due_us, 1):
        tale.finished(1, job=number, detail="retry to PENDING", due_s=at_us / SECOND)
    return tale


@pytest.mark.parametrize("case", CASES)
def test_a_history_made_to_break_it_is_invalid_and_the_offending_events_are_named(case):
    broken, offending, says, _ = CASES[case]
    result = broken().judged(case.partition(",")[0])
    assert result.verdict is Verdict.INVALID
    assert says in result.says
    assert "\n" not in result.says
    if offending is not None:
        assert result.offending == offending


@pytest.mark.parametrize("case", CASES)
def test_its_close_neighbour_is_valid(case):
    *_, neighbour = CASES[case]
    result = neighbour().judged(case.partition(",")[0])
    assert (result.verdict, result.says, result.offending) == (Verdict.VALID, "", ())


def test_every_check_is_proved_able_to_fail():
    assert {case.partition(",")[0] for case in CASES} == set(CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_a_healthy_life_passes_every_check(name):
    tale = plain()
    tale.bounds = {"lateness_bound_us": 2 * SECOND}
    assert tale.judged(name).verdict is Verdict.VALID


@pytest.mark.parametrize("name", CHECKS)
def test_a_run_in_which_nothing_was_enqueued_is_unknown(name):
    result = Tale().says("fault", 5, job=None, detail="crash").table().judged(name)
    assert result.verdict is Verdict.UNKNOWN
    assert result.says == "no job was ever enqueued"


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_says_its_invariant_in_its_docstring(name):
    first = (CHECKS[name].__doc__ or "").strip().splitlines()[0]
    assert first.endswith(".")


def test_several_problems_are_counted_and_the_first_is_told():
    tale = plain().table(row(state=JobState.RUNNING), row(2, JobState.PENDING))
    tale.enqueued(9, job=2)
    result = tale.judged("all-end")
    assert result.says.startswith("job 00000000 is still RUNNING")
    assert result.says.endswith("(and 1 more)")


def test_all_checks_are_run_by_default_and_in_order():
    evidence = Evidence(plain().history, [row()], [])
    assert [result.name for result in judge(evidence)] == list(CHECKS)


def test_an_unknown_check_is_an_error():
    with pytest.raises(KeyError):
        judge(Evidence(plain().history, [row()], []), ["no-such-check"])


# Overall.


def of(*verdicts: Verdict) -> list[CheckResult]:
    return [CheckResult(name=str(number), verdict=verdict) for number, verdict in enumerate(verdicts)]


def test_one_invalid_check_makes_the_run_invalid_then_one_unknown_makes_it_unknown():
    valid, invalid, unknown = Verdict.VALID, Verdict.INVALID, Verdict.UNKNOWN
    assert overall(of(valid, valid)) is valid
    assert overall(of(valid, unknown)) is unknown
    assert overall(of(unknown, valid, invalid)) is invalid
    assert overall([]) is unknown, "nothing was checked"
    assert [verdict.exit_code for verdict in (valid, invalid, unknown)] == [0, 1, 2]


def test_evidence_does_not_change_what_it_is_made_of():
    tale = plain()
    before = tale.history.digest()
    judge(Evidence(tale.history, [row()], tale.effects))
    assert tale.history.digest() == before
    assert replace(row(), attempt=2).attempt == 2
