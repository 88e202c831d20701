"""What the documents show is true: README's example runs, the notebook is stored clean, the demo notices failures."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def run_demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_demo", PROJECT / "notebooks" / "run_demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_of_the_readme_runs(tmp_path: Path) -> None:
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example + "\nloss, model = results.main\nprint(len(results), loss < 0.5, type(model).__name__)\n")

    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 True Linear"


@pytest.mark.parametrize("path", sorted((PROJECT / "notebooks").glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_are_stored_without_outputs(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells

    assert [cell.id for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


def notebook_with(outputs: list[nbformat.NotebookNode], tags: list[str]) -> nbformat.NotebookNode:
    cell = new_code_cell("", id="it", metadata={"tags": tags}, outputs=outputs)
    notebook: nbformat.NotebookNode = new_notebook(cells=[cell])
    return notebook


ERROR = new_output("error", ename="ValueError", evalue="boom\nmore\nlast", traceback=[])


def test_the_demo_names_a_cell_that_fails_unexpectedly(run_demo: ModuleType) -> None:
    complaints = run_demo.complaints(notebook_with([ERROR], tags=[]))

    assert complaints == ["cell 'it' shows an unexpected error: ValueError: boom ... last"]


def test_the_demo_names_a_cell_that_should_fail_and_does_not(run_demo: ModuleType) -> None:
    complaints = run_demo.complaints(notebook_with([], tags=["raises-exception"]))

    assert complaints == ["cell 'it' should show an error and does not"]


def test_the_demo_wants_figures_in_the_last_cell(run_demo: ModuleType) -> None:
    text = new_output("execute_result", data={"text/plain": "'no figures'"})

    for outputs in ([], [text]):
        with pytest.raises(ValueError, match=r"^the last cell, 'it', should show a dictionary of figures$"):
            run_demo.figures(notebook_with(outputs, tags=[]))


def test_the_demo_reads_the_figures_of_the_last_cell(run_demo: ModuleType) -> None:
    shown = new_output("execute_result", data={"text/plain": "{'ranks': 2}"})

    assert run_demo.figures(notebook_with([shown], tags=[])) == {"ranks": 2}


def test_the_demo_runs_notebooks_by_name_or_path_else_the_quickstart(run_demo: ModuleType, tmp_path: Path) -> None:
    own = tmp_path / "own.ipynb"
    own.touch()

    paths = run_demo.chosen(["early_stopping", "quickstart.ipynb", str(own)], everything=False)

    assert [path.name for path in paths] == ["early_stopping.ipynb", "quickstart.ipynb", "own.ipynb"]
    assert [path.stem for path in run_demo.chosen([], everything=False)] == ["quickstart"]
    assert len(run_demo.chosen([], everything=True)) == len(list((PROJECT / "notebooks").glob("*.ipynb")))


def test_the_demo_names_the_notebooks_when_one_is_not_there(run_demo: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"^there is no notebook 'qickstart'; in notebooks are .*quickstart"):
        run_demo.chosen(["qickstart"], everything=False)


def test_the_demo_accepts_the_failure_that_is_shown_on_purpose(run_demo: ModuleType) -> None:
    assert run_demo.complaints(notebook_with([ERROR], tags=["raises-exception"])) == []
