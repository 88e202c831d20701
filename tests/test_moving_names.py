"""`accel_nb.utils`, for people who move."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import accel_nb.utils


@pytest.mark.parametrize("name", accel_nb.utils.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(accel_nb.utils, name) is not None
    assert name in dir(accel_nb.utils)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match=r"module 'accel_nb.utils' has no attribute 'gater'"):
        _ = accel_nb.utils.gater


def test_type_checkers_see_the_names_where_they_are_defined() -> None:
    tree = ast.parse(Path(accel_nb.utils.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))

    seen = {
        alias.asname: f"accel_nb.{node.module}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert seen == accel_nb.utils._HOME


def test_l02_importing_it_brings_no_torch() -> None:
    code = "import sys, accel_nb.utils; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
