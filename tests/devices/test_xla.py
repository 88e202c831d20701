"""TPUs where there is none: what the kernel finds out and refuses, on made-up machines; and the path of several chips
on a stand-in for torch_xla.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import msgspec
import pytest

from accel_nb.devices.xla import CompilationWatch, XlaDevice, refused_choice
from accel_nb.launch.planning.planner import make_plan, plan_line
from accel_nb.protocol.hardware import NodeHardware
from accel_nb.protocol.plan import LaunchRequest

PROJECT = Path(__file__).parents[2]
VARIABLES = ("PJRT_DEVICE", "TPU_NAME", "TPU_WORKER_ID")


def installed(**versions: str) -> XlaDevice:
    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    return XlaDevice(Path("/nowhere"), version)


def machine(root: Path, generation: str = "0x0063", chips: int = 4) -> XlaDevice:
    """With so many chips on its bus."""
    (root / "dev" / "vfio").mkdir(parents=True)
    for index in range(chips):
        (root / "dev" / "vfio" / str(index)).touch()
        bus = root / "sys" / "bus" / "pci" / "devices" / f"0000:00:0{index}.0"
        bus.mkdir(parents=True)
        (bus / "vendor").write_text("0x1ae0\n")
        (bus / "device").write_text(f"{generation}\n")
    return XlaDevice(root, lambda _name: "2.9.0")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def planned(kind: XlaDevice, **asked: object) -> object:
    hardware = NodeHardware(
        host="vm", cpu_count=96, memory_bytes=1 << 38, memory_available_bytes=1 << 37, devices={"tpu": kind.probe()}
    )
    request = LaunchRequest(**asked)  # type: ignore[arg-type]
    from accel_nb.devices.cpu import DEVICE

    return make_plan(request, hardware, kernel_env={}, run_id="r1", kinds=(kind, DEVICE))


def test_x01_the_kernel_counts_chips_without_the_library(tmp_path: Path) -> None:
    """On a machine where importing torch_xla in the kernel is an error."""
    package = tmp_path / "torch_xla"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('the kernel imported torch_xla')")
    machine(tmp_path)
    code = (
        f"from pathlib import Path; import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from accel_nb.devices.xla import XlaDevice\n"
        f"device = XlaDevice(Path({str(tmp_path)!r}), lambda name: '2.9.0')\n"
        "print([one.name for one in device.probe()], device.is_open(), 'torch' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == f"{['TPU v5e'] * 4} False False"


V2, V5, CPU = "TPU v2 or v3", "TPU v5e", "XLA's CPU runtime (PJRT_DEVICE=CPU)"


@pytest.mark.parametrize(
    ("name", "visible", "chosen", "refusal"),
    [
        (V5, 8, range(8), ""),
        (V5, 8, range(1), ""),
        (V5, 1, range(1), ""),
        (V5, 8, range(2), "2 of 8 were asked for. Allowed: num_processes=1 or 8, with devices left out."),
        (V5, 4, (3, 2, 1, 0), "4 of 4 were asked for. Allowed: num_processes=1 or 4, with devices left out."),
        (V5, 8, (3,), "set TPU_VISIBLE_CHIPS in the kernel for another."),
        (V2, 4, range(1), ""),
        (V2, 4, range(4), "Allowed: num_processes=1, in which torch_xla.runtime.use_spmd() trains on all cores."),
        (CPU, 1, range(1), ""),
    ],
)
def test_x02_the_runtimes_numbers_of_processes(name: str, visible: int, chosen: range, refusal: str) -> None:
    found = refused_choice(list(chosen), list(range(visible)), name)

    assert found.endswith(refusal)
    assert bool(found) == bool(refusal)


def test_x02_all_chips_by_default_each_with_a_fresh_interpreter(tmp_path: Path) -> None:
    plan = planned(machine(tmp_path))

    assert plan_line(plan).startswith(  # type: ignore[arg-type]
        "4 ranks on tpu:0 TPU v5e, tpu:1 TPU v5e, tpu:2 TPU v5e, tpu:3 TPU v5e (asked: default), gloo"
    )
    assert plan.start_method == "spawn"  # type: ignore[attr-defined]
    assert plan.env == {"PJRT_DEVICE": "TPU"}  # type: ignore[attr-defined]


def test_x03_a_tpu_without_its_library_is_said_and_not_used(tmp_path: Path) -> None:
    machine(tmp_path)
    device = XlaDevice(tmp_path, installed()._installed)

    assert device.probe() == ()
    assert device.unusable_because() == (
        "PCI device 0000:00:00.0 was found, but torch_xla is not installed: pip install 'accel-nb[tpu]'."
    )


def test_x03_the_library_of_another_torch_is_said(tmp_path: Path) -> None:
    machine(tmp_path)
    device = XlaDevice(tmp_path, installed(torch_xla="2.9.0", torch="2.13.0+cpu")._installed)

    assert device.unusable_because() == (
        "torch_xla 2.9.0 works with torch 2.9 only, and torch 2.13.0+cpu is installed: install the two in the same "
        "release, such as torch==2.9.*."
    )


def test_x03_a_variable_without_a_chip_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PJRT_DEVICE", "TPU")
        text = installed(torch_xla="2.9.0", torch="2.9.0").unusable_because()

    assert text.startswith("PJRT_DEVICE=TPU says that a TPU is here, but this process sees no chip")


def test_x03_the_cpu_runtime_is_never_taken_for_a_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    device = installed(torch_xla="2.9.0", torch="2.9.1")
    assert (device.preference, device.probe(), device.unusable_because()) == (90, (), "")

    with monkeypatch.context() as patch:
        patch.setenv("PJRT_DEVICE", "CPU")  # torch_xla itself sets it, on any machine without a TPU
        by_itself, by_name = planned(device, num_processes=1), planned(device, device="tpu")

    assert by_itself.device_kind == "cpu"  # type: ignore[attr-defined]
    assert by_name.ranks[0].device_label == f"tpu:0 {CPU}"  # type: ignore[attr-defined]
    assert by_name.env == {"PJRT_DEVICE": "CPU"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("per_step", "warned"), [(1, True), (0, False)])
def test_x07_compilations_that_go_on_are_told_once(
    per_step: int, warned: bool, recwarn: pytest.WarningsRecorder
) -> None:
    watch = CompilationWatch()

    for step in range(100):
        watch.note_step(20 + per_step * step)

    assert len(recwarn) == int(warned)


FAKE_LIBRARY = {
    "torch_xla/__init__.py": (
        "import torch\n"
        "class _XLAC:\n"
        "    _xla_runtime_is_initialized = staticmethod(lambda: True)\n"
        "synced = 0\n"
        "def device(): return torch.device('cpu')\n"
        "def sync():\n    global synced\n    synced += 1\n"
    ),
    "torch_xla/runtime.py": (
        "joined = 1\ndef world_size(): return joined\ndef is_spmd(): return False\n"
        "def global_runtime_device_count(): return joined\n"
    ),
    "torch_xla/_internal/__init__.py": "",
    "torch_xla/_internal/pjrt.py": (
        "from torch_xla import runtime\n"
        "def initialize_multiprocess(rank, size): runtime.joined = size\n"
        "def initialize_singleprocess(): pass\n"
    ),
    "torch_xla/core/__init__.py": "",
    "torch_xla/core/xla_model.py": (
        "import torch\nreduced = 0\n"
        "def all_reduce(kind, tensors, scale=1.0):\n"
        "    global reduced\n    reduced += 1\n"
        "    for tensor in tensors:\n"
        "        torch.distributed.all_reduce(tensor)\n        tensor.mul_(scale)\n"
        "def set_rng_state(seed, device=None): pass\n"
        "def get_rng_state(device=None): return 1\n"
    ),
    "torch_xla/debug/__init__.py": "",
    "torch_xla/debug/metrics.py": "def metric_data(name): return None\n",
    "chips.py": (
        "from accel_nb.devices.xla import XlaDevice\n"
        "from accel_nb.protocol.hardware import DeviceInfo\n"
        "class Chips(XlaDevice):\n"
        "    kind = 'chips'\n    torch_type = 'cpu'\n"
        "    def unusable_because(self): return ''\n"
        "    def probe(self): return tuple(DeviceInfo(index=index, name='TPU v5e') for index in range(2))\n"
        "DEVICE = Chips()\n"
    ),
    "chips-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: chips\nVersion: 1.0\n",
    "chips-1.0.dist-info/entry_points.txt": "[accel_nb.devices]\nchips = chips:DEVICE\n",
    "launch.py": (
        "import json\nfrom accel_nb import notebook_launcher\n"
        "def trained(on_chips):\n"
        "    import torch\n"
        "    from torch import nn\n"
        "    from accel_nb import Accelerator\n"
        "    accelerator = Accelerator()\n"
        "    torch.manual_seed(0 if not on_chips else accelerator.process_index)\n"
        "    model = nn.Linear(4, 1)\n"
        "    if not on_chips: torch.manual_seed(0); model = nn.Linear(4, 1)\n"
        "    data = torch.arange(64.0).view(16, 4) / 64\n"
        "    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=2)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
        "    losses = []\n"
        "    for step, (batch,) in enumerate(loader):\n"
        "        optimizer.zero_grad()\n"
        "        loss = (model(batch) - 1).square().mean()\n"
        "        if on_chips and step % 2: accelerator.backward(loss / 4, retain_graph=True)\n"
        "        accelerator.backward(loss * (0.75 if on_chips and step % 2 else 1.0)); optimizer.step()\n"
        "        losses.append(accelerator.reduce(loss.detach(), reduction='mean').item())\n"
        "    counts = ()\n"
        "    if on_chips:\n"
        "        import torch_xla\n"
        "        counts = (torch_xla.core.xla_model.reduced, torch_xla.synced >= 8)\n"
        "    return losses, str(accelerator.distributed_type), type(model).__name__, counts\n"
        "if __name__ == '__main__':\n"
        "    print(json.dumps([list(notebook_launcher(trained, (True,), device='chips')),\n"
        "                      list(notebook_launcher(trained, (False,), num_processes=2, device='cpu'))]))\n"
    ),
}


def test_ranks_on_several_chips_train_one_model(tmp_path: Path) -> None:
    """A stand-in with torch_xla's interface, whose reductions gloo does. No TPU has run this. Every other step has two
    backwards: what the first one has averaged is the same on all ranks, and stays so when it is averaged again.
    """
    for name, text in FAKE_LIBRARY.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(PROJECT)]),
        "ACCEL_NB_LOG_DIR": str(tmp_path / "logs"),
    }

    done = subprocess.run(
        [sys.executable, "launch.py"], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False,
        timeout=110,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    on_chips, on_cpu = msgspec.json.decode([line for line in done.stdout.splitlines() if line.startswith("[")][-1])
    losses = [losses for losses, *_ in on_cpu]
    assert [one[0] for one in on_chips] == [pytest.approx(expected, abs=1e-6) for expected in losses]
    assert [one[1:] for one in on_chips] == [["XLA", "Linear", [6, True]]] * 2
