"""The report: one page with everything inside, the same bytes for the same results, names escaped."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from simlab.experiment import simulate
from simlab.report import CrossCheckRow, write_report
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
    assert "://" not in page
    assert len(re.findall(r"<img alt=\"[^\"]+\"", page)) == 3


def test_the_page_tells_the_story(tmp_path: Path, naive: Result) -> None:
    page = write_report([naive], tmp_path, title="A title").read_text(encoding="utf-8")
    for text in (
        "INVALID",
        naive.digest,
        "loses power",
        "changed the world 2 times",
        "<td>n_jobs</td><td>8</td>",
    ):
        assert text in page
    assert "<title>A title</title>" in page
    for check in naive.checks:
        assert f"<td>{check.name}</td>" in page
    for fault in naive.faults:
        assert str(fault) in page


def test_the_same_results_give_the_same_bytes(tmp_path: Path, naive: Result) -> None:
    again = replace(simulate("crash-after-execution", seed=7, variant="no-idempotency"), wall_s=0.0)
    first = write_report([naive], tmp_path / "a", title="A title").read_bytes()
    assert write_report([again], tmp_path / "b", title="A title").read_bytes() == first


def test_the_pictures_lie_beside_it(tmp_path: Path, naive: Result) -> None:
    write_report([naive], tmp_path, title="A title")
    pictures = sorted(tmp_path.glob("*.png"))
    assert [path.name for path in pictures] == [
        f"crash-after-execution-no-idempotency-{kind}.png" for kind in ("lateness", "states", "timeline")
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5_000 for path in pictures)


def test_names_are_escaped(tmp_path: Path, naive: Result) -> None:
    rows = [{"<b>": "<script>alert(1)</script>", "ok": True, "missing": None}]
    page = write_report([naive], tmp_path, title="<i>", tables={"<u>": rows}).read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "&lt;i&gt;" in page
    assert "<td>yes</td><td>-</td>" in page


def test_runs_that_differ_in_their_seed_alone_do_not_share_pictures(tmp_path: Path, naive: Result) -> None:
    other = replace(naive, seed=8)
    page = write_report([naive, other, other], tmp_path, title="A title").read_text(encoding="utf-8")
    assert len(list(tmp_path.glob("*-timeline.png"))) == 3
    sections = re.findall(r'<section id="([^"]+)"', page)
    assert len(set(sections)) == 3
    assert all(f'href="#{name}"' in page for name in sections)


def test_a_comparison_is_a_table_under_words_a_reader_expects(tmp_path: Path, naive: Result) -> None:
    row = CrossCheckRow(
        scenario="crash-after-execution", seed=7, model="VALID", postgres=None, digests_equal=False,
        virtual_s=364.0, wall_s=0.5,
    )  # fmt: skip
    page = write_report([], tmp_path / "a", title="A title", crosschecks=[row]).read_text(encoding="utf-8")
    for heading in (
        "scenario",
        "seed",
        "model verdict",
        "PostgreSQL verdict",
        "digests equal",
        "virtual s",
        "wall s",
    ):
        assert f"<th>{heading}</th>" in page
    assert '<td class="VALID">VALID</td><td>-</td><td>NO</td><td>364.0</td><td>0.5</td>' in page
    as_dict = write_report([], tmp_path / "b", title="A title", crosschecks=[asdict(row)])
    assert as_dict.read_text(encoding="utf-8") == page


def test_writing_a_report_leaves_nothing_with_pyplot(tmp_path: Path, naive: Result) -> None:
    before = mpl.rcParams.copy()
    write_report([naive], tmp_path, title="A title")
    assert plt.get_fignums() == []
    assert mpl.rcParams == before
