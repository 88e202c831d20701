"""Servers as a kernel that has not launched before has them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accel_nb.launch.engines import local
from accel_nb.launch.servers import counting, warmup
from accel_nb.launch.servers.preload import Preload
from accel_nb.launch.servers.standby import IDLE_S, STANDBY
from accel_nb.launch.servers.warm_client import POOL
from accel_nb.protocol import environment
from tests.launch.standby_sets import TAKES_S


@pytest.fixture
def only_plain_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Preload]:
    """No server is there yet, and nothing is known of what earlier tests' ranks have imported; gives what will be."""
    POOL.stop_all(timeout_s=60.0)
    nothing_learned = Preload(POOL)
    for module in (local, counting, warmup):
        monkeypatch.setattr(module, "PRELOAD", nothing_learned)
    yield nothing_learned
    POOL.stop_all(timeout_s=60.0)


@pytest.fixture
def standby_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Asked for, so that other tests' use of memory does not matter; the test begins and ends without a set."""
    STANDBY.let_go()
    monkeypatch.setenv(environment.STANDBY, "on")
    monkeypatch.setattr(STANDBY, "idle_s", IDLE_S)
    monkeypatch.setattr(STANDBY, "takes_s", TAKES_S)
    yield
    STANDBY.let_go()
