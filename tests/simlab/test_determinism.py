"""Same scenario, same seed, same digest: twice here, elsewhere, under other hash seeds, on both stores."""

import json
import os
import random
import subprocess
import sys

import pytest

from simlab import simulate
from simlab.faults import At, Crash, Pause, ReplyLost, RequestLost
from simlab.pgserver import PostgresServer

CRASH = "crash-after-execution"

PLANS = {
    "its own": None,
    "none": (),
    "mixed": (
        RequestLost(host="w1", verb="start"),
        ReplyLost(host="w2", verb="finish", nth=2),
        Pause(host="w2", when=At(7_000_000), for_us=80_000_000),
        Crash(host="w1", when=At(12_000_000), restart_after_us=1_000_000),
    ),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("variant", [None, "no-idempotency", "unguarded-finish"])
def test_the_same_seed_gives_the_same_digest_twice_in_one_interpreter(plan, variant):
    first = simulate(CRASH, seed=11, variant=variant, faults=PLANS[plan])
    # Whatever ran between must not matter: other runs, and the global random generator.
    simulate(CRASH, seed=12)
    random.seed(5)
    second = simulate(CRASH, seed=11, variant=variant, faults=PLANS[plan])
    assert first.digest == second.digest
    assert list(first.history) == list(second.history)


def test_another_seed_gives_another_digest():
    assert len({simulate(CRASH, seed=seed, n_jobs=1).digest for seed in range(10)}) == 10


def test_another_size_variant_or_plan_gives_another_digest():
    digests = [
        simulate(CRASH, seed=7).digest,
        simulate(CRASH, seed=7, n_jobs=9).digest,
        simulate(CRASH, seed=7, n_workers=5).digest,
        simulate(CRASH, seed=7, variant="no-idempotency").digest,
        simulate(CRASH, seed=7, faults=()).digest,
    ]
    assert len(set(digests)) == len(digests)


def test_the_same_seed_gives_the_same_digest_in_two_processes_with_different_hash_seeds():
    code = (
        "import json, sys; from simlab import simulate;"
        "print(json.dumps([simulate('crash-after-execution', seed=7, variant=v).digest"
        " for v in (None, 'no-idempotency', 'unguarded-finish')]))"
    )
    told = []
    for hash_seed in ("1", "4294967295"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        told.append(json.loads(run.stdout))
    here = [simulate(CRASH, seed=7, variant=v).digest for v in (None, "no-idempotency", "unguarded-finish")]
    assert told == [here] * 2


def arrivals(**arguments) -> list[tuple[str, int]]:
    result = simulate(CRASH, seed=7, **arguments)
    # Due times count from when the enqueueing arrived, so the journey there is taken off.
    return [
        (str(event.job), event.due_us - event.db_us) for event in result.history if event.kind == "enqueued"
    ]


def test_adding_a_fault_does_not_change_the_arrivals_or_the_identities():
    healthy = arrivals(faults=())
    assert len(healthy) == 8
    for plan in (None, PLANS["mixed"][1:2], [Crash(host="w1", when=At(0))]):
        assert arrivals(faults=plan) == healthy


def test_adding_a_worker_does_not_change_the_arrivals():
    assert arrivals(n_workers=5, faults=()) == arrivals(faults=())


def test_a_fault_changes_nothing_before_it_strikes():
    healthy = simulate(CRASH, seed=7, faults=())
    struck = simulate(CRASH, seed=7, faults=[Crash(host="w1", when=At(10_000_000))])
    before = [event for event in healthy.history if event.time_us < 10_000_000]
    assert before
    assert [event for event in struck.history if event.time_us < 10_000_000] == before


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("seed", "variant", "plan", "sizes"),
    [
        (7, None, "its own", {}),
        (8, None, "its own", {"n_jobs": 25, "n_workers": 3}),
        (9, None, "none", {"n_jobs": 1, "n_workers": 1}),
        (10, None, "mixed", {"n_jobs": 12}),
        (7, "no-idempotency", "its own", {}),
        (7, "unguarded-finish", "its own", {}),
        (8, "unguarded-finish", "mixed", {}),
    ],
)
def test_the_model_and_postgres_tell_one_story_event_for_event(postgres_server, seed, variant, plan, sizes):
    assert isinstance(postgres_server, PostgresServer)
    model = simulate(CRASH, seed=seed, variant=variant, faults=PLANS[plan], **sizes)
    real = simulate(
        CRASH,
        seed=seed,
        variant=variant,
        faults=PLANS[plan],
        store="postgres",
        server=postgres_server,
        **sizes,
    )
    for index, (expected, got) in enumerate(zip(model.history, real.history, strict=False)):
        assert got == expected, f"event {index}"
    assert real.table == model.table
    assert real.effects == model.effects
    assert real.digest == model.digest
    assert real.checks == model.checks
