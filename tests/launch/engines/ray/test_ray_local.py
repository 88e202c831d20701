"""A kernel that knows of no Ray cluster gets one of its own, which ends with it."""

from __future__ import annotations

import psutil
import pytest

from accel_nb.launch.engines.on_ray.cluster import ADDRESS, ray_problem
from tests.notebook_kernel import NotebookKernel

from ...census import Census, expect_gone, ids

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]

OVER_S = 200
"""Only so that a hang fails its own test."""


def test_a_kernel_without_a_cluster_starts_one_and_takes_it_along() -> None:
    if problem := ray_problem():
        pytest.skip(problem)
    kernel = NotebookKernel(env={ADDRESS: "", "RAY_USAGE_STATS_ENABLED": "0"})
    try:
        kernel.ok(
            "import os, signal\n"
            "from accel_nb import notebook_launcher\n"
            "def kernels_own():\n"
            "    return {name: value for name, value in os.environ.items()}, str(signal.getsignal(signal.SIGTERM))\n"
            "before = kernels_own()\n"
            "def rank():\n"
            "    return os.environ['RANK']\n"
        )
        launch = kernel.run("list(notebook_launcher(rank, device='cpu', backend='ray'))", OVER_S)
        assert launch.ename is None, launch.described()
        assert launch.result == "['0']"
        assert kernel.value("kernels_own() == before")
        refused = kernel.run("notebook_launcher(rank, num_processes=1000, device='cpu', backend='ray')", OVER_S)
        assert refused.ename == "NotEnoughDevices"
        assert "1000 ranks need 1 CPU each, and the Ray cluster at " in refused.evalue
        stopped = kernel.ok("%load_ext accel_nb\n%accel_stop", OVER_S)
        assert "Let go: 1 Ray actor for 1 rank, in standby for the next launch." in stopped.stdout
        started = ids(Census(kernel).everything())
        assert any("raylet" in psutil.Process(pid).name() for pid, _ in started)
    finally:
        kernel.shutdown()

    expect_gone(started, 60)
