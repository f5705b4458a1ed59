"""The notebook generator: what a learner gets, that it repeats byte for byte, and that it can fail."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BUILD = Path(__file__).resolve().parents[1] / "notebooks" / "build.py"

SAMPLE = """\
# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Is one and one two?

# %% tags=["parameters"]
seed = 7
fast = False

# %%
size = 10 if fast else 1000
print("size", size)

# %% tags=["solution"]
# Exercise 1. Add one and one,
# and write the function.
import math

total, half = 1 + 1, 0.5
def double(x):
    return math.floor(x * 2)

# %% tags=["check"]
assert total == 2, "count again"
assert double(half) == 1

# %% [markdown] tags=["solution"]
# Because the secret is addition.

# %%
size
"""


def load_build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks_build", BUILD)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    # Some of Jupyter's libraries warn while they are imported; that is theirs to mend.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        return load_build()


@pytest.fixture
def course(tmp_path: Path) -> Path:
    root = tmp_path / "notebooks"
    (root / "src").mkdir(parents=True)
    (root / "src" / "01_sample.py").write_text(SAMPLE)
    return root


@pytest.fixture
def command(builder, capsys):
    """Run a command in this process, which is fast; return its exit code and what it printed to stderr."""

    def run_here(root: Path, *arguments: str) -> tuple[int, str]:
        code = builder.main(["--root", str(root), *arguments])
        return code, capsys.readouterr().err

    return run_here


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, as `make` does."""
    command = [sys.executable, str(BUILD), "--root", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def cells(path: Path) -> list[dict[str, object]]:
    return json.loads(path.read_text())["cells"]


def source(cell: dict[str, object]) -> str:
    return "".join(cell["source"])


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_the_learner_gets_the_task_and_no_solution(builder, course):
    builder.build(course)
    learner = course / "01_sample.ipynb"
    text = learner.read_text()
    assert "1 + 1" not in text
    assert "math.floor" not in text
    assert "secret" not in text
    assert source(cells(learner)[3]) == (
        "# Exercise 1. Add one and one,\n# and write the function.\n# Your turn:\ntotal = None\nhalf = None\ndouble = None"
    )
    assert source(cells(learner)[5]) == "*Your turn: write your answer here.*"


def test_the_learners_check_waits_for_every_answer_and_then_judges(builder, course, capsys):
    builder.build(course)
    check = source(cells(course / "01_sample.ipynb")[4])
    exec(check, {"total": None, "half": 0.5, "double": lambda x: x * 2})
    assert "not attempted" in capsys.readouterr().out
    exec(check, {"total": 2, "half": 0.5, "double": lambda x: x * 2})
    assert capsys.readouterr().out == ""
    with pytest.raises(AssertionError, match="count again"):
        exec(check, {"total": 3, "half": 0.5, "double": lambda x: x * 2})


def test_the_solved_edition_keeps_the_solution_and_the_plain_check(builder, course):
    solved = builder.render(builder.read_source(course / "src" / "01_sample.py"), "solved")
    text = builder.to_text(solved)
    assert "math.floor" in text
    assert "not attempted" not in text


def test_a_notebook_has_no_outputs_and_the_portable_kernel(builder, course):
    builder.build(course)
    notebook = json.loads((course / "01_sample.ipynb").read_text())
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert set(notebook["metadata"]) == {"kernelspec", "language_info", "source_digest"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_two_builds_give_the_same_bytes(builder, course, tmp_path):
    other = tmp_path / "elsewhere"
    (other / "src").mkdir(parents=True)
    (other / "src" / "01_sample.py").write_text(SAMPLE)
    assert builder.build(course)
    assert run(other).returncode == 0  # In another process, with other hash seeds.
    assert (course / "01_sample.ipynb").read_bytes() == (other / "01_sample.ipynb").read_bytes()
    assert builder.build(course) == []  # Nothing to write the second time.


def test_a_cell_added_above_leaves_the_other_ids_alone(builder, course):
    builder.build(course)
    before = [cell["id"] for cell in cells(course / "01_sample.ipynb")]
    edit(course / "src" / "01_sample.py", "# %% tags=", "# %% [markdown]\n# One more.\n\n# %% tags=")
    builder.build(course)
    after = [cell["id"] for cell in cells(course / "01_sample.ipynb")]
    assert set(before) < set(after)
    assert len(set(after)) == len(after)


def test_equal_cells_get_different_ids(builder, course):
    with (course / "src" / "01_sample.py").open("a") as file:
        file.write("\n# %%\nsize\n")
    builder.build(course)
    ids = [cell["id"] for cell in cells(course / "01_sample.ipynb")]
    assert len(set(ids)) == len(ids)


def test_check_passes_after_a_build_and_names_the_notebook_that_differs(command, course):
    assert command(course)[0] == 0
    assert command(course, "--check")[0] == 0
    edit(course / "src" / "01_sample.py", "Is one and one two?", "Is it three?")
    code, errors = command(course, "--check")
    assert code == 1
    assert "01_sample.ipynb differs from src/01_sample.py at line" in errors
    assert "make notebooks" in errors


def test_check_reports_a_missing_notebook_and_one_without_a_source(command, course):
    (course / "02_orphan.ipynb").write_text("{}")
    code, errors = command(course, "--check")
    assert code == 1
    assert "01_sample.ipynb is missing" in errors
    assert "02_orphan.ipynb has no source" in errors


def test_a_learners_own_edit_is_set_aside_before_a_rebuild(builder, course):
    builder.build(course)
    learner = course / "01_sample.ipynb"
    for answer in ("total = 2", "total = 4"):
        edit(learner, "total = None", answer)
        builder.build(course)
        assert "total = None" in learner.read_text()
    assert "total = 2" in (course / "mine" / "01_sample.ipynb").read_text()
    assert "total = 4" in (course / "mine" / "01_sample-2.ipynb").read_text()


def test_a_notebook_that_was_only_run_is_rebuilt_without_a_copy(builder, course):
    builder.build(course)
    edit(course / "01_sample.ipynb", '"execution_count": null', '"execution_count": 3')
    assert builder.build(course)
    assert not (course / "mine").exists()


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ('tags=["solution"]\n# Exercise', 'tags=["answer"]\n# Exercise', "unknown tag 'answer'"),
        ('# %% tags=["parameters"]', "# %%", '0 cells tagged "parameters"'),
        ("fast = False", "slow = True", "must set `fast = False`"),
        ("import math", "import", "must be plain Python"),
        ("total == 2, ", 'total == 2, """two\nlines""" ', "avoid strings over several lines"),
        ("# Because", "# " + "x" * 200_000, "at most 200,000"),
    ],
)
def test_a_source_that_breaks_a_rule_is_refused_with_the_mend(command, course, before, after, complaint):
    if complaint == "at most 200,000":
        edit(course / "src" / "01_sample.py", '[markdown] tags=["solution"]', "[markdown]")
    edit(course / "src" / "01_sample.py", before, after)
    code, errors = command(course)
    assert code == 2
    assert complaint in errors


def test_a_check_without_a_solution_is_refused(command, course):
    edit(course / "src" / "01_sample.py", 'tags=["solution"]', "")
    code, errors = command(course)
    assert code == 2
    assert "a check must follow a solution" in errors


def test_both_editions_run_small_and_report_their_time(course, tmp_path):
    result = run(course, "--execute", "--out", str(tmp_path / "out"), "--jobs", "2")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count(" s  ok") == 2
    for edition, printed in (("learner", "not attempted"), ("solved", "size 10")):
        executed = (tmp_path / "out" / edition / "01_sample.ipynb").read_text()
        assert printed in executed
        assert "size 10" in executed  # The injected `fast = True` won.
    assert not list(course.glob("*.ipynb"))  # Executing writes nothing beside the sources.


def test_execution_stops_at_a_failing_cell_and_names_it(course, tmp_path):
    edit(course / "src" / "01_sample.py", "1 + 1,", "1 + 2,")
    result = run(course, "--execute", "--edition", "solved", "--out", str(tmp_path / "out"))
    assert result.returncode == 1
    assert '01_sample (solved): cell 6 (`assert total == 2, "count again"`) failed' in result.stderr
    assert "AssertionError: count again" in result.stderr
    assert len(result.stderr.splitlines()) < 20
    assert "count again" in (tmp_path / "out" / "solved" / "01_sample.ipynb").read_text()


def test_execution_reports_a_kernel_that_dies(course, tmp_path):
    edit(course / "src" / "01_sample.py", 'print("size", size)', "import os; os._exit(1)")
    result = run(course, "--execute", "--edition", "learner", "--out", str(tmp_path / "out"))
    assert result.returncode == 1
    assert "the kernel died" in result.stderr


def test_execution_reports_a_cell_that_runs_too_long(course, tmp_path):
    edit(course / "src" / "01_sample.py", 'print("size", size)', "import time; time.sleep(60)")
    options = ("--edition", "learner", "--timeout", "1", "--out", str(tmp_path / "out"))
    result = run(course, "--execute", *options)
    assert result.returncode == 1
    assert "ran longer than 1 s" in result.stderr


def test_the_kernel_is_the_python_that_runs_the_tool(course, tmp_path):
    edit(course / "src" / "01_sample.py", 'print("size", size)', "import sys; print(sys.executable)")
    result = run(course, "--execute", "--edition", "learner", "--out", str(tmp_path / "out"))
    assert result.returncode == 0, result.stderr
    assert sys.executable in (tmp_path / "out" / "learner" / "01_sample.ipynb").read_text()


@pytest.mark.parametrize("arguments", [(), ("--check",), ("--execute",)])
def test_a_course_without_notebooks_is_fine(command, tmp_path, arguments):
    assert command(tmp_path, *arguments) == (0, "")


def test_a_name_that_matches_nothing_is_an_error(command, course):
    code, errors = command(course, "--check", "99")
    assert code == 2
    assert "no notebook begins with '99'" in errors


def test_the_course_of_this_repository_is_up_to_date(builder):
    assert builder.check(BUILD.parent) == []
