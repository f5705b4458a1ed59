"""PostgresStore on a real server: migrations, connections, transactions of the caller's, and errors."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from scheduler import (
    App,
    Client,
    InvalidSetting,
    JobRequest,
    JobState,
    MissingMigration,
    PostgresStore,
    StoreUnavailable,
    migrate,
    open_postgres,
)
from scheduler.jobs import NewJob
from scheduler.postgres import MIGRATIONS, Queries

pytestmark = pytest.mark.postgres

T = TypeVar("T")


def with_store(dsn: str, act: Callable[[PostgresStore], Coroutine[Any, Any, T]], **options: Any) -> T:
    async def run() -> T:
        async with open_postgres(dsn, **options) as store:
            return await act(store)

    return asyncio.run(run())


def app_with(*names: str) -> App:
    app = App()
    for name in names:
        app.task(name)(lambda job: None)
    return app


def query(dsn: str, statement: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(statement.encode()).fetchall()


def execute(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


# -------------------------------------------------------------------------------------- migrations


def test_a_fresh_database_is_migrated_once(empty_dsn: str) -> None:
    assert migrate(empty_dsn) == list(MIGRATIONS)
    assert migrate(empty_dsn) == []
    assert query(empty_dsn, "SELECT version FROM scheduler_migrations") == [(n,) for n in MIGRATIONS]


def test_two_deployments_migrating_at_once_take_turns(empty_dsn: str) -> None:
    barrier = threading.Barrier(4)

    def deploy(_: int) -> list[int]:
        barrier.wait(10)
        return migrate(empty_dsn)

    with ThreadPoolExecutor(4) as threads:
        applied = sorted(threads.map(deploy, range(4)))
    assert applied == [[], [], [], list(MIGRATIONS)]


def test_a_newer_database_is_left_alone(migrated_dsn: str) -> None:
    execute(migrated_dsn, "INSERT INTO scheduler_migrations VALUES (999, now())")
    for use in (migrate, lambda dsn: with_store(dsn, PostgresStore.stats)):
        with pytest.raises(MissingMigration, match=r"migration 999.*upgrade this package"):
            use(migrated_dsn)
    assert query(migrated_dsn, "SELECT max(version) FROM scheduler_migrations") == [(999,)]


def test_a_database_without_tables_is_told_with_the_mend(empty_dsn: str) -> None:
    with pytest.raises(
        MissingMigration, match=r"at migration 0, this version needs .*; run `scheduler migrate`"
    ):
        with_store(empty_dsn, PostgresStore.stats)
    assert query(empty_dsn, "SELECT to_regclass('scheduler_migrations')") == [(None,)]


def test_tables_that_vanish_later_are_told_too(migrated_dsn: str) -> None:
    async def act(store: PostgresStore) -> None:
        await store.stats()
        await asyncio.to_thread(execute, migrated_dsn, "DROP TABLE scheduler_jobs")
        with pytest.raises(MissingMigration):
            await store.stats()

    with_store(migrated_dsn, act)


def test_a_migration_that_fails_leaves_nothing(empty_dsn: str) -> None:
    execute(empty_dsn, "CREATE TABLE scheduler_jobs (mine text)")
    with pytest.raises(StoreUnavailable, match="the migration failed and left nothing behind"):
        migrate(empty_dsn)
    assert query(empty_dsn, "SELECT to_regclass('scheduler_migrations')") == [(None,)]


@pytest.mark.parametrize("role_sees", ["nothing", "tables"])
def test_a_role_that_may_not_is_told_in_one_line(
    empty_dsn: str, request: pytest.FixtureRequest, role_sees: str
) -> None:
    role = f"reader_{role_sees}"
    schema = query(empty_dsn, "SELECT current_schema()")[0][0]
    execute(empty_dsn, f"CREATE ROLE {role}")
    request.addfinalizer(lambda: execute(empty_dsn, f"DROP OWNED BY {role}", f"DROP ROLE {role}"))
    if role_sees == "tables":
        migrate(empty_dsn)
        execute(
            empty_dsn,
            f"GRANT USAGE ON SCHEMA {schema} TO {role}",
            f"GRANT SELECT ON scheduler_migrations TO {role}",
        )
    as_role = f"-csearch_path={schema} -crole={role}"
    dsn = make_conninfo(empty_dsn, options=as_role)
    with pytest.raises(StoreUnavailable, match=r"permission denied|no schema has been selected") as caught:
        migrate(dsn) if role_sees == "nothing" else with_store(dsn, PostgresStore.stats)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------- connections


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.mark.parametrize("use", [migrate, lambda dsn: with_store(dsn, PostgresStore.stats)])
@pytest.mark.parametrize(
    "where", ["host=/nowhere", "host=127.0.0.1 port={port}", "host=127.0.0.1 port=70000"]
)
def test_an_unreachable_database_is_told_quickly_in_one_line(
    use: Callable[[str], object], where: str
) -> None:
    began = time.monotonic()
    with pytest.raises(StoreUnavailable) as caught:
        use(f"{where.format(port=closed_port())} dbname=x user=nobody")
    assert time.monotonic() - began < 3
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, MissingMigration)


def test_a_server_that_accepts_and_says_nothing_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dsn = f"host=127.0.0.1 port={silent.getsockname()[1]} dbname=x user=nobody"
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            with_store(dsn, PostgresStore.stats, timeout_us=300_000)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("dsn", ["this is not one", "postgresql://[half", "hots=here", "host"])
def test_a_dsn_that_does_not_read_is_a_mistake_of_the_callers(dsn: str) -> None:
    for use in (migrate, lambda dsn: with_store(dsn, PostgresStore.stats)):
        with pytest.raises(InvalidSetting, match="DSN") as caught:
            use(dsn)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "dsn", ["postgresql://me:hunter2@[half", "password=hunter2 hots=x", "password=open hunter2"]
)
def test_a_password_is_not_repeated_in_an_error(dsn: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        migrate(dsn)
    assert "hunter2" not in str(caught.value)


async def answered(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call until it is answered: a pool needs a moment, and a busy machine more than one."""
    for _ in range(20):
        with contextlib.suppress(StoreUnavailable):
            return await call()
    raise AssertionError("the pool did not recover")


def test_a_call_that_takes_too_long_is_unanswered(migrated_dsn: str) -> None:
    """A row that somebody has locked for ever makes the call fail in time, not hang."""

    async def act(store: PostgresStore) -> None:
        client = Client(app_with("task"), store, rng=random.Random(1))
        job_id = await client.enqueue("task")
        async with await psycopg.AsyncConnection.connect(migrated_dsn) as other:
            await other.execute("SELECT FROM scheduler_jobs FOR UPDATE")
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await store.cancel([job_id])
            assert time.monotonic() - began < 3
        again = await answered(lambda: store.cancel([job_id]))
        assert again.results[0].result == "cancelled"

    with_store(migrated_dsn, act, timeout_us=200_000, connections=1)


def test_a_connection_that_is_cut_is_unanswered_and_the_next_call_works(migrated_dsn: str) -> None:
    async def act(store: PostgresStore) -> None:
        await store.stats()
        statement = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'scheduler'"
        )
        await asyncio.to_thread(query, migrated_dsn, statement)
        await answered(store.stats)

    with_store(migrated_dsn, act, connections=1)


# ------------------------------------------------------------------------------------------ enqueue


def test_a_hundred_thousand_jobs_in_one_call(migrated_dsn: str) -> None:
    requests = [JobRequest(task="task", payload={"n": n}, idempotency_key=f"k{n}") for n in range(100_000)]

    async def act(store: PostgresStore) -> tuple[list[UUID], int]:
        client = Client(app_with("task"), store, rng=random.Random(1))
        job_ids = await client.enqueue_many(requests)
        return job_ids, (await store.stats()).counts[JobState.PENDING]

    job_ids, pending = with_store(migrated_dsn, act)
    assert (len(set(job_ids)), pending) == (100_000, 100_000)
    wanted = {str(job_id): n for n, job_id in enumerate(job_ids)}
    rows = query(migrated_dsn, "SELECT job_id::text, (payload->>'n')::int FROM scheduler_jobs")
    assert dict(rows) == wanted


def test_a_batch_is_inserted_as_a_whole_or_not_at_all(migrated_dsn: str) -> None:
    """What only the database refuses keeps the other jobs of the call out, too."""
    bad = NewJob(job_id=UUID(int=2), task="task", payload={}, delay_us=0, max_attempts=0)
    good = NewJob(job_id=UUID(int=1), task="task", payload={}, delay_us=0)

    async def act(store: PostgresStore) -> int:
        with pytest.raises(psycopg.errors.CheckViolation):
            await store.enqueue([good, bad])
        return (await store.stats()).counts[JobState.PENDING]

    assert with_store(migrated_dsn, act) == 0


def test_two_callers_with_one_key_at_once_make_one_job(migrated_dsn: str) -> None:
    async def act(store: PostgresStore) -> tuple[set[UUID], int]:
        client = Client(app_with("task"), store, rng=random.Random(1))
        calls = [client.enqueue("task", {"n": 1}, idempotency_key="k") for _ in range(12)]
        return set(await asyncio.gather(*calls)), (await store.stats()).counts[JobState.PENDING]

    made, pending = with_store(migrated_dsn, act)
    assert (len(made), pending) == (1, 1)


@pytest.mark.parametrize("commit", [True, False])
def test_an_enqueue_in_the_callers_own_transaction_stands_or_falls_with_it(
    migrated_dsn: str, commit: bool
) -> None:
    async def act(store: PostgresStore) -> UUID:
        async with await psycopg.AsyncConnection.connect(migrated_dsn) as connection:
            client = Client(app_with("task"), store.inside(connection), rng=random.Random(1))
            job_id = await client.enqueue("task", {"n": 1})
            assert await store.get(job_id) is None  # not before the caller commits
            assert await store.inside(connection).get(job_id) is not None
            if commit:
                await connection.commit()
            else:
                await connection.rollback()
        assert (await store.get(job_id) is not None) is commit
        return job_id

    with_store(migrated_dsn, act)


@pytest.mark.parametrize("commit", [True, False])
def test_an_enqueue_works_on_a_plain_connection_too(migrated_dsn: str, commit: bool) -> None:
    """Sync code drives the client by hand or by asyncio.run; rows of any kind of cursor are understood."""

    async def enqueue(client: Client) -> list[UUID]:
        first = await client.enqueue("task", idempotency_key="k")
        return [first, await client.enqueue("task", idempotency_key="k")]

    with psycopg.connect(migrated_dsn, row_factory=dict_row) as connection:
        connection.execute("CREATE TABLE orders (n int)")
        store = with_store(migrated_dsn, _itself)
        client = Client(app_with("task"), store.inside(connection), rng=random.Random(1))
        first, second = asyncio.run(enqueue(client))
        assert first == second
        if commit:
            connection.commit()
        else:
            connection.rollback()
    found = query(migrated_dsn, "SELECT count(*) FROM scheduler_jobs")
    assert found == [(1 if commit else 0,)]
    assert query(migrated_dsn, "SELECT to_regclass('orders') IS NOT NULL") == [(commit,)]


async def _itself(store: PostgresStore) -> PostgresStore:
    return store


# ------------------------------------------------------------------------------------------- reading


def test_jobs_are_listed_soonest_first_by_state_and_by_page(migrated_dsn: str) -> None:
    async def act(store: PostgresStore) -> None:
        jobs = [
            NewJob(job_id=UUID(int=n), task="task", payload={}, run_at_us=run_at_us)
            for n, run_at_us in ((1, 30), (2, 10), (3, 20), (4, 10))
        ]
        await store.enqueue(jobs)
        await store.cancel([UUID(int=3)])
        assert [job.job_id.int for job in await store.list_jobs()] == [2, 4, 3, 1]
        assert [job.job_id.int for job in await store.list_jobs(limit=2)] == [2, 4]
        assert [job.job_id.int for job in await store.list_jobs(state=JobState.CANCELLED)] == [3]

    with_store(migrated_dsn, act)


def test_statements_use_the_transactions_now_and_no_other_clock() -> None:
    """CURRENT_TIMESTAMP and clock_timestamp() would escape a laboratory's clock."""
    queries = Queries.load()
    for name in Queries.__dataclass_fields__:
        statement = getattr(queries, name)
        code = "\n".join(line.partition("--")[0] for line in statement.splitlines()).lower()
        assert not any(
            word in code for word in ("current_", "clock_", "localtime", "statement_", "timeofday")
        )
        assert statement.startswith("-- "), f"{name}.sql says what it does"
