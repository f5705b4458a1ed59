"""Build the learner notebooks from their solved sources, compare them, or execute both editions.

The one source of a notebook is ``notebooks/src/NN_name.py`` in jupytext's percent format, solved. From it come

- the *learner* edition, ``notebooks/NN_name.ipynb``: outputs stripped, solutions replaced, kept in git;
- the *solved* edition, made only to be executed.

What the tags of a cell mean::

    # %% tags=["parameters"]     one a notebook: plain assignments, `fast` among them; `--execute` sets fast = True
    # %% tags=["solution"]       code: the leading comments stay as the task, each name it assigns becomes None;
                                 markdown: becomes a line to write under
    # %% tags=["check"]          asserts about the solution above it; for the learner they run only once every name
                                 of that solution has been given, until then the cell says "not attempted"
    # %% tags=["raises-exception"]   the cell is meant to raise (nbclient's own tag)

Both builds and both machines give the same bytes: cell ids are hashes of the content, metadata is fixed.
A learner's own edits are never overwritten: a notebook that was changed by hand is first copied to
``notebooks/mine/``.

This module must not import the packages of the course: a notebook is text until it is executed.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import difflib
import functools
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
import textwrap
import time
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from tqdm import tqdm

__all__ = ["Edition", "Outcome", "SourceError", "build", "check", "execute", "main", "read_source", "render"]

Edition = str
EDITIONS: tuple[Edition, ...] = ("learner", "solved")
MAX_BYTES = 200_000  # A generated notebook has no outputs; above this, data slipped into its source.
TRACEBACK_LINES = 12  # What is shown of a failing cell's traceback, from its end.
KNOWN_TAGS = frozenset({"parameters", "solution", "check", "raises-exception"})
NOT_ATTEMPTED = "not attempted yet: fill in the cell above, then run this one again"
HERE = Path(__file__).resolve().parent


class SourceError(Exception):
    """A notebook's source breaks a rule of the course; says which cell, and the mend."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the execution of one edition of one notebook ended.

    Parameters
    ----------
    name, edition
        Which notebook.
    seconds
        Wall time, the kernel's start included.
    error
        None, or what failed, where, and the end of the traceback.
    path
        The executed notebook, written whether it failed or not.
    """

    name: str
    edition: Edition
    seconds: float
    error: str | None
    path: Path


# ------------------------------------------------------------------------------------------ generation


def read_source(path: Path) -> NotebookNode:
    """Read a percent-format source into a notebook with fixed metadata and content-addressed cell ids.

    Raises
    ------
    SourceError
        When the source breaks a rule: an unknown tag, no or two `parameters` cells, no `fast` among them.
    """
    source = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    cells = [_plain_cell(cell) for cell in source.cells]
    for number, cell in enumerate(cells, start=1):
        unknown = sorted(set(_tags(cell)) - KNOWN_TAGS)
        if unknown:
            raise SourceError(
                f"{path.name}, cell {number}: unknown tag {unknown[0]!r}; known: {sorted(KNOWN_TAGS)}"
            )
    parameters = [cell for cell in cells if "parameters" in _tags(cell)]
    if len(parameters) != 1:
        raise SourceError(f'{path.name}: {len(parameters)} cells tagged "parameters", there must be one')
    if "fast" not in _assigned(parameters[0].source, path.name):
        raise SourceError(
            f"{path.name}: the parameters cell must set `fast = False`, the switch for small sizes"
        )
    return _notebook(cells)


def render(source: NotebookNode, edition: Edition, name: str = "notebook") -> NotebookNode:
    """Return one edition of a notebook that `read_source` read; the argument is left as it was."""
    if edition not in EDITIONS:
        raise ValueError(f"no edition {edition!r}; there are {', '.join(EDITIONS)}")
    if edition == "solved":
        return _notebook([_plain_cell(cell) for cell in source.cells])
    cells: list[NotebookNode] = []
    wanted: list[str] = []  # What the solutions since the last check assign.
    checked = True
    for number, original in enumerate(source.cells, start=1):
        cell = _plain_cell(original)
        where = f"{name}, cell {number}"
        if "solution" in _tags(cell):
            if checked:
                wanted, checked = [], False
            cell.source, names = _stub(cell, where)
            wanted += [each for each in names if each not in wanted]
        elif "check" in _tags(cell):
            cell.source = _patient_check(cell.source, wanted, where)
            checked = True
        cells.append(cell)
    return _notebook(cells)


def to_text(notebook: NotebookNode) -> str:
    """Return the canonical bytes of a notebook, as text."""
    text: str = nbformat.writes(notebook, version=nbformat.NO_CONVERT)  # type: ignore[no-untyped-call]
    return text.rstrip("\n") + "\n"


def _plain_cell(cell: NotebookNode) -> NotebookNode:
    """Keep a cell's type, source and tags, and nothing else."""
    tags = _tags(cell)
    plain: dict[str, Any] = {"cell_type": cell.cell_type, "metadata": {"tags": tags} if tags else {}}
    if cell.cell_type == "code":
        plain |= {"execution_count": None, "outputs": []}
    return nbformat.from_dict(plain | {"source": cell.source})  # type: ignore[no-untyped-call, no-any-return]


def _notebook(cells: list[NotebookNode]) -> NotebookNode:
    seen: Counter[str] = Counter()
    for cell in cells:
        content = f"{cell.cell_type}\0{cell.source}"
        seen[content] += 1
        cell["id"] = hashlib.sha256(f"{content}\0{seen[content]}".encode()).hexdigest()[:12]
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "source_digest": _digest(cells),
    }
    notebook: NotebookNode = nbformat.from_dict(  # type: ignore[no-untyped-call]
        {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    )
    nbformat.validate(notebook)
    return notebook


def _digest(cells: Sequence[Mapping[str, Any]]) -> str:
    """Hash what a reader may edit, and not what running a notebook changes."""
    text = json.dumps([[cell["cell_type"], "".join(cell["source"])] for cell in cells])
    return hashlib.sha256(text.encode()).hexdigest()


def _tags(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def _assigned(source: str, where: str) -> list[str]:
    """Name what a cell defines at its top level, in order."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise SourceError(
            f"{where}, line {error.lineno}: {error.msg}; such a cell must be plain Python"
        ) from None
    names: list[str] = []
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(statement.name)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names += [
                node.id
                for target in targets
                for node in ast.walk(target)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            ]
    return list(dict.fromkeys(names))


def _stub(cell: NotebookNode, where: str) -> tuple[str, list[str]]:
    """Return what the learner sees in place of a solution, and the names left to be given."""
    if cell.cell_type != "code":
        return "*Your turn: write your answer here.*", []
    names = _assigned(cell.source, where)
    if not names:
        raise SourceError(
            f"{where}: a solution must assign a name, so that its check can tell whether it was tried"
        )
    task: list[str] = []
    for line in cell.source.splitlines():
        if not line.startswith("#"):
            break
        task.append(line)
    return "\n".join([*task, "# Your turn:", *(f"{name} = None" for name in names)]), names


def _patient_check(source: str, names: list[str], where: str) -> str:
    """Wrap a check so that it waits for the answers."""
    if not names:
        raise SourceError(f"{where}: a check must follow a solution")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.STRING and token.start[0] != token.end[0]:
            raise SourceError(
                f"{where}: a check is indented for the learner; avoid strings over several lines in it"
            )
    if len(names) == 1:
        missing = f"{names[0]} is None"
    else:
        missing = f"any(answer is None for answer in ({', '.join(names)}))"
    return f'if {missing}:\n    print("{NOT_ATTEMPTED}")\nelse:\n{textwrap.indent(source, "    ")}'


def sources(root: Path, names: Sequence[str] = ()) -> list[Path]:
    """List the sources under a notebooks directory, all or those whose names begin with one of `names`."""
    found = sorted((root / "src").glob("[0-9][0-9]_*.py"))
    for name in names:
        if not any(path.stem.startswith(name) for path in found):
            raise SourceError(f"no notebook begins with {name!r} in {root / 'src'}")
    return [path for path in found if not names or any(path.stem.startswith(name) for name in names)]


def learner_text(path: Path) -> str:
    """Return the bytes of the learner edition of one source, as text."""
    text = to_text(render(read_source(path), "learner", path.name))
    size = len(text.encode())
    if size > MAX_BYTES:
        raise SourceError(f"{path.name}: {size:,} bytes, at most {MAX_BYTES:,}; move data out of the cells")
    return text


def build(root: Path, names: Sequence[str] = ()) -> list[Path]:
    """Write the learner editions; return those that changed. Hand-edited ones are copied to `mine/` first."""
    changed: list[Path] = []
    for path in sources(root, names):
        text = learner_text(path)
        target = root / f"{path.stem}.ipynb"
        if target.exists():
            if target.read_text(encoding="utf-8") == text:
                continue
            _set_aside(target)
        target.write_text(text, encoding="utf-8")
        changed.append(target)
    return changed


def _set_aside(target: Path) -> None:
    """Copy a notebook that somebody edited to where it will not be overwritten."""
    try:
        existing = json.loads(target.read_text(encoding="utf-8"))
        edited = existing["metadata"].get("source_digest") != _digest(existing["cells"])
    except (ValueError, KeyError, TypeError):
        edited = True  # Not a notebook we wrote.
    if not edited:
        return
    mine = target.parent / "mine"
    mine.mkdir(exist_ok=True)
    copies = (mine / f"{target.stem}{suffix}.ipynb" for suffix in ("", *(f"-{n}" for n in range(2, 1000))))
    copy = next(path for path in copies if not path.exists())
    shutil.copy2(target, copy)
    print(f"{target.name} was edited by hand; your copy is {copy}")


def check(root: Path, names: Sequence[str] = ()) -> list[str]:
    """Compare what is on disk with what the sources give; return one message for each difference."""
    problems: list[str] = []
    for path in sources(root, names):
        text = learner_text(path)
        target = root / f"{path.stem}.ipynb"
        if not target.exists():
            problems.append(f"{target.name} is missing; run `make notebooks`")
        elif (existing := target.read_text(encoding="utf-8")) != text:
            problems.append(
                f"{target.name} differs from src/{path.name} at {_first_difference(existing, text)}; "
                "run `make notebooks` (edits belong in the source)"
            )
    if not names:
        stems = {path.stem for path in sources(root)}
        problems += [
            f"{target.name} has no source in src/; delete it, or name it without a leading number"
            for target in sorted(root.glob("[0-9][0-9]_*.ipynb"))
            if target.stem not in stems
        ]
    return problems


def _first_difference(existing: str, expected: str) -> str:
    before, after = existing.splitlines(), expected.splitlines()
    for operation, start, *_ in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if operation != "equal":
            return f"line {start + 1}"
    return "its line endings"


# ------------------------------------------------------------------------------------------- execution


class _OwnKernel(KernelSpecManager):
    """Offers one kernel: the Python that runs this module, whatever else is registered on the machine."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(
            argv=[
                *(sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"),
                "--IPKernelApp.log_level=ERROR",  # A cell's errors come as messages; this is its idle talk.
            ],
            display_name=kernel_name,
            language="python",
        )


@contextmanager
def _clean_settings() -> Iterator[None]:
    """Keep a reader's own IPython and Jupyter settings out of the execution."""
    names = ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "PYDEVD_DISABLE_FILE_VALIDATION")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="notebooks-") as directory:
        os.environ |= dict.fromkeys(names[:3], directory) | {names[3]: "1"}
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def with_parameters(notebook: NotebookNode, values: Mapping[str, object]) -> NotebookNode:
    """Return a copy with a cell after the `parameters` cell that sets these values, as papermill does."""
    cells: list[NotebookNode] = []
    for cell in notebook.cells:
        cells.append(_plain_cell(cell))
        if "parameters" in _tags(cell) and values:
            code = "\n".join(["# Injected.", *(f"{name} = {value!r}" for name, value in values.items())])
            injected = {"cell_type": "code", "metadata": {"tags": ["injected-parameters"]}, "source": code}
            cells.append(_plain_cell(nbformat.from_dict(injected)))  # type: ignore[no-untyped-call]
    return _notebook(cells)


def execute(
    path: Path,
    edition: Edition,
    *,
    out: Path,
    parameters: Mapping[str, object],
    timeout_s: int = 300,
    on_cell: Callable[[], object] = lambda: None,
) -> Outcome:
    """Execute one edition of one source in a kernel of its own; write the result to ``out/edition/``.

    Parameters
    ----------
    path
        The source.
    out
        Where the executed notebook goes, outputs included.
    parameters
        Values set after the `parameters` cell.
    timeout_s
        The limit for one cell, in seconds.
    on_cell
        Called after each cell, for progress.
    """
    started = time.perf_counter()
    notebook = with_parameters(render(read_source(path), edition, path.name), parameters)
    client = NotebookClient(
        notebook,
        km=AsyncKernelManager(kernel_spec_manager=_OwnKernel(), kernel_name="python3"),
        timeout=timeout_s,
        on_cell_complete=lambda **_: on_cell(),
        resources={"metadata": {"path": str(path.parent.parent)}},  # Where a learner's kernel starts too.
    )
    error: str | None = None
    try:
        client.execute()
    except CellTimeoutError:
        error = f"{_failing_cell(notebook)} ran longer than {timeout_s} s"
    except DeadKernelError:
        error = f"{_failing_cell(notebook)}: the kernel died (killed, or out of memory?)"
    except RuntimeError as failure:
        error = f"the kernel did not start: {failure}"
    except CellExecutionError as failure:
        error = f"{_failing_cell(notebook)} failed: {failure.ename}: {failure.evalue}\n{_short(failure.traceback)}"
    target = out / edition / f"{path.stem}.ipynb"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(to_text(notebook), encoding="utf-8")
    return Outcome(path.stem, edition, time.perf_counter() - started, error, target)


def _failing_cell(notebook: NotebookNode) -> str:
    """Name the cell that was started last: its number and its first line."""
    started = [
        (number, cell)
        for number, cell in enumerate(notebook.cells, start=1)
        if cell.cell_type == "code" and "execution" in cell.metadata
    ]
    if not started:
        return "the start"
    number, cell = started[-1]
    lines = [line for line in cell.source.splitlines() if line.strip()]
    return f"cell {number} (`{lines[0] if lines else ''}`)"


def _short(traceback: str) -> str:
    """Return the end of a traceback without its colours."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", traceback).rstrip().splitlines()
    return textwrap.indent("\n".join(lines[-TRACEBACK_LINES:]), "    ")


def execute_all(
    root: Path,
    editions: Sequence[Edition],
    *,
    names: Sequence[str] = (),
    out: Path,
    fast: bool = True,
    jobs: int = 1,
    timeout_s: int = 300,
) -> list[Outcome]:
    """Execute every notebook in every edition asked for, `jobs` at a time, and say how each went."""
    work = [(path, edition) for path in sources(root, names) for edition in editions]
    cells = sum(sum(cell.cell_type == "code" for cell in read_source(path).cells) for path, _ in work)
    outcomes: list[Outcome] = []
    quiet = None if sys.stderr.isatty() else True
    with (
        _clean_settings(),
        tqdm(total=cells, unit="cell", leave=False, disable=quiet) as bar,
        concurrent.futures.ThreadPoolExecutor(max_workers=jobs) as threads,
    ):
        run = functools.partial(
            execute,
            out=out,
            parameters={"fast": True} if fast else {},
            timeout_s=timeout_s,
            on_cell=bar.update,
        )
        pending = [threads.submit(run, path, edition) for path, edition in work]
        for future in concurrent.futures.as_completed(pending):
            outcome = future.result()
            verdict = "ok" if outcome.error is None else "FAILED"
            tqdm.write(f"{outcome.name:32} {outcome.edition:8} {outcome.seconds:6.1f} s  {verdict}")
            outcomes.append(outcome)
    return outcomes


# ---------------------------------------------------------------------------------------- command line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 when all is well, 1 on a difference or a failure, 2 on a bad source."""
    parser = argparse.ArgumentParser(description="Build, compare or execute the notebooks of the course.")
    parser.add_argument("names", nargs="*", help="only notebooks whose names begin so, for example 06")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="compare only; exit 1 on a difference")
    action.add_argument("--execute", action="store_true", help="run the notebooks; exit 1 when a cell fails")
    parser.add_argument("--edition", choices=EDITIONS, help="with --execute: one edition only")
    parser.add_argument("--full", action="store_true", help="with --execute: full sizes, not fast = True")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="with --execute: N notebooks at a time"
    )
    parser.add_argument(
        "--timeout", type=int, default=300, metavar="S", help="with --execute: seconds a cell"
    )
    parser.add_argument("--out", type=Path, help="with --execute: where results go (out/notebooks)")
    parser.add_argument("--root", type=Path, default=HERE, help="the notebooks directory")
    options = parser.parse_args(arguments)
    try:
        if options.check:
            return _report_check(options)
        if options.execute:
            return _report_execution(options)
        for path in build(options.root, options.names):
            print(f"wrote {path.name}")
    except SourceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _report_check(options: argparse.Namespace) -> int:
    problems = check(options.root, options.names)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if not problems:
        print(f"{len(sources(options.root, options.names))} notebooks are up to date")
    return 1 if problems else 0


def _report_execution(options: argparse.Namespace) -> int:
    outcomes = execute_all(
        options.root,
        (options.edition,) if options.edition else EDITIONS,
        names=options.names,
        out=options.out or options.root.parent / "out" / "notebooks",
        fast=not options.full,
        jobs=max(1, options.jobs),
        timeout_s=options.timeout,
    )
    failed = sorted((o for o in outcomes if o.error is not None), key=lambda o: (o.name, o.edition))
    for outcome in failed:
        print(
            f"error: {outcome.name} ({outcome.edition}): {outcome.error}\n    see {outcome.path}",
            file=sys.stderr,
        )
    if not outcomes:
        print("no notebooks to execute")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
