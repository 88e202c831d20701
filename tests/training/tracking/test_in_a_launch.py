"""What ranks log and try arrives where they were launched."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch

from accel_nb import Accelerator, find_executable_batch_size, notebook_launcher


def train() -> int:
    accelerator = Accelerator(log_with="notebook")
    accelerator.init_trackers("digits", {"lr": 0.1})

    @find_executable_batch_size(starting_batch_size=8, reduction="halve")
    def inner(batch_size: int) -> int:
        nonlocal accelerator
        accelerator.free_memory()
        model = accelerator.prepare(torch.nn.Linear(4, 1))
        model(torch.ones(batch_size, 4)).sum().backward()
        if batch_size > 2:
            raise RuntimeError("CUDA out of memory. Tried 2 GiB")
        return batch_size

    size: int = inner()
    for step in range(30):
        accelerator.log({"loss": torch.tensor(1.0 / (step + 1))}, step=step)
    accelerator.end_training()
    return size


@pytest.mark.timeout(180)
def test_metrics_and_batch_sizes_are_shown_recorded_and_part_of_the_state(capsys: pytest.CaptureFixture[str]) -> None:
    run = notebook_launcher(train, num_processes=2, device="cpu", block=False)

    assert list(run.result()) == [2, 2]
    for thread in threading.enumerate():  # what prints may be a little behind
        if thread.name.startswith("accel_nb view"):
            thread.join(timeout=30)

    lines = capsys.readouterr().out.splitlines()
    start = lines.index("accel_nb: digits: lr=0.1")
    assert lines[start + 1 : start + 4] == [
        "[r0-r1] inner: batch size 8 does not fit, trying again with 4 (CUDA out of memory. Tried 2 GiB)",
        "[r0-r1] inner: batch size 4 does not fit, trying again with 2 (CUDA out of memory. Tried 2 GiB)",
        "[r0-r1] inner: batch size 2 fits",
    ]
    assert lines[-1] == "[r0] step 29: loss 0.03333"
    assert run.state.curves["loss"].points[:2] == ((0, 1.0), (1, 0.5))
    assert [one.batch_size for one in run.state.ranks[1].batch_sizes] == [8, 4, 2]
    recorded = [json.loads(line) for line in Path(run.log_dir, "run.jsonl").read_text().splitlines()]
    assert [event["step"] for event in recorded if event["type"] == "metrics_logged"] == list(range(30))
