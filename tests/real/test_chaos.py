"""Real processes, real signals, real time: one minute of chaos, and a judge that sees what is wrong.

Bounds of time are generous, and what a starved machine cannot tell is UNKNOWN: such a verdict is accepted where the
starvation was measured, and nowhere else.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from simlab.chaos import judge_again, run_chaos
from simlab.chaos.judging import CHAOS_SETTINGS, TIMED
from simlab.chaos.lateness import MAX_SLOWDOWN
from simlab.chaos.plan import ActKind, plan_acts
from simlab.chaos.proxy import ProxyThread
from simlab.checks import Verdict
from simlab.errors import InvalidExperiment, PostgresUnavailable
from simlab.pgserver import PostgresServer, throwaway_postgres
from simlab.results import Result
from tests.waiting import wait_for

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """Give a server that can be stopped and reached over TCP; skip what needs one where none can be had."""
    try:
        with throwaway_postgres(durable=True, tcp=True) as server:
            if server.tcp_dsn is None:
                pytest.skip(f"{server.source} is not a server of our own")
            yield server
    except PostgresUnavailable as error:
        pytest.skip(str(error))


class Lab:
    """The command ``simlab chaos`` in a process of its own, with a folder of its own for whatever is temporary."""

    def __init__(self, folder: Path) -> None:
        # Short, for the path of a socket has little room.
        self.temporary = Path(tempfile.mkdtemp(prefix="lab-", dir="/tmp"))
        self.out = folder / "out"

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys; from simlab.cli import main; sys.exit(main())",
                "chaos",
                *words,
                "--out",
                str(self.out),
            ],
            env={**os.environ, "TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def processes(self) -> list[str]:
        """Return the commands of whatever runs with our folder in its environment."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # It may have ended meanwhile, or be somebody else's.
                if str(self.temporary).encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_text().replace("\0", " "))
        return found

    def assert_nothing_is_left(self) -> None:
        wait_for(lambda: not self.processes())
        assert list(self.temporary.iterdir()) == []


@pytest.fixture
def lab(own_server: PostgresServer, tmp_path: Path) -> Iterator[Lab]:
    one = Lab(tmp_path)
    yield one
    shutil.rmtree(one.temporary)


def assert_valid_or_starved(told: dict[str, Any]) -> None:
    """Every check says VALID, but for those a starved machine cannot judge, when it was one; lateness likewise."""
    for check, verdict in told["checks"].items():
        excused = (
            verdict == "UNKNOWN" and check in {*TIMED, "all-end"} and "starved" in told["problems"][check]
        )
        assert verdict == "VALID" or excused, f"{check}: {told['problems'].get(check)}"
    lateness = told["lateness"]
    if lateness is not None and lateness["verdict"] != "VALID":
        assert lateness["verdict"] == "UNKNOWN"
        assert lateness["slowdown"] > MAX_SLOWDOWN


def test_one_minute_of_chaos(lab: Lab) -> None:
    """Everything is done to the workers; nothing that was promised is broken; and all of it is gone afterwards."""
    process = lab.start("--minutes", "1", "--seed", "1", "--json")
    try:
        out, err = process.communicate(timeout=400)
    finally:
        process.kill()
        process.wait()
    assert err == "", "no bar where there is no terminal, and no warnings of what was done on purpose"
    told = json.loads(out)
    assert_valid_or_starved(told)
    assert process.returncode == ("VALID", "INVALID", "UNKNOWN").index(told["verdict"])

    # It was chaos.
    assert set(told["acts"]) == {kind.value for kind in ActKind}
    assert sum(told["acts"].values()) >= 30
    assert told["worker_lives"] > told["params"]["workers"]
    # At least once: who does not deduplicate changed the world more often than he was asked to.
    assert told["duplicates"] > 0
    assert told["refused"] > 0
    assert told["executions"] > told["idempotent_effects"] + told["plain_effects"] - told["duplicates"]
    # Nothing was lost, whatever the client had to ask for more than once.
    assert told["acknowledged"] == told["jobs"] == told["params"]["jobs"]
    assert told["converged_s"] is not None

    # What is written can be read, and judged again.
    saved = Result.load(lab.out)
    assert saved.digest == told["digest"]
    assert judge_again(saved).checks == saved.checks
    names = {path.name for path in lab.out.iterdir()}
    assert {
        "chaos-acts.png",
        "chaos-effects.png",
        "chaos-lateness.png",
        "lateness.csv",
        "chaos.json",
    } <= names
    page = (lab.out / "report.html").read_text(encoding="utf-8")
    assert page.count('<img alt="') == page.count('src="data:image/png;base64,') == 3
    assert "://" not in page

    lab.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_a_signal_ends_everything(lab: Lab, number: signal.Signals, code: int) -> None:
    process = lab.start("--minutes", "2", "--no-lateness", "--workers", "2")
    try:
        # Workers that have begun to run jobs, so that there is something to end.
        wait_for(
            lambda: process.poll() is not None or any(lab.temporary.glob("simlab-chaos-*/*.journal")),
            seconds=90,
        )
        assert len([command for command in lab.processes() if "scheduler worker" in command]) == 2
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (code, "", "")
    lab.assert_nothing_is_left()


def undisturbed_silences(*, minutes: float, workers: int) -> Iterator[int]:
    """Return seeds under which one worker falls silent for longer than its lease, and nothing else strikes it then."""
    until_us, lease_us = int(60e6 * minutes), CHAOS_SETTINGS.lease_us
    for seed in range(1000):
        acts = plan_acts(seed=seed, workers=workers, until_us=until_us, lease_us=lease_us)
        for silence in acts:
            over_us = silence.at_us + lease_us + 1_500_000
            if silence.kind is not ActKind.SILENCE or silence.worker == workers or over_us > until_us:
                continue
            # The others may be struck: one of them will take what the silent one has lost.
            before_us = silence.at_us - 2_000_000
            near = [act for act in acts if act is not silence and before_us < act.at_us < over_us]
            if before_us > 0 and all(
                act.kind is not ActKind.RESTART
                and (act.worker != silence.worker or act.kind is ActKind.TERMINATE)
                for act in near
            ):
                yield seed
                break


def test_the_judge_sees_a_worker_that_does_not_guard_its_writes(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    """An outcome kept back by a silent network is written over what somebody else has made of the job since."""
    minutes, workers = 0.15, 4
    # On a machine that lets nobody run for seconds, no handler may have ended in the silence: then once more.
    for seed in itertools.islice(undisturbed_silences(minutes=minutes, workers=workers), 3):
        chaos = run_chaos(
            minutes,
            workers=workers,
            jobs=300,
            seed=seed,
            mistake="unguarded-finish",
            lateness=False,
            out=tmp_path,
        )
        if chaos.verdict is Verdict.INVALID:
            break
    found = {check.name for check in chaos.result.checks if check.verdict is Verdict.INVALID}
    assert found & {"no-stale-write", "terminal-absorbs"}
    assert "unguarded-finish" in chaos.story()
    assert judge_again(Result.load(tmp_path)).checks == chaos.result.checks


def test_a_folder_that_cannot_be_made_is_told_of_before_the_run(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidExperiment, match=r"file/out cannot be made: .*; name another folder"):
        run_chaos(out=tmp_path / "file" / "out")


def test_a_reply_is_lost_after_the_commit(own_server: PostgresServer) -> None:
    """The client is told nothing; the row is there."""
    upstream = conninfo_to_dict(own_server.tcp_dsn or "")
    with ProxyThread() as network, psycopg.connect(own_server.dsn, autocommit=True) as direct:
        direct.execute("CREATE TABLE lost_reply (n integer)")
        proxy = network.open(str(upstream["host"]), int(str(upstream["port"])))
        through = psycopg.connect(make_conninfo(own_server.tcp_dsn or "", port=proxy.port), autocommit=True)
        errors: list[psycopg.Error] = []

        def insert() -> None:
            try:
                through.execute("INSERT INTO lost_reply VALUES (1)")
            except psycopg.Error as error:
                errors.append(error)

        proxy.swallow_replies()
        asking = threading.Thread(target=insert)
        asking.start()
        wait_for(lambda: direct.execute("SELECT count(*) FROM lost_reply").fetchone() == (1,))
        assert asking.is_alive(), "it still waits for the answer"
        proxy.heal()
        asking.join(20)
        through.close()
        direct.execute("DROP TABLE lost_reply")
    assert [type(error) for error in errors] == [psycopg.OperationalError]
