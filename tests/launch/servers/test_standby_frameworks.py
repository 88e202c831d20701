"""Libraries that open a process group find the one that waits."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.launch import standby_code as code
from tests.launch.standby_sets import from_standby

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("standby_on"),
    pytest.mark.timeout(600),  # servers import these libraries beforehand, one launch after the other
]


@pytest.mark.parametrize("function", [code.our_states, code.accelerates_states])
def test_the_group_is_adopted_by_states(function: Callable[[], object]) -> None:
    assert from_standby(function) == [(True, [0, 1])] * 2


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_the_group_is_adopted_by_transformers_trainer(tmp_path: Path) -> None:
    assert from_standby(code.trainer, str(tmp_path)) == [(True, 2)] * 2


@pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed")
def test_the_group_is_adopted_by_lightning() -> None:
    assert from_standby(code.lightning_fabric) == [(True, [0, 1])] * 2
