"""A report: one self-contained page for a reader who was not there, with the pictures beside it as PNG.

Plain HTML with every picture inside, nothing from elsewhere, and the same bytes for the same results but for the
times they took.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simlab.checks import Verdict
from simlab.plots import (
    acts_size,
    blank_axes,
    plot_acts,
    plot_effects,
    plot_lateness,
    plot_lateness_comparison,
    plot_states,
    plot_timeline,
    timeline_size,
)
from simlab.results import Result, made_folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simlab.chaos import ChaosResult

__all__ = ["CrossCheckRow", "save_figure", "write_chaos_report", "write_report"]

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
th, td {{ text-align: left; padding: .25rem .8rem; border-bottom: 1px solid #ddd; vertical-align: top; }}
pre {{ background: #f6f6f6; padding: 1rem; overflow-x: auto; font-size: 12.5px; }}
img {{ max-width: 100%; }}
section {{ margin-top: 3rem; }}
h2, h3 {{ break-after: avoid; }} table, figure, pre {{ break-inside: avoid; }}
figure {{ margin: 1rem 0; }} figcaption {{ color: #555; }}
nav li {{ margin: .2rem 0; }}
@media print {{
  body {{ margin: 0; max-width: none; font-size: 11px; }} nav {{ display: none; }}
  pre {{ white-space: pre-wrap; font-size: 9px; }} section + section {{ break-before: page; }}
}}
.VALID {{ color: #00694e; }} .INVALID {{ color: #b00020; }} .UNKNOWN {{ color: #7a5b00; }}
</style>
<h1>{title}</h1>
{body}
</html>
"""

PIXELS_PER_INCH = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossCheckRow:
    """One scenario on the model and on PostgreSQL; None for what was not run."""

    scenario: str
    seed: int
    model: str
    postgres: str | None
    digests_equal: bool | None
    virtual_s: float
    wall_s: float


_CROSSCHECK_HEADINGS = {
    "model": "model verdict",
    "postgres": "PostgreSQL verdict",
    "digests_equal": "digests equal",
    "virtual_s": "virtual s",
    "wall_s": "wall s",
}


def write_report(
    results: Sequence[Result],
    folder: str | Path,
    *,
    title: str,
    crosschecks: Sequence[CrossCheckRow | Mapping[str, Any]] = (),
    tables: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> Path:
    """Write ``report.html`` and the pictures of some runs.

    Parameters
    ----------
    results
        One section each, in this order.
    folder
        Made if need be. The pictures in it are called ``<scenario>-<variant or 'real'>-timeline.png``, and so on;
        with the seed and the store, and at last a number, where that alone would not tell two runs apart.
    crosschecks
        What was compared between the model and PostgreSQL, one row each; the first table.
    tables
        Other tables of rows to put first, by their headings.

    Returns
    -------
    pathlib.Path
        The page.
    """
    path = made_folder(folder)
    names = _names(results)
    body = [_table("Model and PostgreSQL", [_crosscheck(row) for row in crosschecks])]
    body += [_table(heading, rows) for heading, rows in (tables or {}).items()]
    body.append(_contents(results, names))
    body += [_section(result, path, name) for result, name in zip(results, names, strict=True)]
    page = path / "report.html"
    page.write_text(_PAGE.format(title=escape(title), body="\n".join(body)), encoding="utf-8")
    return page


def write_chaos_report(chaos: ChaosResult, folder: str | Path) -> Path:
    """Write ``report.html`` and the pictures of a run with real processes.

    Parameters
    ----------
    folder
        Made if need be. The pictures in it are ``chaos-acts.png``, ``chaos-effects.png`` and, where the lateness of a
        calm run was measured, ``chaos-lateness.png``.

    Returns
    -------
    pathlib.Path
        The page.
    """
    path = made_folder(folder)
    title = f"Chaos with real processes, seed {chaos.result.seed}"
    facts = chaos.summary()
    shown = ("jobs", "acknowledged", "retried_calls", "executions", "worker_lives", "converged_s", "wall_s")
    rows = [{"what": name.replace("_", " "), "how much": facts[name]} for name in shown]
    checks = [
        {"check": check.name, "verdict": check.verdict.value, "what it found": check.says}
        for check in chaos.result.checks
    ]
    body = [
        f"<h2>{escape(title)}: {_verdict(chaos.verdict)}</h2>",
        *(
            _picture(
                axes.get_figure(root=True), path / f"chaos-{name}.png", says, f"{title}: {chaos.verdict}"
            )
            for name, says, axes in _chaos_pictures(chaos)
        ),
        _table("Acts", [{"act": kind, "how often": count} for kind, count in chaos.acts.items()]),
        _table("What came of it", rows),
        _table("Checks", checks),
        f"<h3>The run in words</h3><pre>{escape(chaos.story())}</pre>",
    ]
    page = path / "report.html"
    page.write_text(_PAGE.format(title=escape(title), body="\n".join(body)), encoding="utf-8")
    return page


def _chaos_pictures(chaos: ChaosResult) -> list[tuple[str, str, Axes]]:
    once = chaos.plain_effects - chaos.duplicates
    counts = {
        "handlers that deduplicate": {
            "the first of its job": chaos.idempotent_effects,
            "a duplicate": 0,
            "refused as a duplicate": chaos.refused,
        },
        "handlers that do not": {"the first of its job": once, "a duplicate": chaos.duplicates},
    }
    pictures = [
        (
            "acts",
            "What was done to workers, network and database, and the handlers that ran meanwhile",
            plot_acts(chaos.result, ax=blank_axes(*acts_size(chaos.result))),
        ),
        (
            "effects",
            "How often the outside world was changed, with deduplication and without",
            plot_effects(counts, ax=blank_axes(8.0, 2.4)),
        ),
    ]
    if chaos.lateness is not None:
        drawn = plot_lateness_comparison(
            chaos.lateness.frame(),
            tolerance=chaos.lateness.tolerance,
            resolution_ms=chaos.lateness.resolution_ms,
            ax=blank_axes(8.0, 4.2),
        )
        says = "How late a calm run was, beside what the simulation predicts for the same load"
        pictures.append(("lateness", says, drawn))
    return pictures


def _names(results: Sequence[Result]) -> list[str]:
    """Return the beginning of each run's file names, as short as tells them apart."""
    forms = [
        [f"{run.scenario}-{run.variant or 'real'}" for run in results],
        [f"{run.scenario}-{run.variant or 'real'}-{run.seed}" for run in results],
        [f"{run.scenario}-{run.variant or 'real'}-{run.seed}-{run.store}" for run in results],
        [
            f"{run.scenario}-{run.variant or 'real'}-{run.seed}-{run.store}-{n}"
            for n, run in enumerate(results)
        ],
    ]
    return next(names for names in forms if len(set(names)) == len(names))


def _who(result: Result) -> str:
    return f"{result.scenario}, seed {result.seed}, {result.variant or 'the real scheduler'}"


def _verdict(verdict: Verdict) -> str:
    return f'<span class="{verdict.value}">{verdict.value}</span>'


def _contents(results: Sequence[Result], names: Sequence[str]) -> str:
    if len(results) < 2:
        return ""
    items = "".join(
        f'<li><a href="#{escape(name)}">{escape(_who(result))}</a>: {_verdict(result.verdict)}</li>'
        for result, name in zip(results, names, strict=True)
    )
    return f"<nav><h3>Runs</h3><ul>{items}</ul></nav>"


def _crosscheck(row: CrossCheckRow | Mapping[str, Any]) -> dict[str, Any]:
    """Return a row under the words a reader expects; what else it holds, under its own."""
    values = asdict(row) if isinstance(row, CrossCheckRow) else dict(row)
    return {_CROSSCHECK_HEADINGS.get(name, name): value for name, value in values.items()}


def _section(result: Result, folder: Path, name: str) -> str:
    # On figures of our own: in a notebook pyplot would show its own below the cell.
    pictures = (
        ("timeline", "Who held which job when, and when the world was changed",
         plot_timeline(result, ax=blank_axes(*timeline_size(result)))),
        ("states", "How many jobs stood in each state", plot_states(result, ax=blank_axes(11.0, 3.4))),
        ("lateness", "How late executions began", plot_lateness(result.lateness, ax=blank_axes(7.5, 4.0))),
    )  # fmt: skip
    timeline, *others = (
        _picture(
            axes.get_figure(root=True),
            folder / f"{name}-{kind}.png",
            says,
            f"{_who(result)}: {result.verdict}",
        )
        for kind, says, axes in pictures
    )
    faults = "".join(f"<li>{escape(str(fault))}</li>" for fault in result.faults) or "<li>none</li>"
    checks = [
        {"check": check.name, "verdict": check.verdict.value, "what it found": check.says}
        for check in result.checks
    ]
    facts = {
        "store": result.store,
        "jobs": f"{len(result.table):,}",
        **{key: f"{value:,}" for key, value in result.params.items() if key != "jobs"},
        "lease": f"{result.lease_us / 1e6:g} s",
        "virtual time": f"{result.virtual_s:g} s",
        "wall time": f"{result.wall_s:.2f} s",
        "digest": result.digest,
    }
    told = (
        ""
        if result.verdict is Verdict.VALID
        else f"<h3>What went wrong</h3><pre>{escape(result.story())}</pre>"
    )
    parameters = [{"parameter": key, "value": value} for key, value in facts.items()]
    return (
        f'<section id="{escape(name)}"><h2>{escape(_who(result))}: {_verdict(result.verdict)}</h2>'
        f"{timeline}<h3>The plan of faults</h3><ul>{faults}</ul>"
        f"{told}{_table('Checks', checks)}{''.join(others)}"
        f"{_table('Parameters', parameters)}</section>"
    )


def save_figure(figure: Figure, path: Path) -> bytes:
    """Write a figure as PNG and return its bytes: the same for the same figure, on any day."""
    buffer = BytesIO()
    figure.savefig(
        buffer, format="png", dpi=PIXELS_PER_INCH, metadata={"Software": None}, bbox_inches="tight"
    )
    path.write_bytes(buffer.getvalue())
    return buffer.getvalue()


def _picture(figure: Figure | None, path: Path, says: str, of: str) -> str:
    assert figure is not None
    inline = base64.b64encode(save_figure(figure, path)).decode()
    return (
        f'<figure><img alt="{escape(f"{says}; {of}")}" src="data:image/png;base64,{inline}">'
        f"<figcaption>{escape(says)}.</figcaption></figure>"
    )


def _table(heading: str, rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(str(name))}</th>" for name in rows[0])
    body = "".join(f"<tr>{''.join(_cell(value) for value in row.values())}</tr>" for row in rows)
    return f"<h3>{escape(heading)}</h3><table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    words: Mapping[Any, str] = {True: "yes", False: "NO", None: "-"}
    text = words[value] if isinstance(value, bool) or value is None else str(value)
    verdict = f' class="{text}"' if text in {"VALID", "INVALID", "UNKNOWN"} else ""
    return f"<td{verdict}>{escape(text)}</td>"
