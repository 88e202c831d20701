"""CUDA tensors on their way to ranks and back. The kernel is a child: this process must never open CUDA."""

from __future__ import annotations

import subprocess
import sys

import pytest

from accel_nb.devices.nvml import load, read_gpus

pytestmark = [pytest.mark.gpu(1), pytest.mark.skipif(not read_gpus(load()), reason="needs a GPU")]


def run_kernel(program: str) -> str:
    """What `program` prints; its own traceback when it fails."""
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert child.returncode == 0, child.stderr
    return child.stdout


TO_RANKS = """
import torch
from accel_nb.launch.payload.packing import pack
from tests.launch.payload.notebook_stand_in import in_rank
model = torch.nn.Linear(2, 3).cuda()
view = model.weight.data[1:]
def train(batch):
    view[0] = 5.0
    same = (model.weight[1] == 5).all().item()
    return batch.device.type, model.weight.device.type, same, torch.cuda.is_initialized()
batch = torch.ones(256, device="cuda")
with pack(train, (batch,)) as packed:
    print("\\n".join(packed.notices))
    print(in_rank(packed))
print(batch.device.type, model.weight.device.type, (view[0] == 5).any().item())
"""


def test_l03_cuda_tensors_travel_on_the_cpu_and_are_named_once() -> None:
    lines = run_kernel(TO_RANKS).splitlines()

    assert lines == [
        (
            "Copied to the CPU for the ranks, which put them on their own devices: train → argument 'batch' (cuda:0, "
            "1.0 KiB); train → global 'view' (cuda:0, 16 bytes); train → global 'model' (2 tensors, 36 bytes)."
        ),
        "('cpu', 'cpu', True, False)",
        "cuda cuda False",
    ]


BACK = """
import torch
from accel_nb.launch.payload.packing import pack_value, unpack_value
for shape in ((3, 4), (20_000, 2)):
    weight = torch.nn.Parameter(torch.randn(shape, device="cuda"))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    with pack_value({"weights": [weight, weight], "view": weight.data[1:], "state": optimizer.state_dict()}) as packed:
        back = unpack_value(packed.fd)
    first, second = back["weights"]
    assert first is second and isinstance(first, torch.nn.Parameter)
    assert first.device.type == back["view"].device.type == "cpu"
    assert torch.equal(first, weight.cpu())
    assert back["view"].data_ptr() == first[1:].data_ptr()
    assert {value.device.type for value in back["state"]["state"][0].values()} == {"cpu"}
"""


def test_p09_cuda_results_come_back_on_the_cpu() -> None:
    run_kernel(BACK)
