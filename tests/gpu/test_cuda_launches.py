"""Launches on two real GPUs from a real kernel that has used CUDA itself. Skipped where there are fewer."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from tests.notebook_kernel import NotebookKernel


def _num_gpus() -> int:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


NUM_GPUS = 2
pytestmark = [
    pytest.mark.skipif(_num_gpus() < NUM_GPUS, reason="needs two NVIDIA GPUs"),
    pytest.mark.timeout(300),
]

USE_CUDA = """
import time, torch
from accel_nb import notebook_launcher
held = torch.randn(64 << 20, device="cuda:0")          # 256 MiB: the kernel's own CUDA context is live
print(float((held[:1000] ** 2).sum()) > 0)
"""
ALL_REDUCE = """
def all_reduced(init_timeout_s=60):
    import os, time, torch, torch.distributed as dist
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    x = torch.full((4,), float(dist.get_rank() + 1), device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    done = time.time()
    return dict(sum=x[0].item(), name=torch.cuda.get_device_name(), count=torch.cuda.device_count(), done=done,
                uuid=str(torch.cuda.get_device_properties(rank).uuid), visible=os.environ["CUDA_VISIBLE_DEVICES"])
"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[NotebookKernel]:
    """One kernel for all: each test is one more launch after CUDA was used."""
    started = NotebookKernel()
    started.ok(USE_CUDA + ALL_REDUCE, timeout_s=120)
    yield started
    started.shutdown()


def timed(kernel: NotebookKernel, call: str) -> dict[str, object]:
    """Run ``call`` in a cell; gives its results, seconds from the call to what `done` says, and to the return."""
    kernel.ok(f"t0 = time.time(); results = {call}; took = time.time() - t0", timeout_s=180)
    found = kernel.value("dict(results=list(results), reduced=max(r['done'] for r in results) - t0, returned=took)")
    assert isinstance(found, dict)
    print(json.dumps({"call": call, "reduced_s": found["reduced"], "returned_s": found["returned"]}))
    return found


def test_l01_nccl_after_the_kernel_has_used_cuda_several_launches_in_a_row(kernel: NotebookKernel) -> None:
    for _ in range(4):
        found = timed(kernel, "notebook_launcher(all_reduced, num_processes=2)")

        assert [result["sum"] for result in found["results"]] == [3.0, 3.0]  # type: ignore[attr-defined]
        assert len({result["uuid"] for result in found["results"]}) == NUM_GPUS  # type: ignore[attr-defined]


def test_l13_all_visible_gpus_are_the_default(kernel: NotebookKernel) -> None:
    found = timed(kernel, "notebook_launcher(all_reduced)")

    assert len(found["results"]) == kernel.value("torch.cuda.device_count()")  # type: ignore[arg-type]


def test_l14_devices_are_given_in_order(kernel: NotebookKernel) -> None:
    both = timed(kernel, "notebook_launcher(all_reduced, num_processes=2, devices=[0, 1])")["results"]
    swapped = timed(kernel, "notebook_launcher(all_reduced, devices=[1, 0])")["results"]
    one = timed(kernel, "notebook_launcher(all_reduced, devices=[1])")["results"]

    uuids = [result["uuid"] for result in both]  # type: ignore[attr-defined]
    assert [result["uuid"] for result in swapped] == uuids[::-1]  # type: ignore[attr-defined]
    assert [result["uuid"] for result in one] == uuids[1:]  # type: ignore[attr-defined]
    assert one[0]["count"] == 1  # type: ignore[index]


def test_the_quickstarts_training_runs_on_both_gpus(kernel: NotebookKernel) -> None:
    notebook = json.loads((Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    until_results = next(number for number, cell in enumerate(cells) if "results.main" in cell)

    for cell in cells[: until_results + 1]:
        kernel.ok(cell, timeout_s=180)

    facts = kernel.value("[len(results), history[-1]['accuracy'], history[-1]['counted'], len(test_set)]")
    print(facts)
    assert isinstance(facts, list)
    assert facts[0] == NUM_GPUS
    assert facts[1] >= 0.97
    assert facts[2] == facts[3]
    assert kernel.value("str(next(model.parameters()).device)") == "cpu"


ACCELERATE = """
def with_accelerate():
    import torch
    from accelerate import Accelerator
    accelerator = Accelerator()
    model, = [accelerator.prepare(torch.nn.Linear(4, 1))]
    accelerator.backward(model(torch.ones(2, 4, device=accelerator.device)).sum())
    gathered = accelerator.gather(torch.tensor([accelerator.process_index], device=accelerator.device))
    return dict(state=str(accelerator.distributed_type), index=accelerator.process_index, gathered=gathered.tolist(),
                device=str(accelerator.device))
"""
TRAINER = """
def with_trainer(folder):
    import torch
    from transformers import Trainer, TrainingArguments
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__(); self.layer = torch.nn.Linear(4, 1)
        def forward(self, x, labels=None):
            y = self.layer(x).squeeze(-1)
            return {"loss": ((y - labels) ** 2).mean(), "logits": y}
    data = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(64)]
    args = TrainingArguments(folder, per_device_train_batch_size=4, max_steps=5, report_to=[], save_strategy="no",
                             disable_tqdm=True)
    trainer = Trainer(Net(), args, train_dataset=data)
    trainer.train()
    return dict(world=args.world_size, device=str(args.device), steps=trainer.state.global_step)
"""
LIGHTNING = """
def with_lightning(folder):
    import torch
    try:
        import lightning.pytorch as pl
    except ModuleNotFoundError:
        import pytorch_lightning as pl
    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__(); self.layer = torch.nn.Linear(4, 1)
        def training_step(self, batch, _):
            return self.layer(batch[0]).pow(2).mean()
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=4)
    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pl.Trainer(accelerator="gpu", devices=2, strategy="ddp", max_steps=5, default_root_dir=folder, **off)
    trainer.fit(Net(), loader)
    return dict(world=trainer.world_size, rank=trainer.global_rank, device=str(trainer.strategy.root_device))
"""


def test_accelerate_inside(kernel: NotebookKernel) -> None:
    kernel.ok(ACCELERATE + "\nresults = notebook_launcher(with_accelerate, num_processes=2)", timeout_s=180)

    results = kernel.value("list(results)")

    assert [(result["index"], result["device"]) for result in results] == [(0, "cuda:0"), (1, "cuda:1")]  # type: ignore[attr-defined]
    assert all(result["gathered"] == [0, 1] for result in results)  # type: ignore[attr-defined]


def test_trainer_inside(kernel: NotebookKernel, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    call = f"results = notebook_launcher(with_trainer, ({str(tmp_path)!r},), num_processes=2)"
    kernel.ok(f"{TRAINER}\n{call}", timeout_s=240)

    results = kernel.value("list(results)")

    assert [(r["world"], r["device"], r["steps"]) for r in results] == [(2, "cuda:0", 5), (2, "cuda:1", 5)]  # type: ignore[attr-defined]


def test_lightning_inside(kernel: NotebookKernel, tmp_path: Path) -> None:
    if not any(kernel.value(f"__import__('importlib.util').util.find_spec({name!r}) is not None") for name in
               ("lightning", "pytorch_lightning")):  # fmt: skip
        pytest.skip("Lightning is not installed")
    call = f"results = notebook_launcher(with_lightning, ({str(tmp_path)!r},), num_processes=2)"
    kernel.ok(f"{LIGHTNING}\n{call}", timeout_s=240)

    results = kernel.value("list(results)")

    assert [(r["world"], r["rank"], r["device"]) for r in results] == [(2, 0, "cuda:0"), (2, 1, "cuda:1")]  # type: ignore[attr-defined]


def test_l03_cuda_tensors_of_the_kernel_travel_over_the_cpu_and_are_named(kernel: NotebookKernel) -> None:
    code = """
weights = torch.full((1 << 20,), 2.0, device="cuda:0")
def use(): return str(weights.device), float(weights.sum())
results = notebook_launcher(use, num_processes=2)
"""
    done = kernel.ok(code, timeout_s=120)

    assert kernel.value("list(results)") == [["cpu", float(2 << 20)]] * 2
    assert "weights" in done.text


def test_l17_cpu_ranks_see_no_gpu(kernel: NotebookKernel) -> None:
    code = "def f():\n    import torch\n    return torch.cuda.device_count()\n"
    kernel.ok(f"{code}results = notebook_launcher(f, num_processes=2, device='cpu')", timeout_s=120)

    assert kernel.value("list(results)") == [0, 0]


def test_l12_more_ranks_than_gpus_are_refused(kernel: NotebookKernel) -> None:
    done = kernel.run("notebook_launcher(all_reduced, num_processes=64)", timeout_s=60)

    assert done.ename == "NotEnoughDevices"


@pytest.mark.parametrize("ending", ["raise ValueError('boom')", "os.kill(os.getpid(), 9)", "return 1"])
def test_gpu_memory_is_back_after_every_outcome(kernel: NotebookKernel, ending: str) -> None:
    before = kernel.value("[torch.cuda.mem_get_info(i)[0] for i in range(2)]")
    code = f"""
def hold():
    import os, torch, torch.distributed as dist
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    x = torch.ones(1 << 28, device="cuda"); dist.all_reduce(x)
    if dist.get_rank() == 1:
        {ending}
    return 0
results = notebook_launcher(hold, num_processes=2, on_failure="return")
"""
    kernel.ok(code, timeout_s=120)
    least = f"min(torch.cuda.mem_get_info(i)[0] for i in range(2)) < min({before}) - (64 << 20)"
    kernel.ok(f"end = time.time() + 5\nwhile time.time() < end and {least}:\n    time.sleep(0.05)")

    after = kernel.value("[torch.cuda.mem_get_info(i)[0] for i in range(2)]")
    assert all(now > then - (64 << 20) for now, then in zip(after, before, strict=True))  # type: ignore[call-overload]


HOLD_BYTES = 1 << 30
SLACK_BYTES = 64 << 20
INTERRUPT_S = 10.0
HOLDS = """
def holds(way):
    import os, signal, time, torch, torch.distributed as dist
    rank = int(os.environ["LOCAL_RANK"])
    if way == "deaf":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    held = torch.ones({hold_bytes} // 4, device="cuda")
    dist.all_reduce(held[:4])
    torch.cuda.synchronize()
    print("up", rank, flush=True)
    if way == "collective" and rank == 0:
        dist.all_reduce(held)
        torch.cuda.synchronize()
    while way == "computing":
        held.mul_(1.0)
        torch.cuda.synchronize()
    time.sleep(600)
"""


def used_bytes() -> list[int]:
    """By device, whoever uses it: asked of the driver, since the kernel is busy with its cell."""
    pynvml.nvmlInit()
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles]
    finally:
        pynvml.nvmlShutdown()


def more_than(before: list[int]) -> list[int]:
    return [now - then for now, then in zip(used_bytes(), before, strict=True)]


@pytest.mark.parametrize("way", ["sleeping", "computing", "collective", "deaf"])
def test_y01_an_interrupt_gives_the_memory_of_the_gpus_back(kernel: NotebookKernel, way: str) -> None:
    kernel.ok(HOLDS.format(hold_bytes=HOLD_BYTES))
    # The kernel's own context and what is forked ahead are there before.
    kernel.ok("notebook_launcher(all_reduced, num_processes=2)", timeout_s=120)
    time.sleep(1.0)
    before = used_bytes()
    cell = kernel.start(f"notebook_launcher(holds, ({way!r},), num_processes=2)")
    for rank in range(NUM_GPUS):
        kernel.wait_for(cell, f"up {rank}", timeout_s=120)
    # On its way into what it blocks in.
    time.sleep(0.5)
    held = more_than(before)

    interrupted_s = time.monotonic()
    kernel.interrupt()
    done = kernel.collect(cell, timeout_s=60)
    took_s = time.monotonic() - interrupted_s
    while max(more_than(before)) > SLACK_BYTES and time.monotonic() < interrupted_s + INTERRUPT_S:
        time.sleep(0.05)
    left, back_s = more_than(before), time.monotonic() - interrupted_s

    print(json.dumps({"way": way, "cell_back_s": took_s, "memory_back_s": back_s, "left_bytes": left}))
    assert sum(more >= HOLD_BYTES for more in held) == NUM_GPUS, held
    assert done.ename == "RunInterrupted", done.described()
    assert took_s < INTERRUPT_S
    assert max(left) <= SLACK_BYTES, f"bytes by device that are not back: {left}"
    results = timed(kernel, "notebook_launcher(all_reduced, num_processes=2)")["results"]
    assert [result["sum"] for result in results] == [3.0, 3.0]  # type: ignore[attr-defined]
