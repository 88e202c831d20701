"""Fixtures of the launcher's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accel_nb.launch.run import Run


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """Those in it are stopped at the end of the test."""
    started: list[Run] = []
    yield started
    for run in started:
        run.stop(0.0)
        assert run.wait(30)
