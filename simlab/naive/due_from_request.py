"""A run time is counted from when the request was sent, as the lease is.

"Due in 5 s" was true when the database said so, which was later than the sending. By as much as the request has
travelled the job is run too early. The database's last word at the start would catch it; whoever makes this
mistake trusts the timer and does not ask.
"""

from __future__ import annotations

from scheduler.jobs import Lease
from scheduler.poller import Poller
from scheduler.postgres import Queries
from scheduler.worker import Worker
from simlab.naive.rewriting import rewritten
from simlab.scenario import Variant
from simlab.store import ModelStore, Row

__all__ = ["DUE_FROM_REQUEST", "StartsWhatIsNotDue", "without_last_word"]


class _CountsDueFromRequest(Poller):
    async def _take(self, lease: Lease, *, sent_us: int, arrived_us: int) -> None:
        del arrived_us
        await super()._take(lease, sent_us=sent_us, arrived_us=sent_us)


class _CountsFromRequest(Worker):
    poller_class = _CountsDueFromRequest


class StartsWhatIsNotDue(ModelStore):
    """A store that does not ask at the start whether the job is due."""

    def _is_due(self, row: Row, now_us: int) -> bool:
        return True


def without_last_word(queries: Queries) -> dict[str, str]:
    """Return the start that does not ask whether the job is due."""
    return {
        "start": rewritten(
            queries.start,
            (" AND mine.run_at <= now()", ""),
            ("mine.run_at > moment.db_now AS early", "false AS early"),
        )
    }


DUE_FROM_REQUEST = Variant(
    name="due-from-request",
    says="a job's run time is counted from when the claim was sent, and the start does not ask the database again",
    caught_by=("never-early",),
    worker_class=_CountsFromRequest,
    model_store=StartsWhatIsNotDue,
    rewrite=without_last_word,
)
