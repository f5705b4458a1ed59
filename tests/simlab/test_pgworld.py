"""Virtual time on PostgreSQL: production's statements at the laboratory's time, in a schema that leaves no trace."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from scheduler.jobs import JobState, NewJob
from scheduler.store import ClaimRequest
from simlab.hosts import EPOCH_US
from simlab.kernel import Kernel
from simlab.locks import LockTable
from simlab.pgserver import PostgresServer
from simlab.pgworld import SCHEMA, postgres_backend
from simlab.world import Backend, DatabaseClock
from tests.simlab.bench import SECOND, at_once, job_id

pytestmark = pytest.mark.postgres


@contextmanager
def opened(server: PostgresServer, **options) -> Iterator[tuple[Kernel, Backend]]:
    kernel = Kernel()
    locks = LockTable(kernel, statement_timeout_us=SECOND)
    with postgres_backend(DatabaseClock(kernel), locks, dsn=server.dsn, **options) as backend:
        yield kernel, backend


def job(number: int, **fields) -> NewJob:
    return NewJob(**{"job_id": job_id(number), "task": "work", "payload": {}, "delay_us": 0, **fields})


CLAIM = ClaimRequest(owner="w1", tasks=("work",), limit=10, lookahead_us=0, lease_us=60 * SECOND)


def schemas(server: PostgresServer) -> list[str]:
    with psycopg.connect(server.dsn) as connection:
        return [name for (name,) in connection.execute("SELECT nspname FROM pg_namespace").fetchall()]


def test_now_is_the_laboratorys_time_to_the_microsecond(postgres_server):
    with opened(postgres_server) as (kernel, backend):
        for at_us in (0, 1, 999_999, 3_600_000_001, 400 * 86_400 * SECOND + 123_457):
            kernel.run_until(at_us)
            assert at_once(backend.store.stats()).now_us == EPOCH_US + at_us


def test_a_lease_ends_when_virtual_time_says_so_and_no_real_time_passes(postgres_server):
    with opened(postgres_server) as (kernel, backend):
        at_once(backend.store.enqueue([job(1)]))
        (lease,) = at_once(backend.store.claim(CLAIM)).leases
        kernel.run_until(60 * SECOND - 1)
        assert at_once(backend.store.sweep(limit=10)).jobs == ()
        kernel.run_until(60 * SECOND)
        (swept,) = at_once(backend.store.sweep(limit=10)).jobs
        assert (swept.job_id, swept.token) == (lease.ref.job_id, 1)
        (row,) = backend.table()
        assert row.created_at_us == EPOCH_US


def test_the_table_is_every_row_by_identity(postgres_server):
    with opened(postgres_server) as (_, backend):
        at_once(backend.store.enqueue([job(3), job(1), job(2, delay_us=9)]))
        assert [row.job_id.int for row in backend.table()] == [1, 2, 3]
        assert {row.state for row in backend.table()} == {JobState.PENDING}


def test_the_schema_is_made_from_nothing_and_dropped_also_after_an_error(postgres_server):
    class Stop(Exception):
        pass

    def breaks(backend: Backend) -> None:
        assert SCHEMA in schemas(postgres_server)
        at_once(backend.store.enqueue([job(1)]))
        backend.lock([job_id(1)])
        raise Stop

    with pytest.raises(Stop), opened(postgres_server) as (_, backend):
        breaks(backend)
    assert SCHEMA not in schemas(postgres_server)
    with opened(postgres_server) as (_, backend):
        assert backend.table() == []
    assert SCHEMA not in schemas(postgres_server)


def test_what_a_killed_run_left_behind_is_cleared(postgres_server):
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {SCHEMA}")
        connection.execute(f"CREATE TABLE {SCHEMA}.scheduler_jobs (wrong int)")
    with opened(postgres_server) as (_, backend):
        assert backend.table() == []


def test_nothing_outside_the_schema_is_touched(postgres_server):
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA bystander")
        connection.execute("CREATE TABLE bystander.scheduler_jobs (kept int)")
        try:
            with opened(postgres_server) as (_, backend):
                at_once(backend.store.enqueue([job(1)]))
            (count,) = connection.execute("SELECT count(*) FROM bystander.scheduler_jobs").fetchone()
            (time,) = connection.execute("SELECT extract(epoch FROM now())").fetchone()
        finally:
            connection.execute("SET client_min_messages = warning")
            connection.execute("DROP SCHEMA bystander CASCADE")
    assert count == 0
    assert abs(float(time) - EPOCH_US / 1e6) > 1, "the server's own time is its own"


def test_a_statement_can_be_replaced_by_the_name_of_its_file(postgres_server):
    seen = []

    def rewrite(queries) -> dict[str, str]:
        seen.append(queries.stats)
        return {"stats": queries.stats.replace("now()", "now() + interval '1 second'", 1)}

    with opened(postgres_server, rewrite=rewrite) as (_, backend):
        assert at_once(backend.store.stats()).now_us in {EPOCH_US, EPOCH_US + SECOND}
    assert len(seen) == 1


def test_a_lock_of_another_transaction_is_seen_by_the_claim(postgres_server):
    with opened(postgres_server) as (_, backend):
        at_once(backend.store.enqueue([job(1), job(2)]))
        backend.lock([job_id(1)])
        assert [lease.ref.job_id.int for lease in at_once(backend.store.claim(CLAIM)).leases] == [2]
        backend.unlock()
        assert [lease.ref.job_id.int for lease in at_once(backend.store.claim(CLAIM)).leases] == [1]
