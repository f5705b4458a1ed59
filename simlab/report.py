"""A report: one self-contained page for a reader who was not there, with the pictures beside it as PNG.

Plain HTML with every picture inside, nothing from elsewhere, and the same bytes for the same results but for the
times they took.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simlab.plots import plot_lateness, plot_states, plot_timeline
from simlab.results import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["save_figure", "write_report"]

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
section {{ margin-top: 3rem; break-inside: avoid; }}
.VALID {{ color: #00694e; }} .INVALID {{ color: #b00020; }} .UNKNOWN {{ color: #7a5b00; }}
</style>
<h1>{title}</h1>
{body}
</html>
"""

PIXELS_PER_INCH = 110


def write_report(
    results: Sequence[Result],
    folder: str | Path,
    *,
    title: str,
    tables: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> Path:
    """Write ``report.html`` and the pictures of some runs.

    Parameters
    ----------
    results
        One section each, in this order.
    folder
        Made if need be.
    tables
        Tables of rows to put first, by their headings.

    Returns
    -------
    pathlib.Path
        The page.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    body = [_table(heading, rows) for heading, rows in (tables or {}).items()]
    body += [_section(result, path) for result in results]
    page = path / "report.html"
    page.write_text(_PAGE.format(title=escape(title), body="\n".join(body)), encoding="utf-8")
    return page


def _section(result: Result, folder: Path) -> str:
    name = f"{result.scenario}-{result.variant or 'real'}-{result.seed}"
    pictures = {
        "timeline": ("who held which job when, and when the world was changed", plot_timeline(result)),
        "states": ("how many jobs stood in each state", plot_states(result)),
        "lateness": ("how late executions began", plot_lateness(result.lateness)),
    }
    images = []
    for kind, (alt, axes) in pictures.items():
        figure = axes.figure
        images.append(_picture(figure, folder / f"{name}-{kind}.png", alt))  # type: ignore[arg-type]  # not a SubFigure
    who = result.variant or "the real scheduler"
    faults = "".join(f"<li>{escape(str(fault))}</li>" for fault in result.faults) or "<li>none</li>"
    sizes = ", ".join(f"{key} = {value:,}" for key, value in result.params.items())
    checks = [
        {"check": check.name, "verdict": check.verdict.value, "what it found": check.says}
        for check in result.checks
    ]
    return (
        f"<section><h2>{escape(result.scenario)}, seed {result.seed}, {escape(who)}: "
        f'<span class="{result.verdict}">{result.verdict}</span></h2>'
        f"<p>On {escape(result.store)}; {escape(sizes)}; {len(result.table):,} jobs, {result.virtual_s:g} virtual "
        f"seconds in {result.wall_s:.2f} s. Digest <code>{result.digest}</code>.</p>"
        f"{images[0]}<p>The plan of faults:</p><ul>{faults}</ul>"
        f"<pre>{escape(result.story())}</pre>{images[1]}{images[2]}{_table('Checks', checks)}</section>"
    )


def save_figure(figure: Figure, path: Path) -> bytes:
    """Write a figure as PNG and return its bytes: the same for the same figure, on any day."""
    buffer = BytesIO()
    figure.savefig(
        buffer, format="png", dpi=PIXELS_PER_INCH, metadata={"Software": None}, bbox_inches="tight"
    )
    path.write_bytes(buffer.getvalue())
    return buffer.getvalue()


def _picture(figure: Figure, path: Path, alt: str) -> str:
    inline = base64.b64encode(save_figure(figure, path)).decode()
    return f'<p><img alt="{escape(alt)}" src="data:image/png;base64,{inline}"></p>'


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
