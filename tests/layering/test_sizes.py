"""Modules and functions stay small: lines of code, without docstrings, comments and blank lines."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import MODULES, PACKAGE

MODULE_LINES = 300
FUNCTION_LINES = 40
FACADE_LINES = 400
"""For `accel_nb/training/accelerator.py`, which holds parts and delegates."""

NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(source: str) -> set[int]:
    """Numbers of the lines that hold code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {
        line
        for token in tokens
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }  # fmt: skip
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def long_functions(source: str) -> Iterator[tuple[str, int]]:
    """Name and size of each function whose body has FUNCTION_LINES lines or more, those nested in it counted with it.

    The signature is left out: upstream's parameters are as many as they are.
    """
    lines = code_lines(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = len(lines & set(range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)))
            if size >= FUNCTION_LINES:
                yield node.name, size


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE.parent)))
def test_module_and_its_functions_are_small(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    limit = FACADE_LINES if path == PACKAGE / "training" / "accelerator.py" else MODULE_LINES

    assert len(code_lines(source)) < limit
    assert dict(long_functions(source)) == {}


def test_docstrings_comments_and_blank_lines_do_not_count() -> None:
    source = '''"""A module."""

# why
value = 1
"""A field,
on two lines."""


def f():
    "what"
    return """a
b"""
'''

    assert code_lines(source) == {4, 9, 11, 12}


def test_a_long_function_is_found() -> None:
    source = "def f():\n" + "    x = 1\n" * FUNCTION_LINES

    assert list(long_functions(source)) == [("f", FUNCTION_LINES)]
