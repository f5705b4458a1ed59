"""The reply to an outcome is lost: it is written, and the worker cannot know.

It writes the same outcome again until it is answered. The store finds that under this very token the row stands as
the outcome leaves it, and says so: recovered, not refused, and not written twice. For a retry the moment in between is
the dangerous one: the job is free again, and when the second try comes somebody else may have it already.
"""

from __future__ import annotations

from scheduler.app import Client
from scheduler.policy import Retry, WorkerSettings
from simlab.faults import Fault, HandlerRaises, ReplyLost
from simlab.naive.unguarded_finish import UNGUARDED_FINISH
from simlab.naive.unguarded_retry import UNGUARDED_RETRY
from simlab.scenario import Scenario, Sizes
from simlab.scenarios.common import SECOND_US, Treatment, add_client, add_workers, jobs_due
from simlab.world import World

__all__ = ["SCENARIO"]

# A lost reply is missed after 2.5 s, and the outcome written again a second later: the pause before the next
# attempt, half of this or more, ends sooner or later than that.
TREATMENT = Treatment(retry=Retry(base_us=4 * SECOND_US))
CONCURRENCY = 2
SERVICE_US = (200_000, 3 * SECOND_US)


def _faults(sizes: Sizes) -> tuple[Fault, ...]:
    # Every other reply for the first few outcomes of each worker; and every third job fails at first.
    hosts = [f"w{number}" for number in range(1, sizes["n_workers"] + 1)]
    return (
        *(
            ReplyLost(host=host, verb="finish", nth=2 * n + 1)
            for host in hosts
            for n in range(sizes["n_lost"])
        ),
        *(HandlerRaises(job=n) for n in range(0, sizes["n_jobs"], 3)),
    )


def _build(world: World, sizes: Sizes, settings: WorkerSettings) -> None:
    async def load(client: Client) -> None:
        due_us = (2 * SECOND_US, (10 + sizes["n_jobs"]) * SECOND_US)
        await client.enqueue_many(jobs_due(world, sizes["n_jobs"], due_us=due_us, service_us=SERVICE_US))

    add_workers(world, sizes["n_workers"], settings, TREATMENT)
    add_client(world, load, TREATMENT)


def _held_up_us(sizes: Sizes) -> int:
    """Return for how long lost replies can keep a worker's slots busy."""
    return sizes["n_lost"] * 4 * SECOND_US


SCENARIO = Scenario(
    name="reply-lost-finish",
    teaches="how an outcome is written until it is answered: the second time is recognised by its token",
    sizes={"n_jobs": 12, "n_workers": 2, "n_lost": 3},
    settings=WorkerSettings(concurrency=CONCURRENCY, prefetch=2),
    faults=_faults,
    build=_build,
    until_us=lambda sizes: (60 + 3 * sizes["n_jobs"]) * SECOND_US + _held_up_us(sizes),
    lateness_bound_us=lambda sizes: (10 + sizes["n_jobs"]) * SECOND_US + _held_up_us(sizes),
    variants=(UNGUARDED_FINISH, UNGUARDED_RETRY),
)
