"""A device added by somebody who has read only "A new device" in CONTRIBUTING: one file, in a package of theirs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec

PROJECT = Path(__file__).parents[2]

LAUNCH = """
import json
from accel_nb import notebook_launcher

def trained():
    import os, torch
    from accel_nb import Accelerator
    accelerator = Accelerator()
    torch.manual_seed(0)
    model, data = torch.nn.Linear(4, 1), torch.utils.data.TensorDataset(torch.ones(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=2))
    for (batch,) in loader:
        optimizer.zero_grad()
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
    weights = accelerator.gather(torch.cat([one.detach().flatten() for one in model.parameters()]))
    return (
        os.environ["ABACUS_VISIBLE"], os.environ["ACCEL_NB_DEVICE"], accelerator.process_index,
        str(accelerator.device), str(accelerator.distributed_type), len(set(weights.view(2, -1).sum(1).tolist())),
    )

if __name__ == "__main__":
    run = notebook_launcher(trained, device="abacus", devices=[2, 0], block=False)
    labels = [rank.device_label for rank in run.plan.ranks]
    print(json.dumps([labels, run.plan.process_group, list(run.result())]))
    try:
        notebook_launcher(trained, device="abacus", num_processes=4)
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


def example_of_contributing() -> str:
    """The file that "A new device" shows."""
    section = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## A new device")[2]
    (code,) = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], flags=re.DOTALL)
    return str(code)


def installed_in(folder: Path) -> Path:
    """The example as a package that an installer has unpacked in `folder`, entry point included."""
    (folder / "abacus_device.py").write_text(example_of_contributing())
    metadata = folder / "abacus_device-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: abacus-device\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[accel_nb.devices]\nabacus = abacus_device:DEVICE\n")
    return folder


def test_ranks_are_launched_on_a_device_of_another_package(tmp_path: Path) -> None:
    (tmp_path / "launch.py").write_text(LAUNCH)
    paths = os.pathsep.join([str(installed_in(tmp_path)), str(PROJECT)])
    done = subprocess.run(
        [sys.executable, "launch.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths, "ACCEL_NB_LOG_DIR": str(tmp_path / "logs")},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )

    assert done.returncode == 0, done.stderr
    launched, refused = [msgspec.json.decode(line) for line in done.stdout.splitlines() if line.startswith("[")]
    labels, process_group, values = launched
    assert labels == ["abacus:2 wooden", "abacus:0 wooden"]
    assert process_group == "gloo"
    assert values == [["2,0", "abacus", rank, "cpu", "MULTI_CPU", 1] for rank in (0, 1)]
    assert refused == [
        "NotEnoughDevices",
        refused[1],
    ]
    assert refused[1].startswith("num_processes=4, but ")
    assert "has 3 abacus devices for this kernel" in refused[1]
