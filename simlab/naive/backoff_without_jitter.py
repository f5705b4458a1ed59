"""Backoff without jitter: what failed together waits equally long, and comes back together.

A dependency that has just got up is knocked down again by everyone at once ("Exponential Backoff And
Jitter", AWS Architecture Blog, 2015).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scheduler.held import Abort, HeldJob
from scheduler.policy import backoff_us
from scheduler.pool import Pool
from scheduler.store import Outcome, OutcomeKind
from scheduler.worker import Worker
from simlab.scenario import Variant

__all__ = ["BACKOFF_WITHOUT_JITTER"]


class _Longest:
    """A stream with no chance in it: always the most there is."""

    def randint(self, _a: int, b: int, /) -> int:
        return b

    def getrandbits(self, k: int, /) -> int:
        return (1 << k) - 1


class _NoJitter(Pool):
    def _outcome(self, job: HeldJob, run: Any) -> Outcome:
        outcome = super()._outcome(job, run)
        if outcome.kind is not OutcomeKind.RETRY or job.abort is Abort.DRAIN:
            return outcome
        retry = self._app.definition(job.lease.task).retry
        return replace(outcome, delay_us=backoff_us(retry, job.lease.attempt, _Longest()))


class _NoJitterWorker(Worker):
    pool_class = _NoJitter


BACKOFF_WITHOUT_JITTER = Variant(
    name="backoff-without-jitter",
    says="the pause before a retry is exponential and the same for everyone",
    caught_by=("retries-spread",),
    worker_class=_NoJitterWorker,
)
