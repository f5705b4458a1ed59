"""The report: one page with everything inside, the same bytes for the same results, names escaped."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import pytest

from simlab.experiment import simulate
from simlab.report import write_report
from simlab.results import Result


@pytest.fixture(scope="module")
def naive() -> Result:
    mpl.use("Agg")
    return replace(simulate("crash-after-execution", seed=7, variant="no-idempotency"), wall_s=0.0)


def test_everything_is_inside_the_page(tmp_path: Path, naive: Result) -> None:
    page = write_report([naive], tmp_path, title="A title").read_text(encoding="utf-8")
    sources = re.findall(r"<img[^>]* src=\"([^\"]{0,40})", page)
    assert len(sources) == 3
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "http" not in page
    assert len(re.findall(r"<img alt=\"[^\"]+\"", page)) == 3


def test_the_page_tells_the_story(tmp_path: Path, naive: Result) -> None:
    page = write_report([naive], tmp_path, title="A title").read_text(encoding="utf-8")
    for text in ("INVALID", naive.digest, "loses power", "changed the world 2 times", "n_jobs = 8"):
        assert text in page


def test_the_same_results_give_the_same_bytes(tmp_path: Path, naive: Result) -> None:
    again = replace(simulate("crash-after-execution", seed=7, variant="no-idempotency"), wall_s=0.0)
    first = write_report([naive], tmp_path / "a", title="A title").read_bytes()
    assert write_report([again], tmp_path / "b", title="A title").read_bytes() == first


def test_the_pictures_lie_beside_it(tmp_path: Path, naive: Result) -> None:
    write_report([naive], tmp_path, title="A title")
    pictures = sorted(tmp_path.glob("*.png"))
    assert [path.name.rpartition("-")[2] for path in pictures] == [
        "lateness.png",
        "states.png",
        "timeline.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5_000 for path in pictures)


def test_names_are_escaped(tmp_path: Path, naive: Result) -> None:
    rows = [{"<b>": "<script>alert(1)</script>", "ok": True, "missing": None}]
    page = write_report([naive], tmp_path, title="<i>", tables={"<u>": rows}).read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "&lt;i&gt;" in page
    assert "<td>yes</td><td>-</td>" in page
