"""Memory snapshots and dry runs on machines with real GPUs. Skipped where there are fewer than two."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.notebook_kernel import NotebookKernel

from . import test_cuda_launches

pytestmark = test_cuda_launches.pytestmark

SNAPSHOT_CELL = """
import torch
from accel_nb import Accelerator, notebook_launcher

def fill():
    device = Accelerator().device
    small = torch.empty(8 << 20, dtype=torch.uint8, device=device)
    held = []
    while True:
        held.append(torch.empty(1 << 30, dtype=torch.uint8, device=device))
"""
DRY_CELL = """
import os, torch
from accel_nb import Accelerator, notebook_launcher

def train():
    accelerator = Accelerator()
    assert str(accelerator.device) == "cpu" and not torch.cuda.is_available()
    model = torch.nn.Linear(8, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    accelerator.backward(model(torch.rand(4, 8)).sum())
    optimizer.step()
    raise ValueError("never reached")
"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[NotebookKernel]:
    started = NotebookKernel()
    yield started
    started.shutdown()


def test_an_out_of_memory_names_the_line_that_holds_the_memory(kernel: NotebookKernel) -> None:
    kernel.ok(SNAPSHOT_CELL, timeout_s=120)

    shown = kernel.run("notebook_launcher(fill, num_processes=2, memory_snapshot=True)", timeout_s=180)

    assert shown.ename == "RunFailed", shown.described()
    lines = shown.evalue.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("Tensors on the GPU held "))
    assert "line 9" in lines[head + 1]
    assert "line 6" in lines[head + 2]
    (told,) = [line for line in lines if line.startswith("Memory snapshot, to be opened at ")]
    with Path(told.rpartition(": ")[2]).open("rb") as file:
        assert {"segments", "device_traces"} <= pickle.load(file).keys()


def test_a_failure_before_cuda_is_used_has_no_snapshot(kernel: NotebookKernel) -> None:
    shown = kernel.run(
        "def fail():\n    raise ValueError('early')\nnotebook_launcher(fail, num_processes=2, memory_snapshot=True)",
        timeout_s=120,
    )

    assert "ValueError: early" in shown.evalue
    assert "Memory snapshot" not in shown.evalue


def test_a_dry_run_for_gpus_takes_none(kernel: NotebookKernel) -> None:
    kernel.ok(DRY_CELL, timeout_s=120)

    shown = kernel.ok("dry = notebook_launcher(train, num_processes=2, dry_run=True)\nprint(dry.ok)", timeout_s=180)

    assert "to see what 2 ranks on cuda:0 " in shown.stdout
    assert shown.stdout.splitlines()[-1] == "True", shown.described()
