"""`run_document`: a script written for Accelerate, its imports changed, in the ranks of a launch."""

from __future__ import annotations

import ast
import functools
import os
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accel_nb import notebook_launcher

SCRIPTS = Path(__file__).parent / "scripts"
_IMPORT = re.compile(r"^(\s*from )accelerate(?:\.(?!logging\b|utils\b)[\w.]+)?", re.MULTILINE)
"""The import line of Accelerate. Names of its other modules are at the top of accel_nb."""

Outcome = dict[str, Any] | str
"""What a block returned, or its traceback."""
Block = tuple[str, str]
"""A script, and one of its functions."""


def with_imports_changed(source: str) -> str:
    """`source` with nothing but its imports of Accelerate changed into those of accel_nb."""
    return re.sub(r"^(\s*from accel_nb\.utils)\.\w+", r"\1", _IMPORT.sub(r"\1accel_nb", source), flags=re.MULTILINE)


def blocks_of(script: str) -> list[Block]:
    """The functions of a script that are blocks of a document."""
    tree = ast.parse((SCRIPTS / f"{script}.py").read_text(encoding="utf-8"))
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [(script, name) for name in functions if not name.startswith("_")]


def run_blocks(
    sources: dict[str, str], blocks: list[Block], library: str, variables: dict[str, str]
) -> dict[Block, Outcome]:
    """In a rank: each block in a state of its own, as if started with `variables`."""
    os.environ.update(variables)
    outcomes: dict[Block, Outcome] = {}
    namespaces: dict[str, dict[str, Any]] = {script: {"__name__": script} for script in sources}
    for script, source in sources.items():
        exec(compile(source, f"{script}.py", "exec"), namespaces[script])
    for script, function in blocks:
        _forget_states(library)
        try:
            outcomes[script, function] = namespaces[script][function]()
        except Exception:  # noqa: BLE001  it is the outcome
            outcomes[script, function] = traceback.format_exc()
    return outcomes


def _forget_states(library: str) -> None:
    if library == "accel_nb":
        import accel_nb

        accel_nb.reset_state()
    else:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


@pytest.fixture(scope="session")
def run_documents() -> Callable[..., list[dict[Block, Outcome]]]:
    """``run_documents(library, num_ranks, *blocks)`` gives the outcome of each block on each rank.

    One launch for all, whose outcomes are kept for the session. `debug`: value of ``ACCELERATE_DEBUG_MODE``.
    """

    @functools.cache
    def run(library: str, num_ranks: int, *blocks: Block, debug: str = "0") -> list[dict[Block, Outcome]]:
        sources = {script: (SCRIPTS / f"{script}.py").read_text(encoding="utf-8") for script, _ in blocks}
        if library == "accel_nb":
            sources = {script: with_imports_changed(source) for script, source in sources.items()}
        variables = {"ACCELERATE_DEBUG_MODE": debug, "ACCELERATE_LOG_LEVEL": "ERROR"}
        arguments = (sources, list(blocks), library, variables)
        return list(notebook_launcher(run_blocks, arguments, num_ranks, device="cpu"))

    return run
