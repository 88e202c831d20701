from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from accel_nb.launch.payload import local_modules
from accel_nb.launch.payload.packing import pack
from tests.launch.payload.notebook_stand_in import Notebook

MODULE = """
RATE = 0.1

def step(x):
    return x + 1

class Model:
    def forward(self, x):
        return step(x)

    @property
    def size(self):
        return 3
"""


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with Notebook() as notebook:
        yield notebook


@pytest.fixture
def imported(tmp_path: Path) -> Iterator[Callable[[str], ModuleType]]:
    """Writes a module with a given text, imports it; forgets all at the end."""
    names: list[str] = []

    def write_and_import(text: str, name: str = "users_module") -> ModuleType:
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        names.append(name)
        return importlib.import_module(name)

    yield write_and_import
    for name in names:
        sys.modules.pop(name, None)


def edit(module: ModuleType, old: str, new: str) -> None:
    path = Path(str(module.__file__))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def notices(function: Callable[..., object]) -> tuple[str, ...]:
    with pack(function) as packed:
        return packed.notices


def test_p01_a_local_module_is_imported_fresh_from_disk_and_said(
    notebook: Notebook, imported: Callable[[str], ModuleType]
) -> None:
    module = imported(MODULE)
    notebook.run("import users_module\ndef f(): return users_module.step(1)")

    edit(module, "x + 1", "x + 100")

    assert notebook.launch("f") == 101
    assert module.step(1) == 2
    (notice,) = notices(notebook["f"])
    assert notice == (
        "Module 'users_module' has changed on disk since the kernel imported it (step is another): the ranks use "
        f"{module.__file__} as it is now. importlib.reload(users_module) brings the kernel up to date."
    )


CHANGES = {
    "method": ("return step(x)", "return step(x) * 2", "Model.forward is another"),
    "property": ("return 3", "return 4", "Model.size is another"),
    "removed function": ("def step(x):", "def stride(x):", "step is another"),
    "constant": ("RATE = 0.1", "RATE = 0.2", "RATE is 0.2, in the kernel 0.1"),
    "broken": ("def step(x):", "def step(x:", "the file does not compile"),
}


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("use", ["from users_module import Model", "import users_module as Model"])
def test_p01_each_kind_of_change_is_said(
    notebook: Notebook, imported: Callable[[str], ModuleType], kind: str, use: str
) -> None:
    old, new, difference = CHANGES[kind]
    module = imported(MODULE)
    notebook.run(f"{use}\ndef f(): return Model")

    edit(module, old, new)

    (notice,) = notices(notebook["f"])
    assert f"({difference}" in notice


def test_p01_a_deleted_module_is_said(notebook: Notebook, imported: Callable[[str], ModuleType]) -> None:
    module = imported(MODULE)
    notebook.run("import users_module\ndef f(): return users_module")

    Path(str(module.__file__)).unlink()

    (notice,) = notices(notebook["f"])
    assert "(the file is gone)" in notice


def test_p01_modules_that_local_modules_use_are_looked_at(
    notebook: Notebook, imported: Callable[..., ModuleType]
) -> None:
    inner = imported("def depth(): return 1\n", "users_inner")
    imported("from users_inner import depth\ndef outer(): return depth()\n")
    notebook.run("from users_module import outer\ndef f(): return outer()")

    edit(inner, "return 1", "return 2")

    (notice,) = notices(notebook["f"])
    assert notice.startswith("Module 'users_inner' has changed on disk")


UNIMPORTANT = {
    "nothing": ("RATE", "RATE"),
    "a comment above": ("RATE = 0.1", "# a comment\n\n\nRATE = 0.1"),
    "a new function": ("RATE = 0.1", "RATE = 0.1\ndef new(): return 1\n"),
}


@pytest.mark.parametrize("kind", UNIMPORTANT)
def test_what_makes_no_difference_is_not_mentioned(
    notebook: Notebook, imported: Callable[[str], ModuleType], kind: str
) -> None:
    module = imported(MODULE)
    notebook.run("import users_module\ndef f(): return users_module.step(1)")

    edit(module, *UNIMPORTANT[kind])

    assert notices(notebook["f"]) == ()


def test_a_reloaded_module_is_up_to_date(notebook: Notebook, imported: Callable[[str], ModuleType]) -> None:
    module = imported(MODULE)
    notebook.run("import users_module\ndef f(): return users_module.step(1)")
    edit(module, "x + 1", "x + 100")
    os.utime(str(module.__file__), (time.time() + 5, time.time() + 5))

    importlib.reload(module)

    assert notices(notebook["f"]) == ()


def test_a_module_nobody_uses_is_not_looked_at(notebook: Notebook, imported: Callable[[str], ModuleType]) -> None:
    module = imported(MODULE)
    notebook.run("import users_module\ndef f(): return 1")

    edit(module, "x + 1", "x + 100")

    assert notices(notebook["f"]) == ()


def test_installed_packages_are_not_looked_at() -> None:
    assert local_modules.notices(["pytest", "os", "json.decoder", "sys", "no_such_module"]) == []
