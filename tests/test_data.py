"""The recorded files of data/: each is described, and each digest is what this version gives."""

import json
import shutil
from pathlib import Path

import pytest

from simlab import SCENARIOS, simulate
from simlab.teaching import recorded_digest, renew_digests

DATA = Path(__file__).resolve().parents[1] / "data"
GOLDEN = DATA / "golden_digests.json"


def scenarios() -> list[str]:
    return list(json.loads(GOLDEN.read_text(encoding="utf-8")))


def test_every_file_is_described():
    described = (DATA / "README.md").read_text(encoding="utf-8")
    for file in sorted(DATA.iterdir()):
        assert file.name == "README.md" or f"`{file.name}`" in described, (
            f"{file.name} is not in data/README.md"
        )


def test_every_scenario_is_recorded_but_the_one_that_takes_a_minute():
    assert sorted(scenarios()) == sorted(set(SCENARIOS) - {"midnight-stampede"})


@pytest.mark.parametrize("scenario", scenarios())
def test_a_recorded_digest_is_what_this_version_gives(scenario):
    seed, recorded = recorded_digest(GOLDEN, scenario)
    assert simulate(scenario, seed=seed).digest == recorded, (
        "the history of this scenario has changed; if that is meant, renew the digest as data/README.md says"
    )


def test_a_recorded_digest_can_be_wrong():
    """The comparison is able to fail: the next seed does not give it."""
    seed, recorded = recorded_digest(GOLDEN, "crash-after-execution")
    assert simulate("crash-after-execution", seed=seed + 1).digest != recorded


def test_renewing_mends_a_wrong_digest_and_changes_nothing_else(tmp_path):
    copy = tmp_path / "golden.json"
    shutil.copy(GOLDEN, copy)
    copy.write_text(copy.read_text().replace(recorded_digest(GOLDEN, scenarios()[0])[1], "wrong"))
    renew_digests(copy)
    assert copy.read_bytes() == GOLDEN.read_bytes()


def test_the_command_that_renews_is_the_one_in_the_readme():
    described = (DATA / "README.md").read_text(encoding="utf-8")
    assert f"{renew_digests.__name__}('data/{GOLDEN.name}')" in described
