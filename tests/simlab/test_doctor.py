"""The doctor: looks at everything, changes nothing, and says what is missing and how to mend it."""

import importlib.metadata
import os

import pytest

from simlab import doctor
from simlab.pgserver import SourceReport, directories


@pytest.fixture(autouse=True)
def _no_choice_from_outside(monkeypatch):
    monkeypatch.delenv("SIMLAB_DSN", raising=False)
    monkeypatch.delenv("SIMLAB_POSTGRES", raising=False)


def by_name(findings):
    return {finding.name: finding for finding in findings}


def reports(*usable):
    names = ("dsn", "embedded", "docker", "system")
    return [
        SourceReport(
            name,
            name in usable,
            f"detail of {name}",
            "" if name in usable else f"mend {name}",
            name in usable[:1],
        )
        for name in names
    ]


def test_everything_is_looked_at_and_this_machine_is_described():
    found = by_name(doctor.diagnose())
    expected = ["python", *doctor.REQUIRED_PACKAGES]
    expected += [f"postgres: {name}" for name in ("dsn", "embedded", "docker", "system")]
    assert list(found) == [*expected, "postgres", "leftovers"]
    assert found["python"].ok
    assert found["simpy"].detail == importlib.metadata.version("simpy")
    assert not found["postgres: dsn"].ok
    assert found["postgres: dsn"].optional


def test_a_missing_and_an_old_package_are_told_with_the_mend(monkeypatch):
    monkeypatch.setattr(doctor, "REQUIRED_PACKAGES", {"no-such-package": "1.0", "simpy": "9999.1"})
    findings = doctor.diagnose()
    found = by_name(findings)
    assert (found["no-such-package"].ok, found["no-such-package"].detail) == (False, "not installed")
    assert found["no-such-package"].mend == "pip install 'no-such-package>=1.0'"
    assert "is older than 9999.1" in found["simpy"].detail
    assert not doctor.healthy(findings)


@pytest.mark.parametrize(
    ("version", "oldest", "ok"), [("3.10", "3.9", True), ("3.9", "3.10", False), ("4.1.2rc1", "4.1.2", True)]
)
def test_versions_are_compared_as_numbers(monkeypatch, version, oldest, ok):
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: version)
    assert doctor._package("some", oldest).ok is ok


def test_the_server_that_would_be_used_is_named(monkeypatch):
    monkeypatch.setattr(doctor, "survey", lambda environ: reports("docker", "system"))
    found = by_name(doctor.diagnose())
    assert found["postgres"].detail == "would use docker: detail of docker"
    assert found["postgres: system"].ok
    assert found["postgres: embedded"].mend == "mend embedded"
    assert found["postgres: embedded"].optional


def test_no_server_at_all_is_unhealthy(monkeypatch):
    monkeypatch.setattr(doctor, "survey", lambda environ: reports())
    findings = doctor.diagnose()
    assert not by_name(findings)["postgres"].ok
    assert by_name(findings)["postgres"].mend
    assert not doctor.healthy(findings)


def test_a_source_that_does_not_exist_is_a_finding_not_an_error(monkeypatch):
    monkeypatch.setenv("SIMLAB_POSTGRES", "oracle")
    finding = by_name(doctor.diagnose())["postgres"]
    assert not finding.ok
    assert "SIMLAB_POSTGRES=oracle" in finding.detail
    assert "embedded" in finding.mend


def test_a_forced_source_that_does_not_work_is_not_replaced_by_another(monkeypatch, tmp_path):
    monkeypatch.setenv("SIMLAB_POSTGRES", "docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    assert not by_name(doctor.diagnose())["postgres"].ok


def test_an_unreachable_named_server_is_a_finding_without_its_password(monkeypatch):
    monkeypatch.setenv("SIMLAB_DSN", "postgresql://me:hunter2@127.0.0.1:1/mine")
    findings = doctor.diagnose()
    assert "Connection refused" in by_name(findings)["postgres: dsn"].detail
    assert not by_name(findings)["postgres"].ok
    assert "hunter2" not in doctor.render(findings)


def test_leftovers_are_shown_and_not_touched(monkeypatch, tmp_path):
    monkeypatch.setattr(directories, "_places", lambda: [tmp_path])
    assert by_name(doctor.diagnose())["leftovers"].ok
    left = tmp_path / f"simlab-pg-{os.geteuid()}-{2**22 + 1}-1-00000000"
    left.mkdir()
    findings = doctor.diagnose()
    finding = by_name(findings)["leftovers"]
    assert not finding.ok
    assert str(left) in finding.detail
    assert finding.optional
    assert left.exists()


def test_rendering_marks_each_finding_and_puts_the_mend_below():
    findings = [
        doctor.Finding("good", ok=True, detail="fine"),
        doctor.Finding("spare", ok=False, detail="absent", mend="get it", optional=True),
        doctor.Finding("bad", ok=False, detail="broken", mend="repair it"),
    ]
    assert doctor.render(findings).splitlines() == [
        "ok  good   fine",
        "--  spare  absent",
        "           -> get it",
        "!!  bad    broken",
        "           -> repair it",
    ]
    assert doctor.render([]) == ""
    assert doctor.healthy(findings[:2])
    assert not doctor.healthy(findings)
