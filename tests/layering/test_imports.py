"""What importing the package brings along, seen in a fresh interpreter."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import accel_nb

from . import MODULES, PACKAGE, PROJECT

HEAVY = ("torch", "numpy", "ray", "torch_xla", "transformers", "accelerate", "bitsandbytes", "deepspeed", "peft")
LAZY_MODULES = [path for path in MODULES if "training" not in path.relative_to(PACKAGE).parts]


def modules_after(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after `statement`."""
    code = (
        f"import json, sys\n{statement}\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True, timeout=60
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "statement",
    [
        "import accel_nb",
        "from accel_nb import notebook_launcher",
        "import accel_nb.jupyter.extension",
        "import accel_nb.launch.run",
    ],
)
def test_l02_importing_the_faces_brings_nothing_heavy(statement: str) -> None:
    assert modules_after(statement) & set(HEAVY) == set()


def test_a_heavy_module_would_be_noticed() -> None:
    assert "numpy" in modules_after("import numpy")


def imported_at_import_time(source: str) -> set[str]:
    """Top-level names of the modules that running `source` imports, functions left out."""
    names: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _is_for_type_checkers(node):
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
        waiting.extend(ast.iter_child_nodes(node))
    return names


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


@pytest.mark.parametrize("path", LAZY_MODULES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_torch_is_imported_inside_functions_only(path: Path) -> None:
    assert imported_at_import_time(path.read_text(encoding="utf-8")) & set(HEAVY) == set()


def test_imports_inside_functions_do_not_count() -> None:
    source = """
import os
if TYPE_CHECKING:
    import torch
class A:
    import ray
    def f(self):
        import numpy
"""

    assert imported_at_import_time(source) == {"os", "ray"}


def test_type_checkers_see_the_public_names_where_they_are_defined() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))

    block = next(node for node in tree.body if _is_for_type_checkers(node))
    seen = {alias.asname: f"accel_nb.{node.module}" for node in block.body for alias in node.names}  # type: ignore[attr-defined]

    assert seen == {name: accel_nb._HOME[name] for name in accel_nb.__all__ if name != "__version__"}
