"""The outside world as a ledger: deduplicating, fenced, or taking whatever comes; the same on both stores."""

from collections.abc import Iterator

import pytest

from simlab.effects import EffectMode, Effects, ModelEffects
from simlab.hosts import EPOCH_US
from simlab.kernel import Kernel
from simlab.locks import LockTable
from simlab.pgworld import postgres_backend
from simlab.world import DatabaseClock
from tests.simlab.bench import at_once, job_id


@pytest.fixture(params=["model", pytest.param("postgres", marks=pytest.mark.postgres)])
def ledger(request: pytest.FixtureRequest) -> Iterator[Effects]:
    if request.param == "model":
        yield ModelEffects(lambda: EPOCH_US + 7)
        return
    server = request.getfixturevalue("postgres_server")
    kernel = Kernel()
    kernel.run_until(7)
    locks = LockTable(kernel, statement_timeout_us=1_000_000)
    with postgres_backend(DatabaseClock(kernel), locks, dsn=server.dsn) as backend:
        yield backend.effects


TOKENS = [(1, 1), (1, 2), (1, 1), (2, 5), (2, 4), (2, 5)]
TAKEN = {
    EffectMode.IDEMPOTENT: [True, False, False, True, False, False],
    EffectMode.FENCED: [True, True, False, True, False, True],
    EffectMode.PLAIN: [True, True, True, True, True, True],
}


@pytest.mark.parametrize("mode", EffectMode)
def test_what_is_taken_depends_on_what_the_outside_world_checks(ledger, mode):
    got = [at_once(ledger.apply(job_id(job), token=token, host="w1", mode=mode)) for job, token in TOKENS]
    assert got == [(EPOCH_US + 7, taken) for taken in TAKEN[mode]]
    made = [(effect.job_id.int, effect.token) for effect in ledger.table()]
    assert made == [pair for pair, taken in zip(TOKENS, TAKEN[mode], strict=True) if taken]


def test_an_effect_says_who_made_it_and_when(ledger):
    at_once(ledger.apply(job_id(1), token=3, host="w9", mode=EffectMode.PLAIN))
    (effect,) = ledger.table()
    assert (effect.job_id, effect.token, effect.host, effect.at_us) == (job_id(1), 3, "w9", EPOCH_US + 7)


def test_the_table_is_a_copy():
    ledger = ModelEffects(lambda: 0)
    at_once(ledger.apply(job_id(1), token=1, host="w1", mode=EffectMode.PLAIN))
    ledger.table().clear()
    assert len(ledger.table()) == 1
