"""Fixtures of the launcher's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accel_nb.launch.run import Run
from accel_nb.launch.servers.standby import STANDBY


@pytest.fixture(autouse=True)
def _no_ranks_in_standby() -> None:
    """An earlier test's ranks are not this one's."""
    STANDBY.let_go()


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """Those in it are stopped at the end of the test."""
    started: list[Run] = []
    yield started
    for run in started:
        run.stop(0.0)
        assert run.wait(30)
