"""The parts of a run of chaos that need no database: the leash, the fleet, the starvation watch, lateness, pictures."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from scheduler.policy import WorkerSettings
from simlab.chaos import LatenessComparison, leash
from simlab.chaos.judging import CHAOS_SETTINGS
from simlab.chaos.lateness import DISTANCE_TOLERANCE, MAX_SLOWDOWN, ks_distance
from simlab.chaos.processes import Fleet, WorkerProcess, worker_options
from simlab.chaos.starvation import StarvationWatch
from simlab.checks import Verdict
from simlab.cli import main
from simlab.history import History
from simlab.hosts import EPOCH_US
from simlab.plots import acts_size, blank_axes, plot_acts, plot_effects, plot_lateness_comparison
from simlab.results import Result
from tests.waiting import wait_for

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel knows no death signal of a parent")


def gone(pid: int) -> bool:
    """Say whether a process has ended; one that only waits to be fetched has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@linux
def test_the_leash_ends_a_worker_whose_starter_is_killed() -> None:
    program = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-I', '-S', {leash.__file__!r}, str(os.getpid()), '/bin/sleep', '60'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert starter.stdout is not None
        worker = int(starter.stdout.readline())
        # It has become the command: the leash is on.
        wait_for(lambda: Path(f"/proc/{worker}/comm").read_text().strip() == "sleep")
        starter.kill()
        starter.wait(10)
        wait_for(lambda: gone(worker))
    finally:
        starter.kill()
        starter.communicate()


def test_a_leash_put_on_too_late_does_not_run_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", leash.__file__, "0", "/bin/echo", "running"],
        check=False,
        capture_output=True,
        timeout=20,
    )
    assert (done.returncode, done.stdout) == (1, b"")


def worker_of(folder: Path, **more: Path) -> WorkerProcess:
    return WorkerProcess(
        "w1",
        dsn="host=/nowhere dbname=none",
        outside_dsn="host=/nowhere dbname=none",
        schema="none",
        settings=WorkerSettings(),
        folder=folder,
        **more,
    )


def test_leaving_the_fleet_ends_its_processes_stopped_ones_too(tmp_path: Path) -> None:
    with Fleet([worker_of(tmp_path)]) as fleet:
        (worker,) = fleet.workers
        worker.start()
        worker.stop()
        assert worker.alive
    assert not worker.alive
    assert worker.exit_code == -signal.SIGKILL
    assert worker.killed


def test_a_worker_that_finds_no_database_says_so(tmp_path: Path) -> None:
    with Fleet([worker_of(tmp_path)]) as fleet:
        (worker,) = fleet.workers
        worker.start()
        wait_for(lambda: not worker.alive, seconds=60)
        assert worker.exit_code == 3
        assert not worker.has_begun
        assert "error: " in worker.last_words()


def test_a_mistaken_worker_is_the_same_command(tmp_path: Path) -> None:
    """It gets as far as the real one does: to a database that is not there."""
    statements = tmp_path / "statements.json"
    statements.write_text(json.dumps({"finish": "SELECT 1"}))
    with Fleet([worker_of(tmp_path, statements=statements)]) as fleet:
        (worker,) = fleet.workers
        worker.start()
        wait_for(lambda: not worker.alive, seconds=60)
        assert worker.exit_code == 3
        assert "error: " in worker.last_words()


def test_the_settings_become_options_of_the_command() -> None:
    options = worker_options(CHAOS_SETTINGS)
    given = dict(zip(options[::2], options[1::2], strict=True))
    assert (given["--lease"], given["--heartbeat"], given["--concurrency"]) == ("3000000us", "500000us", "8")


# Starvation.


def test_the_watch_measures_turns_and_ends() -> None:
    with StarvationWatch() as watch:
        wait_for(lambda: len(watch._late_s) >= 2)
    assert watch.longest_ms >= 0
    assert watch.slowdown >= 1
    assert "simlab-starvation" not in {thread.name for thread in threading.enumerate()}


def test_a_machine_with_something_else_to_do_shows() -> None:
    """Here it is this very interpreter that lets nobody else have a turn."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.2)
    try:
        with StarvationWatch() as watch:
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                pass
    finally:
        sys.setswitchinterval(before)
    assert watch.longest_ms > 50
    assert watch.slowdown > 2


def test_without_any_turn_nothing_was_late() -> None:
    watch = StarvationWatch()
    assert (watch.longest_ms, watch.slowdown) == (0.0, 1.0)


# Lateness.


def test_the_distance_is_the_largest_between_the_two_functions() -> None:
    assert ks_distance(np.array([1.0, 2, 3, 4]), np.array([1.0, 2, 3, 4])) == 0
    assert ks_distance(np.array([1.0, 2, 3, 4]), np.array([3.0, 4, 5, 6])) == 0.5
    assert ks_distance(np.array([1.0, 2]), np.array([7.0, 8, 9])) == 1


def compared(shift_ms: float, *, slowdown: float = 1.0) -> LatenessComparison:
    late_ms = np.linspace(0.0, 500.0, 300)
    return LatenessComparison(
        measured_ms=late_ms + shift_ms,
        predicted_ms=late_ms,
        round_trip_ms=(0.5, 0.7),
        tries=1,
        slowdown=slowdown,
    )


def test_lateness_as_predicted_is_valid_and_other_is_not() -> None:
    assert compared(0).verdict is Verdict.VALID
    assert compared(20).verdict is Verdict.VALID
    far = compared(200)
    assert far.distance > DISTANCE_TOLERANCE
    assert far.verdict is Verdict.INVALID
    assert not any("busy" in line for line in far.lines())


def test_on_a_busy_machine_other_lateness_is_unknown_with_the_reason() -> None:
    busy = compared(200, slowdown=2 * MAX_SLOWDOWN)
    assert busy.verdict is Verdict.UNKNOWN
    assert any("work took 3.0 times as long" in line for line in busy.lines())
    assert compared(0, slowdown=2 * MAX_SLOWDOWN).verdict is Verdict.VALID


# Pictures.


def result_of(tell: Sequence[tuple[float, str, str, str]]) -> Result:
    """Return a run of given events: seconds, host, kind, and detail."""
    history = History()
    for time_s, host, kind, detail in tell:
        us = int(1e6 * time_s)
        until_us = us + EPOCH_US + 1_000_000 if detail.startswith("its network") else -1
        history.record(
            kind, time_us=us, db_us=us + EPOCH_US, host=host, token=1 if kind != "fault" else -1, detail=detail,
            until_us=until_us,
        )  # fmt: skip
    return Result(
        scenario="chaos", seed=0, variant=None, store="real", params={}, faults=(), lease_us=3_000_000, checks=(),
        verdict=Verdict.VALID, history=history, table=(), effects=(), virtual_s=9.0, wall_s=9.0,
    )  # fmt: skip


EVERYTHING = (
    (0.5, "w1", "executing", ""),
    (1.0, "w1", "fault", "pause"),
    (2.0, "w1", "fault", "resume"),
    (2.5, "w1", "executed", ""),
    (3.0, "w2", "fault", "crash"),
    (3.5, "w2", "fault", "restart"),
    (4.0, "client", "fault", "its network: delay by 20 ms"),
    (4.0, "w1", "fault", "its network: cut"),
    (4.5, "w2", "fault", "its network: silence"),
    (5.0, "w1", "fault", "its network: reply loss"),
    (6.0, "database", "fault", "an immediate stop"),
    (6.5, "database", "fault", "runs again"),
    (7.0, "database", "fault", "2 of 4 connections are terminated"),
    (8.0, "database", "fault", "everything is healed"),
    (9.0, "w2", "executing", ""),
)


def test_the_picture_of_the_acts_explains_each_that_was_done() -> None:
    mpl.use("Agg")
    result = result_of(EVERYTHING)
    ax = plot_acts(result, ax=blank_axes(*acts_size(result)))
    legend = ax.get_legend()
    assert legend is not None
    assert {text.get_text() for text in legend.get_texts()} == {
        "a process lives", "SIGSTOP to SIGCONT", "SIGKILL", "handlers that run; full height: 1", "network: delay",
        "network: cut", "network: silence", "network: reply loss", "PostgreSQL is down: an immediate stop",
        "pg_terminate_backend", "everything is healed",
    }  # fmt: skip
    assert [label.get_text() for label in ax.get_yticklabels()] == ["w1", "w2", "client", "database"]
    assert "real time" in ax.get_xlabel()


def test_a_run_without_events_says_that_nothing_happened() -> None:
    ax = plot_acts(result_of(()), ax=blank_axes(4.0, 3.0))
    assert [text.get_text() for text in ax.texts] == ["nothing happened"]


def test_the_picture_of_the_effects_has_the_numbers() -> None:
    counts = {"with": {"first": 10, "duplicate": 0}, "without": {"first": 8, "duplicate": 1234}}
    ax = plot_effects(counts, ax=blank_axes(8.0, 2.4))
    assert {text.get_text() for text in ax.texts} - {""} == {"10", "8", "1,234"}


def test_the_comparison_marks_the_largest_distance_where_it_is() -> None:
    measured = compared(100)
    ax = plot_lateness_comparison(
        measured.frame(), tolerance=0.15, resolution_ms=10.0, ax=blank_axes(8.0, 4.0)
    )
    legend = ax.get_legend()
    assert legend is not None
    told = [text.get_text() for text in legend.get_texts()]
    assert f"largest distance: {measured.distance:.3f}; 0.15 is allowed" in told
    assert any(text.startswith("measured (300 executions)") for text in told)


def test_two_samples_are_wanted() -> None:
    frame = compared(0).frame()
    one = frame[frame["world"] == "measured"]
    ax = plot_lateness_comparison(one, tolerance=0.15, resolution_ms=10.0, ax=blank_axes(8.0, 4.0))
    assert [text.get_text() for text in ax.texts] == ["there are no two samples to compare"]


# The command.


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--minutes", "0"), "minutes=0"),
        (("--minutes", "soon"), "--minutes"),
        (("--workers", "99"), "workers=99"),
        (("--jobs", "0"), "jobs=0"),
        (("--variant", "no-such"), "unguarded-finish"),
        (("--postgres", "nowhere"), "nowhere"),
    ],
)
def test_a_mistake_in_the_call_is_one_line(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["chaos", *words, "--out", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert says in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_database_that_cannot_be_reached_is_exit_code_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("SIMLAB_POSTGRES", raising=False)
    monkeypatch.setenv("SIMLAB_DSN", "postgresql://nobody@127.0.0.1:1/none")
    assert main(["chaos", "--out", str(tmp_path / "out")]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_results_with_other_names_are_told_apart() -> None:
    """The run of a mistake says so in its picture's title."""
    result = replace(result_of(EVERYTHING), variant="unguarded-finish")
    assert "unguarded-finish" in plot_acts(result, ax=blank_axes(12.0, 5.0)).get_title(loc="left")
