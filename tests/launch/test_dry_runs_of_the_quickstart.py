"""The quickstart's own cells with one mistake each: a dry run names it before a device is taken.

The devices are two GPUs that this machine lacks, of 1.5 GiB each, offered by a package of their own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import nbformat
import pytest

from tests.notebook_kernel import REPOSITORY, Executed, NotebookKernel

pytestmark = pytest.mark.faults

SMALL_GPUS = """
from accel_nb.devices.cuda import CudaDevice
from tests.devices.fake_nvml import FakeGpu, FakeNvml

class SmallGpus(CudaDevice):
    kind = "fakegpu"
    process_group = "gloo"
    preference = 200

    def count(self):
        return len(self.probe())

DEVICE = SmallGpus(lambda: FakeNvml(*(FakeGpu(f"GPU-{n}", name="Small", total=1500 << 20, used=0) for n in (0, 1))))
"""
DRY_RUN = "dry = notebook_launcher(train, num_processes=num_ranks, dry_run=True)\ndry"
BACKWARD = "accelerator.backward(loss)  # 4"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NotebookKernel]:
    """One that sees the two GPUs."""
    tmp_path = tmp_path_factory.mktemp("gpus")
    (tmp_path / "small_gpus.py").write_text(SMALL_GPUS)
    metadata = tmp_path / "small_gpus-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: small-gpus\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[accel_nb.devices]\nfakegpu = small_gpus:DEVICE\n")
    started = NotebookKernel({"PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}", "MPLBACKEND": "agg"})
    yield started
    started.shutdown()


def dry_run(
    kernel: NotebookKernel, *, mistake: tuple[str, str] = ("", ""), before: str = ""
) -> tuple[Executed, list[str]]:
    """Run the notebook's cells up to its launch, which is a dry run, and tell where its ranks were started.

    `mistake`: text to replace, and by what.
    """
    cells = nbformat.read(REPOSITORY / "notebooks" / "quickstart.ipynb", as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    (first_launch,) = [position for position, text in enumerate(code) if "notebook_launcher(train," in text]
    wrong, planted = mistake
    assert any(wrong in text for text in code[:first_launch])
    for text in code[:first_launch]:
        kernel.ok(text.replace(wrong, planted) if wrong else text, 100.0)
    kernel.ok(f"num_ranks = 2\n{before}")
    earlier = set(kernel.log_dir.glob("run-*/run.jsonl"))
    shown = kernel.run(DRY_RUN, 100.0)
    files = set(kernel.log_dir.glob("run-*/run.jsonl")) - earlier
    events = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return shown, [event["device"] for event in events if event["type"] == "rank_started"]


def test_nothing_is_wrong_with_the_quickstart_itself(kernel: NotebookKernel) -> None:
    shown, devices = dry_run(kernel)

    assert shown.result is not None, shown.described()
    first, *figures = shown.result.splitlines()
    assert first == "DryRun of train for 2 ranks: nothing wrong was found."
    assert "one step with a batch of 32 takes about " in figures[0]
    banner = "Dry run: one step on the CPU, to see what 2 ranks on fakegpu:0 Small, fakegpu:1 Small would do."
    assert banner in shown.stdout
    assert devices == ["cpu", "cpu"]
    assert kernel.value("dry.ok") is True


def test_a_global_that_cannot_be_pickled_is_named(kernel: NotebookKernel) -> None:
    mistake = ("torch.manual_seed(0)", "torch.manual_seed(0)\n    lock.acquire()")

    shown, devices = dry_run(kernel, mistake=mistake, before="import threading\nlock = threading.Lock()")

    assert shown.ename == "NotPicklable"
    assert shown.evalue.startswith("train → global 'lock' cannot be sent to the ranks"), shown.evalue
    assert devices == []


def test_a_shape_that_differs_between_ranks_is_named(kernel: NotebookKernel) -> None:
    planted = f"{BACKWARD}\n            accelerator.gather(target[: 8 + accelerator.process_index])"

    shown, devices = dry_run(kernel, mistake=(BACKWARD, planted))

    assert shown.ename == "RunFailed"
    assert "DistributedOperationException" in shown.evalue
    assert "rank 0: [8] int64" in shown.evalue
    assert "rank 1: [9] int64" in shown.evalue
    assert devices == ["cpu", "cpu"]


def test_a_parameter_that_gets_no_gradient_is_named(kernel: NotebookKernel) -> None:
    mistake = ("model = make_model()", "model = make_model()\n    model.spare = nn.Parameter(torch.zeros(3))")

    shown, devices = dry_run(kernel, mistake=mistake)

    assert shown.result is not None, shown.described()
    first, finding, *_ = shown.result.splitlines()
    assert first == "DryRun of train for 2 ranks: 1 problem"
    assert finding.startswith("- Ranks 0-1: 'spare' of Sequential got no gradient in the step. ")
    assert "requires_grad_(False)" in finding
    assert "find_unused_parameters=True" in finding
    assert devices == ["cpu", "cpu"]


@pytest.mark.parametrize("how", ["group", "device", "tensor"])
def test_a_function_that_insists_on_a_device_is_told_that_it_is_hidden(kernel: NotebookKernel, how: str) -> None:
    shown = kernel.run(
        "from accel_nb import notebook_launcher\nfrom tests.launch.dry_run_code import naming_cuda\n"
        f"notebook_launcher(naming_cuda, ({how!r},), num_processes=2, dry_run=True)",
        100.0,
    )

    assert shown.ename == "RunFailed"
    assert "This is a dry run, which hides every accelerator from its ranks" in shown.evalue
    assert "accel_nb.doctor()" not in shown.evalue


def test_a_batch_that_is_too_large_for_the_devices_is_named_with_one_that_fits(kernel: NotebookKernel) -> None:
    mistake = ("batch_size=64 // accelerator.num_processes", "batch_size=1400")

    shown, devices = dry_run(kernel, mistake=mistake)

    assert shown.result is not None, shown.described()
    first, finding, *_ = shown.result.splitlines()
    assert first == "DryRun of train for 2 ranks: 1 problem"
    # The second rank's batch is filled up from the first one's.
    assert finding.startswith("- Ranks 0-1 would not fit: a step on rank 0 takes about 1.5 GiB (parameters ")
    assert "MiB more than is free on fakegpu:0 Small (1.5 GiB)" in finding
    assert "saved for backward" in finding
    fitting = int(finding.partition("A batch of about ")[2].partition(" instead of 1,400")[0])
    assert devices == ["cpu", "cpu"]
    assert 300 < fitting < 1000
