from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from accel_nb.launch.payload.cell_sources import NamedSources
from accel_nb.launch.payload.packing import pack
from tests.launch.payload.notebook_stand_in import Notebook, RankError


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    with Notebook() as notebook:
        yield notebook


def test_a_traceback_in_a_rank_shows_the_cells_lines(notebook: Notebook) -> None:
    notebook.run("def helper(x):\n    return 1 // x  # divides")
    notebook.run("\n\ndef train(x):\n    return helper(x)  # calls")

    with pytest.raises(RankError) as raised:
        notebook.launch("train", 0)

    text = str(raised.value)
    assert 'File "<cell 2>", line 4, in train\n    return helper(x)  # calls' in text
    assert 'File "<cell 1>", line 2, in helper\n    return 1 // x  # divides' in text
    assert "<dynamic-code>" not in text


def test_the_source_of_a_function_can_be_read_in_a_rank(notebook: Notebook) -> None:
    notebook.run("import inspect\ndef f():\n    return inspect.getsource(f)  # this very line")

    assert notebook.launch("f") == "def f():\n    return inspect.getsource(f)  # this very line"


def test_a_function_made_in_a_rank_keeps_its_name_and_source(notebook: Notebook) -> None:
    notebook.run("def f():\n    def made(x):\n        return 1 // x\n    return made")

    made = notebook.launch("f")

    assert made.__code__.co_filename == "<cell 1>"


def test_files_on_disk_are_not_sent(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("x = 1\n")
    sources = NamedSources()

    assert sources.name(str(path)) == str(path)
    assert sources.texts == {}


def test_code_without_source_keeps_its_name() -> None:
    sources = NamedSources()

    assert sources.name("<string>") == "<string>"
    assert sources.texts == {}


IPYTHON_PROGRAM = """
import os, sys
from IPython.core.interactiveshell import InteractiveShell
from accel_nb.launch.payload.packing import pack, unpack

shell = InteractiveShell.instance()
shell.run_cell("def helper(x):\\n    return 1 // x", store_history=True)
shell.run_cell("class Net:\\n    def forward(self, x):\\n        return helper(x)", store_history=True)
shell.run_cell("def train(x):\\n    return Net().forward(x)", store_history=True)
packed = pack(shell.user_ns["train"], (0,))
os.set_inheritable(packed.fd, True)
rank = '''
import sys, traceback
from accel_nb.launch.payload.packing import unpack
function, args, kwargs = unpack(int(sys.argv[1]))
try:
    function(*args, **kwargs)
except ZeroDivisionError:
    traceback.print_exc()
'''
os.execv(sys.executable, [sys.executable, "-c", rank, str(packed.fd)])
"""


def test_cells_of_ipython_are_named_as_the_notebook_numbers_them(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", IPYTHON_PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "IPYTHONDIR": str(tmp_path), "HOME": str(tmp_path)},
    )

    assert child.stderr.endswith("ZeroDivisionError: integer division or modulo by zero\n")
    assert 'File "<Cell In[3]>", line 2, in train\n    return Net().forward(x)\n' in child.stderr
    assert 'File "<Cell In[2]>", line 3, in forward\n    return helper(x)\n' in child.stderr
    assert 'File "<Cell In[1]>", line 2, in helper\n    return 1 // x\n' in child.stderr


def test_packing_does_not_import_ipython() -> None:
    program = (
        "import sys\nfrom accel_nb.launch.payload.packing import pack\npack(lambda: 1)\nprint('IPython' in sys.modules)"
    )

    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert child.stdout == "False\n"


def test_notices_are_sentences_of_the_kernel_only(notebook: Notebook) -> None:
    notebook.run("def f(): return 1")

    with pack(notebook["f"]) as packed:
        assert packed.notices == ()
