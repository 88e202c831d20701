"""An engine for a test, under a name of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accel_nb.launch.engines import find_engines

from .loopback import LoopbackEngine

Install = Callable[..., LoopbackEngine]


@pytest.fixture
def loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes ``backend="loopback"`` an engine with agents of these seats; two of one rank each unless told otherwise."""

    def install(*seats: tuple[int, ...], **options: Any) -> LoopbackEngine:  # noqa: ANN401  of LoopbackEngine
        engine = LoopbackEngine(tmp_path, *(seats or ((0,), (1,))), **options)
        monkeypatch.setitem(find_engines(), "loopback", engine)
        return engine

    return install
