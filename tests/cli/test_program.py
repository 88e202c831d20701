"""What ``accel-nb launch`` takes for a script, a module and a notebook's plain Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from accel_nb.cli.program import notebook_cells, program
from accel_nb.errors import InvalidArgument


def text_of(folder: Path, cell: str) -> str:
    """What of a notebook with this one cell is run."""
    path = folder / "one.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": cell}]}))
    (found,) = notebook_cells(path)
    return found.source


@pytest.mark.parametrize(
    "cell",
    [
        "print(\n    '%s and %s'\n    % (1, 2)\n)\n",
        "if (\n    1\n    != 2\n):\n    pass\n",
        "text = 'a %s' \\\n    % 3\n",
        "x = 1  # really?\n",
        "text = '''\n!ls\n%time\nwhat?\n'''\n",
        'text = f"""\n% {1}\n"""\n',
    ],
)
def test_lines_that_go_on_with_a_statement_or_string_are_no_magics(tmp_path: Path, cell: str) -> None:
    assert text_of(tmp_path, cell) == cell + "\n"
    assert text_of(tmp_path, f"%matplotlib inline\n{cell}") == f"\n{cell}\n"


@pytest.mark.parametrize("line", ["!ls", "%time f()", "?print", "print?", "os.path??", "%%bash", "x[0]?"])
def test_what_only_ipython_knows_is_refused_wherever_it_stands(tmp_path: Path, line: str) -> None:
    for before in ("", "x = (\n    1\n    % 2\n)\n", "if True:\n    "):
        with pytest.raises(InvalidArgument, match="is for IPython; ranks are plain Python"):
            text_of(tmp_path, before + line)


def test_a_module_is_looked_for_without_its_parents_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd_parent" / "inner").mkdir(parents=True)
    (tmp_path / "odd_parent" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "odd_parent" / "run.py").touch()
    (tmp_path / "odd_parent" / "inner" / "run.py").touch()

    for name in ("odd_parent.run", "odd_parent.inner.run"):
        assert program(name, [], is_module=True).name == name
    for name in ("odd_parent.ran", "odd_parent.run.more", "odd_parent..run", "", "no_parent.run"):
        with pytest.raises(InvalidArgument, match="no module of this name is installed here"):
            program(name, [], is_module=True)
    assert "odd_parent" not in sys.modules
    assert str(tmp_path) not in sys.path
