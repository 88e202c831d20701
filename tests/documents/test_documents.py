"""Each code block of upstream's four documents runs with only the import changed, and does what it does there."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import SCRIPTS, Block, Outcome, blocks_of, with_imports_changed

pytestmark = pytest.mark.timeout(300)

RunDocuments = Callable[..., list[dict[Block, Outcome]]]

SCRIPT_NAMES = ("distributed_training", "quick_tour", "internals", "troubleshooting")
OUT_OF_MEMORY = ("troubleshooting", "out_of_memory")
SHAPE_MISMATCH = ("troubleshooting", "shape_mismatch")
DIFFERENT = {OUT_OF_MEMORY, SHAPE_MISMATCH}
"""What is tested by itself: it needs several ranks, or is another way on purpose."""
ALIKE = [block for script in SCRIPT_NAMES for block in blocks_of(script) if block not in DIFFERENT]


def value(outcome: Outcome) -> dict[str, Any]:
    assert not isinstance(outcome, str), outcome
    return outcome


@pytest.mark.parametrize("script", SCRIPT_NAMES)
def test_only_import_lines_are_changed(script: str) -> None:
    source = (SCRIPTS / f"{script}.py").read_text(encoding="utf-8")
    pairs = zip(source.splitlines(), with_imports_changed(source).splitlines(), strict=True)

    different = [(old, new) for old, new in pairs if old != new]

    assert different
    assert all(re.match(r" *from accelerate[.\w]* import ", old) for old, _ in different)
    assert all(re.match(r" *from accel_nb(\.logging|\.utils)? import ", new) for _, new in different)


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("block", ALIKE, ids=": ".join)
def test_a_block_does_what_it_does_with_accelerate(run_documents: RunDocuments, block: Block, num_ranks: int) -> None:
    if block[1] == "stateful_loader":
        pytest.importorskip("torchdata")
    ours = run_documents("accel_nb", num_ranks, *ALIKE)
    theirs = run_documents("accelerate", num_ranks, *ALIKE)

    for own, their in zip(ours, theirs, strict=True):
        assert value(own[block]) == {name: approx(one) for name, one in value(their[block]).items()}


def approx(value: Any) -> Any:  # noqa: ANN401  whatever a document shows
    is_numbers = isinstance(value, list) and value and all(isinstance(one, float) for one in value)
    return pytest.approx(value, abs=1e-6) if is_numbers else value


def test_a_shape_mismatch_says_the_operation_and_the_shape_of_each_process(run_documents: RunDocuments) -> None:
    ours = run_documents("accel_nb", 2, SHAPE_MISMATCH, debug="1")

    for rank in ours:
        lines = value(rank[SHAPE_MISMATCH])["error"].splitlines()
        assert any("broadcast" in line for line in lines)
        assert any("rank 0" in line and "1, 5" in line for line in lines)
        assert any("rank 1" in line and "1, 2, 5" in line for line in lines)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_out_of_memory_ends_with_a_batch_size_that_fits(run_documents: RunDocuments, num_ranks: int) -> None:
    outcomes = run_documents("accel_nb", num_ranks, OUT_OF_MEMORY)

    for rank in outcomes:
        assert value(rank[OUT_OF_MEMORY]) == {
            "tried": [16, 14, 12, 10, 9, 8, 7, 6, 5, 4],
            "steps": 6 // num_ranks,
            "finite": True,
        }
