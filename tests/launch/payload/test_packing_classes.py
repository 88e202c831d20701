from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.launch.payload.notebook_stand_in import Notebook


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    with Notebook() as notebook:
        yield notebook


CLASSES = {
    "plain": ("class Kind:\n    def __init__(self, x): self.x = x", "Kind(3)"),
    "dataclass": ("from dataclasses import dataclass\n@dataclass\nclass Kind:\n    x: int", "Kind(3)"),
    "slots": ("class Kind:\n    __slots__ = ('x',)\n    def __init__(self, x): self.x = x", "Kind(3)"),
    "dataclass with slots": (
        "from dataclasses import dataclass\n@dataclass(slots=True, frozen=True)\nclass Kind:\n    x: int",
        "Kind(3)",
    ),
    "named tuple": ("from typing import NamedTuple\nclass Kind(NamedTuple):\n    x: int", "Kind(3)"),
    "abstract": (
        (
            "import abc\nclass Base(abc.ABC):\n    @abc.abstractmethod\n    def f(self): ...\n"
            "class Kind(Base):\n    def __init__(self, x): self.x = x\n    def f(self): return super().f()"
        ),
        "Kind(3)",
    ),
    "generic": (
        (
            "from typing import Generic, TypeVar\nT = TypeVar('T')\nclass Kind(Generic[T]):\n"
            "    def __init__(self, x): self.x = x"
        ),
        "Kind[int](3)",
    ),
    "exception": ("class Kind(Exception):\n    @property\n    def x(self): return self.args[0]", "Kind(3)"),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_p01_an_instance_comes_home_to_its_own_class(notebook: Notebook, kind: str) -> None:
    cell, expression = CLASSES[kind]
    notebook.run(f"{cell}\ndef f(): return {expression}, Kind")

    instance, cls = notebook.launch("f")

    assert cls is notebook["Kind"]
    assert type(instance) is notebook["Kind"]
    assert instance.x == 3


def test_p01_an_enum_member_comes_home_as_itself(notebook: Notebook) -> None:
    notebook.run("from enum import Enum\nclass Mode(Enum):\n    A = 1\n    B = 2\ndef f(): return [Mode.B, Mode.A]")

    assert notebook.launch("f") == [notebook["Mode"].B, notebook["Mode"].A]


def test_a_rank_does_not_overwrite_the_kernels_class(notebook: Notebook) -> None:
    notebook.run("""
        offset = 1
        class Net:
            width = 8
            def forward(self): return offset
        def f():
            Net.width = 99
            return Net()
    """)
    forward = notebook["Net"].forward

    net = notebook.launch("f")
    notebook.run("offset = 2")

    assert notebook["Net"].width == 8
    assert notebook["Net"].forward is forward
    assert net.forward() == 2, "the method must still see the notebook's globals"


def test_a_class_made_in_a_rank_comes_back_whole(notebook: Notebook) -> None:
    notebook.run("""
        def f():
            class Made:
                size = 4
                def twice(self): return 2 * self.size
            return Made(), Made
    """)

    instance, cls = notebook.launch("f")

    assert type(instance) is cls
    assert instance.twice() == 8


def test_a_class_redefined_meanwhile_does_not_lose_the_result(notebook: Notebook) -> None:
    notebook.run("class Net:\n    size = 4\ndef f(): return Net()")
    old = notebook["Net"]
    notebook.run("kept = f\nclass Net:\n    size = 5")
    notebook.run("old_class_function = kept")

    assert notebook.launch("old_class_function").size == 5
    assert old is not notebook["Net"]


def test_a_base_class_is_not_subclassed_again_on_the_way_home(notebook: Notebook) -> None:
    notebook.run("""
        registered = []
        class Base:
            def __init_subclass__(cls): registered.append(cls.__name__)
        class Net(Base): pass
        def f(): return Net()
    """)

    notebook.launch("f")

    assert notebook["registered"] == ["Net"]
