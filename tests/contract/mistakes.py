"""Models that are wrong in one place each, to see that the comparison with PostgreSQL finds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from scheduler.jobs import LeaseRef
from scheduler.store import CancelReply, FinishReply, Outcome
from simlab.locks import Statement
from simlab.store import ModelStore, Row

__all__ = ["KeepsNoPlace", "LocksNothing", "RenewsAnything", "SweepsTooEarly"]


class RenewsAnything(ModelStore):
    """A heartbeat renews whoever's lease it is."""

    def _may_renew(self, row: Row, ref: LeaseRef) -> bool:
        return row.lease_owner is not None


class SweepsTooEarly(ModelStore):
    """A lease ends a microsecond before it does."""

    def _may_sweep(self, row: Row, now_us: int) -> bool:
        return super()._may_sweep(row, now_us + 1)


class LocksNothing(ModelStore):
    """A cancellation does not wait for a locked row."""

    def _cancel(self, job_ids: Sequence[UUID], now_us: int) -> Statement[CancelReply]:
        statement = super()._cancel(job_ids, now_us)
        while True:
            try:
                next(statement)
            except StopIteration as end:
                return end.value
        yield


class KeepsNoPlace(ModelStore):
    """A refusal is told as the row stands at the end, and not as it stood when the statement began."""

    def _finish(self, outcomes: Sequence[Outcome], now_us: int) -> Statement[FinishReply]:
        reply = yield from super()._finish(outcomes, now_us)
        results = [
            told if told.accepted else self._refusal(outcome)
            for told, outcome in zip(reply.results, outcomes, strict=True)
        ]
        return replace(reply, results=tuple(results))
