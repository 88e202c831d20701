"""Launches on XLA's CPU runtime, which takes one process: what a TPU's rank does but for talking to others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from accel_nb.errors import NotEnoughDevices, PlanError
from tests.launch.launching import start

from . import rank_code

pytest.importorskip("torch_xla", reason="tox -e xla has it")
pytestmark = pytest.mark.timeout(300)
DEADLINE_S = 280
PROJECT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("PJRT_DEVICE", "CPU")
        yield


def on(device: str, function: Callable[..., Any], *args: object, **asked: Any) -> Any:  # noqa: ANN401
    """What one rank there returns."""
    run = start(function, *args, device=device, num_processes=None, **asked)
    run.draw()
    return run.result(DEADLINE_S)[0]


def test_one_rank_trains_as_on_the_cpu() -> None:
    assert on("tpu", rank_code.trained) == pytest.approx(on("cpu", rank_code.trained), abs=1e-4)


def test_spmd_over_four_virtual_devices_trains_as_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("CPU_NUM_DEVICES", "4")
        losses, num_devices, dealt = on("tpu", rank_code.trained_by_spmd)

    assert num_devices == 4
    assert dealt == {((32, 8), 4, ("data", None)), ((32, 1), 4, ("data", None))}
    assert losses == pytest.approx(on("cpu", rank_code.trained), abs=1e-4)


def test_a_checkpoint_brings_back_weights_ties_and_noise(tmp_path: Path) -> None:
    found = on("tpu", rank_code.saved_and_loaded, str(tmp_path))

    assert found.pop("safe")
    assert found == {"weights": True, "noise": True, "device": "xla:0", "tied": True}


def test_noise_on_the_device_is_seeded() -> None:
    first, again, later = on("tpu", rank_code.noise)

    assert first == again != later


def test_bf16_computes_in_bf16_and_gives_float32() -> None:
    assert on("tpu", rank_code.in_half_precision, mixed_precision="bf16") == ("torch.bfloat16", "torch.float32")


def test_x02_more_ranks_than_the_runtime_takes_are_refused_before_the_start() -> None:
    with pytest.raises(NotEnoughDevices, match=r"num_processes=2, but .* has 1 tpu device .* Ask for 1, or"):
        start(rank_code.trained, device="tpu", num_processes=2)


def test_a_fork_of_the_kernel_is_refused() -> None:
    with pytest.raises(PlanError, match="start_method='fork' is not possible on tpu"):
        start(rank_code.trained, device="tpu", num_processes=1, start_method="fork")


def test_x06_a_captured_tensor_is_mapped_not_copied() -> None:
    import torch

    assert on("tpu", rank_code.place_of, torch.ones(1 << 22)) is True


def test_x07_a_training_that_never_stops_compiling_is_told_once() -> None:
    [text] = on("tpu", rank_code.shapes_that_never_settle, 60)

    assert text.startswith("XLA compiled 20 times in steps 21 to 40, and each time takes long: give batches one shape")


def test_x08_notebook_bars_work_in_a_rank() -> None:
    assert on("tpu", rank_code.shows_bars) == "012xla:0"


def test_tensors_come_back_on_the_cpu() -> None:
    import torch

    back = on("tpu", rank_code.gives_tensors)

    first, second = back["tensors"]
    assert first is second
    assert first.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert isinstance(back["weight"], torch.nn.Parameter)
    assert back["weight"].requires_grad
    moments = back["state"]["state"][0].values()
    assert {one.device.type for one in (first, back["weight"], *moments)} == {"cpu"}


TO_RANKS = """
import json
import torch
import torch_xla
from accel_nb.launch.payload.packing import pack, unpack

def train(batch):
    pass

batch = torch.ones(256, device="xla")
with pack(train, (batch,)) as packed:
    _, (given,), _ = unpack(packed.fd)
print(json.dumps([packed.notices, given.device.type, given.sum().item()]))
"""


def test_the_kernels_tensors_travel_on_the_cpu_and_are_named(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(TO_RANKS)

    [told], where, total = printed_by(tmp_path / "kernel.py")

    assert told.endswith("put them on their own devices: train → argument 'batch' (xla:0, 1.0 KiB).")
    assert (where, total) == ("cpu", 256.0)


KERNEL = """
import json
import torch
import torch_xla
from accel_nb import notebook_launcher

weights = torch.ones(2, device="xla")
assert weights.sum().item() == 2  # this process's runtime runs, with its threads

def added():
    import torch
    import torch_xla
    return torch.ones(3, device="xla").sum().item()

if __name__ == "__main__":
    print(json.dumps([notebook_launcher(added, device="tpu").main for _ in range(2)]))
"""


def test_x01_x05_launch_again_and_again_after_the_kernel_has_used_xla(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL)

    assert printed_by(tmp_path / "kernel.py") == [3.0, 3.0]


def test_the_quickstarts_training_loses_as_on_the_cpu(tmp_path: Path) -> None:
    """Without dropout, whose noise XLA draws by another generator. Without the convolutions' biases: a BatchNorm after
    them makes their gradients zero but for rounding, of which Adam makes whole steps. With them even two numbers of
    threads of a CPU give losses that differ by 1e-3.
    """
    cells = json.loads((PROJECT / "notebooks" / "quickstart.ipynb").read_text(encoding="utf-8"))["cells"]
    wanted = ["".join(cell["source"]) for cell in cells if cell["id"] in ("imports", "data", "model", "evaluate")]
    ending = (
        "if __name__ == '__main__':\n    import json\n"
        "    found = [notebook_launcher(train, (2,), device=device).main[0] for device in ('tpu', 'cpu')]\n"
        "    print(json.dumps([[epoch['loss'] for epoch in history] for history in found]))\n"
    )
    training = "\n".join([*wanted, ending])
    for has, gets in (("nn.Dropout(0.5)", "nn.Dropout(0.0)"), ("padding=1)", "padding=1, bias=False)")):
        assert has in training
        training = training.replace(has, gets)
    (tmp_path / "quickstart.py").write_text(training)

    on_xla, on_cpu = printed_by(tmp_path / "quickstart.py")

    assert on_xla == pytest.approx(on_cpu, abs=1e-4)


def printed_by(script: Path) -> Any:  # noqa: ANN401
    """The last line of what it prints, as JSON. It must end well."""
    variables = {
        **os.environ, "PYTHONPATH": str(PROJECT), "ACCEL_NB_LOG_DIR": str(script.parent / "logs"), "MPLBACKEND": "agg",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(script)], cwd=script.parent, env=variables, capture_output=True, text=True, check=False,
        timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("[")][-1])
