"""Which checks judge a run where nothing is simulated, and what is added to them.

All of the laboratory's checks judge the history but four:

- *retries-spread* is about jobs that fail together in one story; here they fail for a hundred reasons.
- *fence-holds* is about a resource that refuses old tokens; the outside world here deduplicates, or takes all.
- *healthy-keeps-lease* needs a machine that gives every process its turn; nobody promises that in real time.
- *never-two-at-once* wants handlers that stop the moment they are told; real ones take one more. *loser-stops* gives
  them that.

*one-effect* judges the jobs whose handler deduplicates. What the plain ones did twice is counted and shown: that is
what at-least-once means. *never-early* and *lateness-bounded* compare this machine's clock with the database's,
which is the same clock: the server is ours, on this machine.

Added are *workers-survive*: no worker process ends unless it was killed, or could not reach the database when it
started; *converges*: once all is healed, everything asked for is in the table and ends, within a bound; and
*something-happened*: a run that did nothing to anybody proves nothing.

A bound of time says nothing on a machine that did not give processes their turn: there it is UNKNOWN, and not
INVALID, that the bound was missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler.jobs import Job
from scheduler.policy import WorkerSettings
from simlab.checks import CHECKS, CheckResult, Evidence, Verdict, judge, overall
from simlab.effects import Effect
from simlab.history import History
from simlab.results import Result

__all__ = ["CHAOS_SETTINGS", "CONVERGE_S", "DIED", "JUDGED", "TIMED", "Turns", "judge_again", "judge_real"]

CHAOS_SETTINGS = WorkerSettings(
    concurrency=8,
    prefetch=8,
    lookahead_us=1_200_000,
    poll_interval_us=200_000,
    lease_us=3_000_000,
    heartbeat_interval_us=500_000,
    request_timeout_us=250_000,
    sweep_interval_us=250_000,
    drain_timeout_us=10_000_000,
)
"""What the workers run with: a lease short enough for many of them to be lost in a minute."""

_NOT_JUDGED = frozenset({"retries-spread", "fence-holds", "healthy-keeps-lease", "never-two-at-once"})

JUDGED = tuple(name for name in CHECKS if name not in _NOT_JUDGED)
"""The checks that judge a run, for the reasons above."""

LATE_AFTER_HEALING_US = 30_000_000
"""How late a job may begin, counted from the healing: what was leased has to expire first, workers have to
start, and what piled up has to be run."""

CONVERGE_S = 60.0
"""Within what time of the healing every job asked for must have ended."""

STARVED_MS = 250
"""A machine on which one turn came so much too late starves: a quarter of what *loser-stops* allows."""

STARVED_PERCENT = 300
"""So does one on which work took, all in all, so long for what an idle one needs."""

DIED = "died: "
"""How the incident begins that tells of a worker's end for which nobody was the cause."""

TIMED = frozenset({"lateness-bounded", "loser-stops", "converges"})
"""The checks that a slow machine alone can make fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """How the machine shared itself out during a run, as a :class:`~simlab.chaos.starvation.StarvationWatch` saw it.

    Attributes
    ----------
    late_ms
        How late, in milliseconds, the latest turn was.
    percent
        How long work took, in percent of what it takes on an idle machine.
    """

    late_ms: int
    percent: int

    @property
    def starved(self) -> bool:
        """Whether what came too late on this machine says nothing about the scheduler."""
        return self.late_ms >= STARVED_MS or self.percent >= STARVED_PERCENT


def judge_real(
    history: History,
    table: Sequence[Job],
    effects: Sequence[Effect],
    *,
    converged: bool,
    turns: Turns,
) -> list[CheckResult]:
    """Judge a history of real processes by the simulation's checks, as far as they apply, and by three more.

    Parameters
    ----------
    converged
        Whether everything that was asked for had ended within `CONVERGE_S` of the healing.
    turns
        How the machine shared itself out.
    """
    whole = Evidence(
        history, table, effects, settings=CHAOS_SETTINGS, lateness_bound_us=LATE_AFTER_HEALING_US
    )
    # Only a job whose handler deduplicates is promised one effect.
    promised = [row for row in table if row.payload.get("idempotent")]
    ids = {row.job_id for row in promised}
    deduplicated = Evidence(
        history, promised, [effect for effect in effects if effect.job_id in ids], settings=CHAOS_SETTINGS
    )
    checks = [judge(deduplicated if name == "one-effect" else whole, [name])[0] for name in JUDGED]
    checks += [_workers_survive(whole), _converges(converged=converged), _something_happened(whole)]
    timed = set(TIMED)
    if whole.by_job.keys() <= {row.job_id for row in table}:
        # None is lost; one that has not ended yet may be late.
        timed.add("all-end")
    return [_allowing_for_starvation(check, turns) if check.name in timed else check for check in checks]


def judge_again(result: Result) -> Result:
    """Judge a run of chaos from what was saved of it, as if it had just ended."""
    checks = judge_real(
        result.history,
        result.table,
        result.effects,
        converged=result.params["converged_ms"] >= 0,
        turns=Turns(late_ms=result.params["turn_late_ms"], percent=result.params["slowdown_percent"]),
    )
    return replace(result, checks=tuple(checks), verdict=overall(checks))


def _allowing_for_starvation(check: CheckResult, turns: Turns) -> CheckResult:
    if check.verdict is not Verdict.INVALID or not turns.starved:
        return check
    return replace(
        check,
        verdict=Verdict.UNKNOWN,
        says=(
            f"{check.says}; but this machine starved its processes: one waited {turns.late_ms} ms for its turn, and "
            f"work took {turns.percent} % of the time it takes on an idle machine"
        ),
    )


def _workers_survive(evidence: Evidence) -> CheckResult:
    deaths = [
        (index, event)
        for index, event in enumerate(evidence.events)
        if event.kind == "fault" and event.detail.startswith(DIED)
    ]
    if not deaths:
        return CheckResult(name="workers-survive", verdict=Verdict.VALID)
    more = f" (and {len(deaths) - 1} more)" if len(deaths) > 1 else ""
    return CheckResult(
        name="workers-survive",
        verdict=Verdict.INVALID,
        says=f"{deaths[0][1].host} {deaths[0][1].detail}{more}",
        offending=tuple(index for index, _ in deaths),
    )


def _converges(*, converged: bool) -> CheckResult:
    return CheckResult(
        name="converges",
        verdict=Verdict.VALID if converged else Verdict.INVALID,
        says="" if converged else f"not everything had ended {CONVERGE_S:g} s after all was healed",
    )


def _something_happened(evidence: Evidence) -> CheckResult:
    struck = sum(event.kind == "fault" for event in evidence.events)
    executed = sum(event.kind == "executing" for event in evidence.events)
    # The healing is noted as an incident, too, and it is none.
    if struck > 1 and executed:
        return CheckResult(name="something-happened", verdict=Verdict.VALID)
    return CheckResult(
        name="something-happened",
        verdict=Verdict.UNKNOWN,
        says=f"{max(0, struck - 1)} incidents and {executed} executions: let it go on for longer",
    )
