"""The command line: every command on a real database, every mistake as one line, and workers as real processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scheduler
from scheduler.arguments import load_app, parse_duration_us, parse_instant, worker_settings
from scheduler.cli import main
from scheduler.errors import InvalidSetting, UsageError
from scheduler.policy import WorkerSettings
from tests.waiting import wait_for

ROOT = Path(scheduler.__file__).parents[1]
needs_postgres = pytest.mark.postgres

SHOP = """
import os, pathlib, time
from datetime import timedelta
from scheduler import App, Retry

app = App()
empty = App()
number = 7
quick = Retry(base_us=1000, cap_us=1000)

@app.task(max_attempts=3, retry=quick)
async def note(job, *, file, word="done"):
    with pathlib.Path(file).open("a") as out:
        out.write(f"{word} {job.attempt}\\n")

@app.task(max_attempts=1)
async def fail(job):
    raise ValueError("no luck")

@app.task(max_attempts=2)
async def wait(job, *, file):
    path = pathlib.Path(file)
    while not path.exists():
        await job.sleep(timedelta(milliseconds=10))

@app.task(max_attempts=2)
def stuck(job):
    time.sleep(600)

@app.task(max_attempts=2)
async def stubborn(job):
    import asyncio
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

@app.task(max_attempts=2)
async def block(job):
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Stand in a directory with a module of its own name, and with no settings in the environment."""
    for name in ("SCHEDULER_DSN", "SCHEDULER_APP", "SCHEDULER_FAILPOINTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    module = f"shop_{abs(hash(tmp_path))}"
    (tmp_path / f"{module}.py").write_text(SHOP)
    return f"{module}:app"


@pytest.fixture
def ready(migrated_dsn: str, shop: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have database and application named by the environment."""
    monkeypatch.setenv("SCHEDULER_DSN", migrated_dsn)
    monkeypatch.setenv("SCHEDULER_APP", shop)
    return migrated_dsn


class Said:
    """What a command printed, and how it ended."""

    def __init__(self, code: int, out: str, error: str) -> None:
        self.code = code
        self.out = out
        self.error = error

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: str) -> Said:
        code = main(words)
        out, error = capsys.readouterr()
        return Said(code, out, error)

    return call


def one_line(said: Said, code: int) -> str:
    """Check that a command failed as it should: one line on stderr, nothing on stdout; returns the line."""
    assert said.code == code
    assert said.out == ""
    assert said.error.startswith("error: ")
    assert said.error.count("\n") == 1
    return said.error.removeprefix("error: ").rstrip()


# -------------------------------------------------------------------------------------------- help


def test_without_words_there_is_help(run: Any) -> None:
    said = run()
    assert said.code == 0
    for command in ("migrate", "enqueue", "worker", "jobs", "cancel", "replay", "stats"):
        assert command in said.out


@pytest.mark.parametrize("command", ["migrate", "enqueue", "worker", "jobs", "cancel", "replay", "stats"])
def test_every_command_explains_itself(run: Any, command: str) -> None:
    said = run(command, "--help")
    assert (said.code, said.error) == (0, "")
    assert "--dsn" in said.out
    assert "SCHEDULER_DSN" in said.out
    assert ("--json" in said.out) is (command != "worker")
    assert ("--app" in said.out) is (command in {"enqueue", "worker"})


def test_the_command_is_the_module_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scheduler", "enqueue", "note"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: no application named; give --app module:app or set SCHEDULER_APP\n"


# ---------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["enqueue"],
        ["enqueue", "note", "--nonsense"],
        ["jobs", "--state", "ASLEEP"],
        ["jobs", "--limit", "0"],
        ["jobs", "--limit", "many"],
        ["jobs", "--id", "7"],
        ["cancel"],
        ["cancel", "not-an-id"],
        ["replay"],
        ["worker", "--concurrency", "0"],
    ],
)
def test_a_call_that_does_not_parse_is_one_line(run: Any, words: Sequence[str]) -> None:
    assert "--help" in one_line(run(*words), 2)


@pytest.mark.parametrize(
    "words", [["migrate"], ["jobs"], ["stats"], ["cancel", str(random.Random(1).random())]]
)
def test_without_a_database_named_the_mend_is_told(run: Any, words: Sequence[str]) -> None:
    if words[0] == "cancel":
        words = ["cancel", "00000000-0000-0000-0000-000000000001"]
    assert "give --dsn or set SCHEDULER_DSN" in one_line(run(*words), 2)


@pytest.mark.parametrize("words", [["migrate"], ["jobs"], ["stats"], ["enqueue", "note"], ["worker"]])
def test_an_unreachable_database_ends_with_3(run: Any, words: Sequence[str], shop: str) -> None:
    app = ["--app", shop] if words[0] in {"enqueue", "worker"} else []
    line = one_line(run(*words, *app, "--dsn", "host=/nowhere dbname=x user=x"), 3)
    assert "is it running, and is the DSN right?" in line


@needs_postgres
@pytest.mark.parametrize("words", [["jobs"], ["stats"], ["enqueue", "note"], ["worker"]])
def test_a_missing_migration_ends_with_3(run: Any, words: Sequence[str], shop: str, empty_dsn: str) -> None:
    app = ["--app", shop] if words[0] in {"enqueue", "worker"} else []
    assert "run `scheduler migrate`" in one_line(run(*words, *app, "--dsn", empty_dsn), 3)


def test_a_dsn_that_does_not_read_is_a_mistake(run: Any) -> None:
    assert "DSN" in one_line(run("stats", "--dsn", "nonsense"), 2)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sleep"], "unknown task 'sleep'; registered: block, fail, note, stubborn, stuck, wait"),
        (["note", "--payload", "{"], "payload of 'note' at line 1 column 2: not JSON: "),
        (["note", "--payload", "{'a': 1}"], "payload of 'note' at line 1 column 2: not JSON: "),
        (["note", "--payload", '{"a": 1}\n}'], "payload of 'note' at line 2 column 1: not JSON: Extra data"),
        (["note", "--payload", ""], "payload of 'note' at line 1 column 1: not JSON: "),
        (["note", "--payload", "[1]"], "payload of 'note' at $: must be a JSON object"),
        (["note", "--payload", '{"a": NaN}'], "payload of 'note' at $.a: nan is not a JSON number"),
        (["note", "--payload", '{"a": "\\u0000"}'], "payload of 'note' at $.a: holds a NUL character"),
        (
            ["note", "--payload", '{"a": "\\ud800"}'],
            "payload of 'note' at $.a: holds half of a surrogate pair",
        ),
        (["note", "--payload", "[" * 100_000], "payload of 'note' at $: nested too deep"),
        (["note", "--payload", '{"n": ' + "1" * 5000 + "}"], "payload of 'note' at $: Exceeds the limit"),
        (["note", "--in", "5"], "--in='5': is not a duration; write 90s, 5m, 1h30m or 2d"),
        (["note", "--in", "-5s"], "--in='-5s': is not a duration"),
        (["note", "--in", "tomorrow"], "--in='tomorrow': is not a duration"),
        (["note", "--in", "999999999999d"], "--in='999999999999d': is too long"),
        (["note", "--at", "noon"], "--at='noon': is not a date and time; write it in ISO 8601"),
        (["note", "--at", "2030-01-31T09:00"], "--at='2030-01-31T09:00': has no time zone"),
        (["note", "--at", "0001-01-01T00:00Z"], "run_at='0001-01-01 00:00:00+00:00': its year must be from"),
        (
            ["note", "--at", "2030-01-31T09:00Z", "--in", "5s"],
            "job of 'note': give run_at or delay, not both",
        ),
        (["note", "--key", ""], "an idempotency key=''"),
    ],
)
@needs_postgres
def test_a_bad_enqueue_says_what_and_where(run: Any, ready: str, words: Sequence[str], told: str) -> None:
    assert one_line(run("enqueue", *words), 2).startswith(told)
    assert run("jobs", "--json").json == []


def test_a_mistake_in_the_arguments_is_told_before_the_database_is_asked(run: Any, shop: str) -> None:
    said = run("enqueue", "sleep", "--app", shop, "--dsn", "host=/nowhere")
    assert one_line(said, 2).startswith("unknown task 'sleep'")


@pytest.mark.parametrize(
    ("option", "text", "told"),
    [
        ("--lease", "soon", "--lease='soon': is not a duration"),
        ("--poll", "0s", "poll_interval_us=0: must be a whole number of at least 1"),
        ("--lease", "0s", "lease_us=0: must be a whole number of at least 1"),
        ("--heartbeat", "59s", "heartbeat_interval_us=59000000: interval + 2 * request_timeout_us"),
        ("--lookahead", "1us", "poll_interval_us=1: must be shorter than lookahead_us=1"),
        ("--log-level", "LOUD", "--log-level='LOUD': must be one of DEBUG, INFO, WARNING, ERROR"),
    ],
)
def test_a_worker_setting_that_does_not_fit_is_told(
    run: Any, shop: str, option: str, text: str, told: str
) -> None:
    said = run("worker", "--app", shop, "--dsn", "host=/nowhere", option, text)
    assert one_line(said, 2).startswith(told)


def test_a_failpoint_that_does_not_read_is_told(run: Any, shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEDULER_FAILPOINTS", "at_lunch=kill")
    assert "no failpoint 'at_lunch'" in one_line(run("worker", "--app", shop, "--dsn", "host=/nowhere"), 2)


# ----------------------------------------------------------------------------------- the application


def test_an_app_is_found_in_the_current_directory(shop: str) -> None:
    assert "note" in load_app(shop).tasks


@pytest.mark.parametrize(
    ("source", "spec", "told"),
    [
        ("", None, "no application named; give --app module:app or set SCHEDULER_APP"),
        ("", "", "no application named"),
        ("", "{}", "write it as module:app, such as shop.jobs:app"),
        ("", "{}:", "write it as module:app"),
        ("", ":app", "write it as module:app"),
        ("", "no_such_{}:app", "there is no module 'no_such_"),
        ("", "{}.inner:app", "there is no module"),
        ("", "{}:app", "has no such name; it has no App; write `app = App()` there"),
        ("from scheduler import App\nshop = App()", "{}:app", "has no such name; it has shop"),
        ("app = 7", "{}:app", "holds a int there, not an App"),
        ("def app(): ...", "{}:app", "holds a function there, not an App"),
        (
            "import no_such_library",
            "{}:app",
            "failed: ModuleNotFoundError: No module named 'no_such_library'",
        ),
        ("\n\n1 / 0", "{}:app", "failed: ZeroDivisionError: division by zero ("),
        ("def app(:", "{}:app", "failed: SyntaxError: "),
        ("raise SystemExit(3)", "{}:app", "failed: SystemExit: 3 ("),
        ("raise ValueError('two\\nlines')", "{}:app", "failed: ValueError: two lines ("),
    ],
)
def test_an_app_that_is_not_there_is_told_with_the_place(
    tmp_path: Path, source: str, spec: str | None, told: str
) -> None:
    module = f"broken_{abs(hash((tmp_path, source)))}"
    (tmp_path / f"{module}.py").write_text(source)
    with pytest.raises(UsageError) as caught:
        load_app(None if spec is None else spec.format(module))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    if "failed" in told:
        assert f"importing {module!r} failed" in str(caught.value)
        assert f"{module}.py line {1 if '1 / 0' not in source else 3})" in str(caught.value)


def test_an_error_deep_inside_an_import_names_the_line_that_raised(tmp_path: Path) -> None:
    (tmp_path / "deep_inner.py").write_text("\ndef f():\n    raise KeyError('k')\n")
    (tmp_path / "deep_outer.py").write_text("import deep_inner\ndeep_inner.f()\n")
    with pytest.raises(
        UsageError, match=r"importing 'deep_outer' failed: KeyError: 'k' \(.*deep_inner.py line 3\)"
    ):
        load_app("deep_outer:app")


def test_what_a_module_prints_is_not_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "chatty.py").write_text("from scheduler import App\nprint('hello')\napp = App()\n")
    load_app("chatty:app")
    assert capsys.readouterr() == ("", "hello\n")


def test_an_app_without_tasks_has_no_work_for_a_worker(run: Any, shop: str) -> None:
    app = shop.replace(":app", ":empty")
    line = one_line(run("worker", "--app", app, "--dsn", "host=/nowhere"), 2)
    assert "has no tasks" in line


# ------------------------------------------------------------------------------- reading arguments


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("90s", 90_000_000),
        ("5m", 300_000_000),
        ("2h", 7_200_000_000),
        ("1h30m", 5_400_000_000),
        ("2d", 172_800_000_000),
        ("250ms", 250_000),
        ("7us", 7),
        ("0s", 0),
        ("0.1s", 100_000),
        ("1.000001s", 1_000_001),
    ],
)
def test_a_duration_reads_exactly(text: str, us: int) -> None:
    assert parse_duration_us("--in", text) == us


@pytest.mark.parametrize(
    "text", ["", "s", "5", "5 s", " 5s", "5s ", "-5s", "1e3s", "5S", "5s-", "\u0665s", "nans", ".5s"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match="is not a duration"):
        parse_duration_us("--in", text)


def test_a_duration_finer_than_the_database_keeps_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="finer than a microsecond"):
        parse_duration_us("--in", "0.0000001s")


@given(st.integers(0, 10**14))
def test_any_number_of_microseconds_reads_back(us: int) -> None:
    assert parse_duration_us("--in", f"{us // 10**6}.{us % 10**6:06d}s") == us


def test_an_instant_keeps_its_zone() -> None:
    assert parse_instant("--at", "2030-01-31T09:00+01:00") == parse_instant("--at", "2030-01-31T08:00Z")


TEXTS: dict[str, Any] = {
    "concurrency": 10,
    "prefetch": 10,
    "lease": "60s",
    "heartbeat": None,
    "request_timeout": None,
    "lookahead": None,
    "poll": None,
    "sweep": None,
    "drain": "30s",
}


def test_the_commands_defaults_are_the_librarys() -> None:
    assert worker_settings(**TEXTS) == WorkerSettings()


@pytest.mark.parametrize(
    "given_texts",
    [
        {"lease": "1s"},
        {"lease": "24us"},
        {"lease": "1h"},
        {"poll": "1m"},
        {"poll": "10ms"},
        {"lookahead": "1s"},
        {"lookahead": "0s"},
        {"lease": "2s", "poll": "50ms", "lookahead": "300ms"},
    ],
)
def test_one_duration_given_makes_the_others_follow(given_texts: dict[str, str]) -> None:
    worker_settings(**TEXTS | given_texts)  # they fit together, or it would raise


# -------------------------------------------------------------------------------- commands that work


@needs_postgres
def test_migrate_says_what_it_did(run: Any, empty_dsn: str) -> None:
    assert run("migrate", "--dsn", empty_dsn, "--json").json == {"applied": [1], "version": 1}
    assert run("migrate", "--dsn", empty_dsn, "--json").json == {"applied": [], "version": 1}
    said = run("migrate", "--dsn", empty_dsn)
    assert (said.code, said.out, said.error) == (0, "nothing to do; at 0001 already\n", "")


def enqueue(run: Any, *words: str) -> str:
    said = run("enqueue", *words, "--json")
    assert (said.code, said.error) == (0, "")
    job_id: str = said.json["job_id"]
    return job_id


def listed(run: Any, job_id: str) -> dict[str, Any]:
    (job,) = run("jobs", "--id", job_id, "--json").json
    assert isinstance(job, dict)
    return job


@needs_postgres
def test_enqueue_prints_the_identity_and_jobs_shows_the_row(run: Any, ready: str) -> None:
    said = run(
        "enqueue",
        "note",
        "--payload",
        '{"file": "x"}',
        "--at",
        "2030-01-31T09:00:00.000001+01:00",
        "--key",
        "k",
    )
    job_id = said.out.strip()
    job = listed(run, job_id)
    assert job["payload"] == {"file": "x"}
    assert job["run_at"] == "2030-01-31T08:00:00.000001+00:00"
    assert (job["state"], job["attempt"], job["max_attempts"]) == ("PENDING", 0, 3)
    assert (job["idempotency_key"], job["finished_at"]) == ("k", None)
    again = ["enqueue", "note", "--payload", '{"file": "x"}', "--key", "k"]
    assert run(*again).out.strip() == job_id
    assert "already belongs to job" in one_line(run("enqueue", "note", "--key", "k"), 2)


@needs_postgres
def test_enqueue_in_counts_from_the_databases_now(run: Any, ready: str) -> None:
    job = listed(run, enqueue(run, "note", "--in", "1h30m"))
    with psycopg.connect(ready) as connection:
        row = connection.execute(
            "SELECT run_at - created_at = interval '90 minutes' FROM scheduler_jobs"
        ).fetchone()
    assert row == (True,)
    assert job["state"] == "PENDING"


@needs_postgres
def test_options_override_the_environment(run: Any, ready: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEDULER_DSN", "host=/nowhere")
    assert run("stats", "--dsn", ready).code == 0
    app = os.environ["SCHEDULER_APP"]
    monkeypatch.setenv("SCHEDULER_APP", "nothing:here")
    assert run("enqueue", "note", "--app", app, "--dsn", ready).code == 0


@needs_postgres
def test_jobs_is_a_table_for_people(run: Any, ready: str) -> None:
    first = enqueue(run, "note", "--at", "2030-01-31T09:00Z")
    second = enqueue(run, "fail", "--at", "2029-01-31T09:00Z")
    said = run("jobs")
    header, *rows = said.out.splitlines()
    assert header.split()[:4] == ["JOB", "TASK", "STATE", "ATTEMPT"]
    assert [row.split() for row in rows] == [
        [second, "fail", "PENDING", "0/1", "2029-01-31", "09:00:00"],
        [first, "note", "PENDING", "0/3", "2030-01-31", "09:00:00"],
    ]
    assert len(run("jobs", "--limit", "1").out.splitlines()) == 2
    assert run("jobs", "--state", "failed", "--json").json == []
    assert len(run("jobs", "--state", "PENDING", "--json").json) == 2


@needs_postgres
def test_a_job_cannot_write_to_the_operators_terminal(run: Any, ready: str) -> None:
    enqueue(run, "note")
    with psycopg.connect(ready, autocommit=True) as connection:
        connection.execute("UPDATE scheduler_jobs SET last_error = E'red \\x1b[31m\\nnext'")
    said = run("jobs")
    assert "\x1b" not in said.out
    assert len(said.out.splitlines()) == 2


@needs_postgres
def test_an_unknown_job_is_told(run: Any, ready: str) -> None:
    line = one_line(run("jobs", "--id", "00000000-0000-0000-0000-000000000001"), 2)
    assert "no job 00000000-0000-0000-0000-000000000001" in line


@needs_postgres
def test_cancel_says_what_came_of_each(run: Any, ready: str) -> None:
    job_id = enqueue(run, "note", "--in", "1h")
    said = run("cancel", job_id)
    assert (said.code, said.out.split()) == (0, ["JOB", "RESULT", job_id, "cancelled"])
    unknown = "00000000-0000-0000-0000-000000000001"
    said = run("cancel", unknown, job_id, "--json")
    assert said.code == 1
    assert said.json == [{"job_id": unknown, "result": "unknown"}, {"job_id": job_id, "result": "too_late"}]


@needs_postgres
def test_replay_takes_dead_letters_only(run: Any, ready: str) -> None:
    dead, alive = enqueue(run, "fail"), enqueue(run, "note", "--in", "1h")
    with psycopg.connect(ready, autocommit=True) as connection:
        connection.execute(
            "UPDATE scheduler_jobs SET state = 'FAILED', finished_at = now() WHERE job_id = %s", [dead]
        )
    said = run("replay", dead, alive, "--json")
    assert said.code == 1
    assert said.json == [{"job_id": dead, "replayed": True}, {"job_id": alive, "replayed": False}]
    assert listed(run, dead)["state"] == "PENDING"
    assert "not failed" in run("replay", dead).out


@needs_postgres
def test_stats_count_and_tell_the_delay(run: Any, ready: str) -> None:
    assert run("stats", "--json").json["oldest_due_s"] == 0
    assert "no job is overdue" in run("stats").out
    enqueue(run, "note", "--at", "2020-01-01T00:00Z")
    told = run("stats", "--json").json
    assert told["counts"] == {
        "PENDING": 1, "CLAIMED": 0, "RUNNING": 0, "SUCCEEDED": 0, "FAILED": 0, "CANCELLED": 0,
    }  # fmt: skip
    assert told["oldest_due_s"] > 86_400


@needs_postgres
def test_a_reader_that_leaves_early_is_no_error(run: Any, ready: str) -> None:
    enqueue(run, "note")
    command = f"{sys.executable} -m scheduler jobs --json | true"
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.stderr == ""


# --------------------------------------------------------------------------------- workers as processes

QUICK = ("--poll", "50ms", "--lookahead", "500ms", "--lease", "1500ms")


class Process:
    """A worker process, its log, and its end."""

    def __init__(self, words: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "scheduler", "worker", *QUICK, *words],
                env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
                stdout=subprocess.PIPE,
                stderr=file,
            )

    def said(self, text: str) -> bool:
        return text in self.log.read_text()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, seconds: float = 15) -> int:
        """Wait for the end; returns the exit code."""
        out, _ = self.process.communicate(timeout=seconds)
        assert out == b"", "a worker has no results to print"
        return self.process.returncode


@contextmanager
def worker(*words: str, **environment: str) -> Iterator[Process]:
    log = Path(f"worker-{time.monotonic_ns()}.log")
    process = Process(words, log, environment)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.communicate()


def state(dsn: str, job_id: str) -> tuple[str, int, int]:
    """Return state, attempt and token of a job."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT state, attempt, lease_token FROM scheduler_jobs WHERE job_id = %s", [job_id]
        ).fetchone()
    assert row is not None
    return row


@needs_postgres
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_runs_jobs_and_drains_at_a_signal(run: Any, ready: str, number: signal.Signals) -> None:
    """It works on, ends what it began, and leaves with 0."""
    done = enqueue(run, "note", "--payload", json.dumps({"file": "notes"}))
    waiting = enqueue(run, "wait", "--payload", json.dumps({"file": "go"}))
    with worker() as process:
        wait_for(lambda: state(ready, done)[0] == "SUCCEEDED" and state(ready, waiting)[0] == "RUNNING")
        process.send(number)
        wait_for(lambda: process.said("draining"))
        later = enqueue(run, "note", "--payload", json.dumps({"file": "notes"}))
        Path("go").touch()
        assert process.end() == 0
        assert process.said("has drained")
    assert Path("notes").read_text() == "done 1\n"
    assert state(ready, waiting) == ("SUCCEEDED", 1, 1)
    assert state(ready, later) == ("PENDING", 0, 0)


@needs_postgres
def test_a_job_that_lost_its_worker_to_sigkill_is_finished_by_another(run: Any, ready: str) -> None:
    """The effect is there, the outcome is not: after the lease has expired, a second worker runs the job again."""
    job_id = enqueue(run, "note", "--payload", json.dumps({"file": "notes"}))
    with worker(SCHEDULER_FAILPOINTS="after_execute=kill") as first:
        assert first.end() == -signal.SIGKILL
    assert Path("notes").read_text() == "done 1\n"
    assert state(ready, job_id) == ("RUNNING", 1, 1)
    with worker() as second:
        wait_for(lambda: state(ready, job_id)[0] == "SUCCEEDED")
        second.send(signal.SIGTERM)
        assert second.end() == 0
    assert state(ready, job_id) == ("SUCCEEDED", 2, 2)
    assert Path("notes").read_text() == "done 1\ndone 2\n"


@needs_postgres
@pytest.mark.parametrize("task", ["stuck", "stubborn"])
def test_a_handler_that_never_ends_does_not_keep_the_process(run: Any, ready: str, task: str) -> None:
    """After the drain the process leaves without it, says so, and the job is due for its next attempt."""
    job_id = enqueue(run, task)
    with worker("--drain", "100ms") as process:
        wait_for(lambda: state(ready, job_id)[0] == "RUNNING")
        process.send(signal.SIGTERM)
        assert process.end() == 0
        assert process.said("leaving without")
    if task == "stuck":
        assert state(ready, job_id) == ("PENDING", 1, 1)


@needs_postgres
def test_a_second_signal_leaves_at_once_even_from_a_blocked_loop(run: Any, ready: str) -> None:
    """A handler that blocks the loop cannot be drained; the second signal is heard all the same."""
    job_id = enqueue(run, "block")
    with worker() as process:
        wait_for(lambda: state(ready, job_id)[0] == "RUNNING")
        process.send(signal.SIGTERM)
        wait_for(lambda: process.said("draining"))
        process.send(signal.SIGTERM)
        assert process.end() == 128 + signal.SIGTERM
        assert process.said("leaving at once")
    assert state(ready, job_id)[0] == "RUNNING"
