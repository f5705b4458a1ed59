"""The guard asks for the owner's name only, and a worker is called what its machine is called.

It tells two machines apart, and that seems to be all there is to tell apart. But a restarted worker has the name
of the one that died, and so has every message that the dead one had sent and the network still carries.
"""

from __future__ import annotations

from scheduler.jobs import LeaseRef
from scheduler.postgres import Queries
from scheduler.worker import Worker
from simlab.naive.rewriting import rewritten, rewritten_everywhere
from simlab.scenario import Variant
from simlab.store import ModelStore, Row

__all__ = ["OWNER_NAME_AS_TOKEN"]


class _PlainNameWorker(Worker):
    def _make_owner(self, name: str) -> str:
        return name


class _GuardedByName(ModelStore):
    def _holds(self, row: Row, ref: LeaseRef) -> bool:
        return row.lease_owner == ref.owner


_GUARD = " AND job.lease_owner = asked.owner AND job.lease_token = asked.token"
_BY_NAME = " AND job.lease_owner = asked.owner"


def _by_name(queries: Queries) -> dict[str, str]:
    return {
        "start": rewritten(queries.start, (_GUARD, _BY_NAME)),
        # In the renewal, and in the answer for rows that could not be renewed.
        "heartbeat": rewritten_everywhere(queries.heartbeat, _GUARD, _BY_NAME, times=2),
        "finish": rewritten(queries.finish, (_GUARD, _BY_NAME)),
    }


OWNER_NAME_AS_TOKEN = Variant(
    name="owner-name-as-token",
    says="a write is guarded by the worker's name alone, and a restarted worker has the same name",
    caught_by=("no-stale-write",),
    model_store=_GuardedByName,
    rewrite=_by_name,
    worker_class=_PlainNameWorker,
)
