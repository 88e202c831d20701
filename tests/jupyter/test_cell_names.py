"""Which of the notebook's names a cell takes along."""

from __future__ import annotations

import ast

import pytest

from accel_nb.jupyter.cell_names import CellNames, names_of


def names(text: str) -> CellNames:
    return names_of(ast.parse(text))


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        pytest.param("y = x", "x", id="a read"),
        pytest.param("x = 1\ny = x", "", id="set before"),
        pytest.param("x += 1", "x", id="added to"),
        pytest.param("x: T = 1", "T", id="annotated"),
        pytest.param("x: T", "T", id="declared, not set"),
        pytest.param("f'{x!r:>{width}}'", "width x", id="inside of an f-string"),
        pytest.param("[i * k for i in r]", "k r", id="comprehension"),
        pytest.param("{a: b for a, b in pairs if (c := a)}", "pairs", id="walrus in a comprehension"),
        pytest.param("lambda a, *b, c=default, **k: a + b + free", "default free", id="lambda"),
        pytest.param("import a.b, c as d\na.b, d", "", id="imports"),
        pytest.param("import a.b as c\na", "a", id="import under another name"),
        pytest.param("for i in items: s = i\ni, s", "items", id="a loop runs"),
        pytest.param("while x: x = step(x)", "step x", id="while"),
        pytest.param("with open_it() as f: f.read()", "open_it", id="with"),
        pytest.param("if c:\n    x = 1\nx", "c x", id="set by one branch"),
        pytest.param("if c:\n    x = 1\nelse:\n    x = 2\nx", "c", id="set by both branches"),
        pytest.param("if c:\n    x = 1\nelse:\n    raise E\nx", "E c", id="the other branch leaves"),
        pytest.param("try:\n    import u\nexcept ImportError:\n    u = None\nu", "ImportError", id="set by each way"),
        pytest.param("try:\n    x = f()\nexcept E as e:\n    e\nx, e", "E e f x", id="not set by the handler"),
        pytest.param("match p:\n    case {'a': q, **rest}: q, rest\n    case K(): pass", "K p", id="match"),
        pytest.param("del x", "x", id="deleted"),
        pytest.param("x = 1\ndel x\nx", "x", id="read after it was deleted"),
        pytest.param("def f(): return x\nx = 1\nf()", "", id="called once it is set"),
        pytest.param("def f(): return x\nf()\nx = 1", "x", id="called before it is set"),
        pytest.param("def f(): return g()\ndef g(): return y\ny = 2\nf()", "", id="through another function"),
        pytest.param("def f(): return g()\ndef g(): return y\nf()\ny = 2", "y", id="through another, too early"),
        pytest.param("def f(): return x", "x", id="not called here"),
        pytest.param("@wrap\ndef f(): return x\nx = 1", "wrap x", id="a decorator may call it"),
        pytest.param("def f(a=d) -> R: return a", "R d", id="defaults and annotations"),
        pytest.param("def f():\n    x = 1\n    return lambda: x", "", id="local of a function"),
        pytest.param("def f():\n    def g(): return y\n    return g", "y", id="nested function"),
        pytest.param(
            "def f():\n    class C:\n        a = 1\n        b = a\n    return C", "__name__", id="class in one"
        ),
        pytest.param("class A(B):\n    z = 1\n    w = z\n    def m(self): return q\nq = 1\nA()", "B", id="class"),
        pytest.param("class A:\n    z = y", "y", id="body of a class"),
        pytest.param("class A:\n    z = 1\n    def m(self): return z", "z", id="methods do not see the body"),
    ],
)
def test_what_a_cell_needs(text: str, needed: str) -> None:
    assert names(text).needed == set(needed.split())


@pytest.mark.parametrize(
    ("text", "assigned"),
    [
        ("x = y.z = 1\na[0] = 2", "x"),
        ("def f():\n    global g\n    g = 1", "f g"),
        ("import os.path as p\nfrom m import a as b", "p b"),
        ("if (n := 1): m = 2", "n m"),
        ("for i, (j, *k) in []: pass", "i j k"),
        ("try: pass\nexcept E as e: x = 1", "e x"),
    ],
)
def test_what_a_cell_sets(text: str, assigned: str) -> None:
    assert names(text).assigned == set(assigned.split())


@pytest.mark.parametrize("text", ["from m import *", "exec(text)", "globals()['x'] = 1", "def f(): vars()['y'] = 2"])
def test_a_cell_may_set_more_than_can_be_seen(text: str) -> None:
    assert names(text).open_ended


def test_an_ordinary_cell_sets_what_can_be_seen() -> None:
    assert not names("x = f(1)").open_ended
