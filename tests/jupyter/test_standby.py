"""What a notebook is told of ranks in standby, and how it gets rid of them."""

from __future__ import annotations

import pytest

from tests.launch.census import Census, expect_gone, ids, named, wait_until
from tests.notebook_kernel import NotebookKernel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # three launches and a server that starts

PREPARE = """
%load_ext accel_nb
import os
os.environ["ACCEL_NB_STANDBY"] = "on"
from accel_nb import notebook_launcher
from accel_nb.launch.servers.standby import STANDBY
def opens_group():
    from torch import distributed
    distributed.init_process_group("gloo")
notebook_launcher(opens_group, num_processes=2, device="cpu")
STANDBY.is_ready(120)
"""
PLAN = "%accel_plan --num-processes 2 --device cpu"


def test_the_plan_shows_them_and_stop_lets_them_go(kernel: NotebookKernel) -> None:
    kernel.ok(PREPARE, timeout_s=200)

    plan = kernel.ok(PLAN).stdout
    stopped = kernel.ok("%accel_stop").stdout
    again = kernel.ok("%accel_stop").stdout

    assert "- In standby, for a launch like the last one: 2 ranks on cpu (gloo); %accel_stop ends them.\n" in plan
    assert stopped == "Let go: 2 ranks on cpu (gloo), in standby for the next launch.\n"
    assert again == "Nothing to stop: no run of this kernel is under way.\n"
    assert "In standby" not in kernel.ok(PLAN).stdout


def test_unloading_ends_them(kernel: NotebookKernel) -> None:
    kernel.ok(PREPARE, timeout_s=200)
    census = Census(kernel)
    assert census.everything()

    kernel.ok("%unload_ext accel_nb")

    assert not kernel.value("STANDBY.is_ready()")
    wait_until(lambda: not census.everything(), 30, lambda: named(ids(census.everything())))


@pytest.mark.faults
def test_y02_they_end_with_a_killed_kernel(kernel: NotebookKernel) -> None:
    kernel.ok(PREPARE, timeout_s=200)
    started = ids(Census(kernel).everything())
    assert started

    kernel.kill()

    expect_gone(started, within_s=30)
