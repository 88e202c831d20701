"""A Ray cluster of three nodes on this machine, for the tests of this folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import psutil
import pytest

from accel_nb.launch.engines.on_ray.actors import KEPT
from accel_nb.launch.engines.on_ray.cluster import ADDRESS, CONNECTION, ray_problem

from ...census import wait_until
from ...launching import launch
from .simulated import SimulatedCluster

NO_STATISTICS = "RAY_USAGE_STATS_ENABLED"


@pytest.fixture(scope="package")
def cluster() -> Iterator[SimulatedCluster]:
    """Room for four ranks: two on the head, one on each of two nodes. This process, which plays the kernel, is
    connected to it.
    """
    if problem := ray_problem():
        pytest.skip(problem)
    before = {name: os.environ.get(name) for name in (ADDRESS, NO_STATISTICS, "RAY_CLIENT_MODE")}
    os.environ[NO_STATISTICS] = "0"
    with contextlib.ExitStack() as undo:
        undo.callback(_restore, before)
        started = SimulatedCluster(2, 1, 1)
        undo.callback(started.end)
        os.environ[ADDRESS] = started.address
        CONNECTION.join()
        undo.callback(CONNECTION.leave)
        undo.callback(KEPT.let_go)
        # Ray's connections to its actors stay open; now, so that no test is said to have left them.
        assert launch(os.getpid, backend="ray", num_processes=4).values
        yield started
    mine = psutil.Process().children(recursive=True)
    wait_until(lambda: not [one for one in mine if _is_rays(one)], 30, lambda: f"still there: {mine}")


def _is_rays(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and "ray" in process.name()
    except psutil.Error:
        return False


def _restore(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
