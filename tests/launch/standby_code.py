"""Functions for ranks that may have been in standby. Imports next to nothing: ranks import this file."""

from __future__ import annotations

import os
import signal
from typing import Any


def has_hidden() -> bool:
    """Whether a group waits to be adopted."""
    from accel_nb.launch.rank.group_shim import SHIM

    return SHIM._hidden is not None


def hidden_group() -> object:
    """The group that waits; something that no group is when there is none."""
    from accel_nb.launch.rank.group_shim import SHIM

    return "none" if SHIM._hidden is None else SHIM._hidden._group


def opens_group(backend: str = "gloo") -> tuple[bool, bool, bool, float]:
    """Whether a group waited, whether torch showed one, whether it was adopted; what an all_reduce gave."""
    import torch
    from torch import distributed

    device = "cpu"
    if backend == "nccl":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    hidden, waited, shown = hidden_group(), has_hidden(), distributed.is_initialized()
    distributed.init_process_group(backend)
    value = torch.tensor([float(distributed.get_rank() + 1)], device=device)
    distributed.all_reduce(value)
    return waited, shown, distributed.group.WORLD is hidden, value.item()


def pid_and_group() -> tuple[int, tuple[bool, bool, bool, float]]:
    return os.getpid(), opens_group()


def opens_none() -> None:
    pass


def where() -> tuple[bool, str, str]:
    return has_hidden(), os.getcwd(), os.environ["ACCELERATE_MIXED_PRECISION"]  # noqa: PTH109  as the system has it


def surroundings(backend: str) -> dict[str, Any]:
    """What a function can see of the process that it runs in."""
    import locale
    import sys
    import threading

    import torch
    from torch import distributed

    seen = {
        "environment": dict(os.environ), "modules": sorted(sys.modules), "cwd": os.getcwd(),  # noqa: PTH109  see above
        "path": list(sys.path), "argv": list(sys.argv), "locale": locale.setlocale(locale.LC_ALL),
        "umask": os.umask(0o022), "threads": (torch.get_num_threads(), threading.active_count()),
        "initialized": distributed.is_initialized(), "hook": sys.excepthook.__qualname__,
        "signal": str(signal.getsignal(signal.SIGINT)), "main": sorted(vars(sys.modules["__main__"])),
        "dtype": str(torch.get_default_dtype()), "leads": os.getpgid(0) == os.getpid(),
    }  # fmt: skip
    if backend == "nccl":
        index = int(os.environ["LOCAL_RANK"])
        seen["device"] = torch.cuda.current_device(), torch.cuda.device_count(), os.environ["CUDA_VISIBLE_DEVICES"]
        seen["memory"] = torch.cuda.memory_allocated(index), torch.cuda.max_memory_allocated(index)
    return seen


def losses_of_a_training(device: Any) -> list[float]:  # noqa: ANN401  a torch.device: torch is not imported here
    import torch
    from torch import distributed

    torch.manual_seed(7)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8).to(device) + distributed.get_rank()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def settled_bytes(device: Any) -> int:  # noqa: ANN401  likewise
    """Memory of a GPU in use once torch has dropped what it holds for a while.

    That is the buckets of a DistributedDataParallel model, until the watchdog of NCCL has seen that their operations
    have ended, which it looks for every 0.1 s, and another one begins (torch 2.8 to 2.13); and what only the collector
    of cycles finds.
    """
    import gc
    import time

    import torch
    from torch import distributed

    for _ in range(5):
        gc.collect()
        time.sleep(0.3)
        distributed.all_reduce(torch.ones(1, device=device))
        torch.cuda.synchronize(device)
    return torch.cuda.memory_allocated(device)


def group_facts() -> dict[str, Any]:
    """What torch's records say of the open group."""
    import sys

    from torch import distributed

    world = distributed.distributed_c10d._get_default_group()
    return {
        "name": world.group_name, "backend": distributed.get_backend(), "bound": str(world.bound_device_id),
        "ranks": distributed.get_process_group_ranks(world), "hook": sys.excepthook.__qualname__,
        "count": len(distributed.distributed_c10d._world.pg_map),
    }  # fmt: skip


def everything(backend: str = "gloo") -> dict[str, Any]:
    """What a function can see of where it runs, what it draws and computes there, and what its groups are."""
    import random
    import sys

    import numpy as np
    import torch
    from torch import distributed

    seen: dict[str, Any] = {"hidden": has_hidden(), "before": surroundings(backend)}
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002  the global generator is compared
    torch.manual_seed(7)
    seen["draws"] = random.random(), np.random.rand(3).tolist(), torch.randn(3, device=device).tolist()  # noqa: NPY002
    distributed.init_process_group(backend)
    if backend == "nccl":
        distributed.all_reduce(torch.ones(1, device=device))
        seen["memory of a first operation"] = torch.cuda.memory_allocated(device)
    seen |= {"group": group_facts(), "losses": losses_of_a_training(device)}
    seen["half"] = distributed.new_group([0, 1]).group_name
    if backend == "nccl":
        seen["memory"] = settled_bytes(device)
    seen |= {"modules": sorted(sys.modules), "after": group_facts()}
    distributed.destroy_process_group()
    distributed.init_process_group(backend)
    seen["again"] = group_facts()
    return seen


def without_ids(seen: dict[str, Any]) -> dict[str, Any]:
    """`seen` without what differs from run to run, and without whether a group waited."""
    per_run = {"MASTER_PORT", "TORCHELASTIC_RUN_ID"}
    before = seen["before"]
    variables = {name: value for name, value in before["environment"].items() if name not in per_run}
    return {name: value for name, value in seen.items() if name != "hidden"} | {
        "before": before | {"environment": variables}
    }


def our_states() -> tuple[bool, Any]:
    """Whether our states adopted the group; what they gathered."""
    import torch

    from accel_nb import Accelerator

    hidden = hidden_group()
    accelerator = Accelerator()
    gathered = accelerator.gather(torch.tensor([accelerator.process_index], device=accelerator.device))
    return torch.distributed.group.WORLD is hidden, gathered.tolist()


def accelerates_states() -> tuple[bool, Any]:
    import torch
    from accelerate import Accelerator

    hidden = hidden_group()
    accelerator = Accelerator()
    gathered = accelerator.gather(torch.tensor([accelerator.process_index], device=accelerator.device))
    return torch.distributed.group.WORLD is hidden, gathered.tolist()


def trainer(folder: str) -> tuple[bool, Any]:
    """Whether Transformers' Trainer adopted the group; how many ranks it trained on."""
    import torch
    from transformers import Trainer, TrainingArguments

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x: Any, labels: Any = None) -> Any:  # noqa: ANN401  tensors
            y = self.layer(x).squeeze(-1)
            return {"loss": ((y - labels) ** 2).mean(), "logits": y}

    hidden = hidden_group()
    data: Any = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(16)]
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=4, max_steps=2, report_to=[], save_strategy="no", disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    Trainer(Net(), arguments, train_dataset=data).train()
    return torch.distributed.group.WORLD is hidden, arguments.world_size


def lightning_fabric() -> tuple[bool, Any]:
    """Whether Lightning adopted the group; what it gathered."""
    import torch
    from lightning.fabric import Fabric

    hidden = hidden_group()
    fabric = Fabric(accelerator="gpu" if torch.cuda.is_available() else "cpu", devices=2, strategy="ddp")
    fabric.launch()
    gathered = fabric.all_gather(torch.tensor([fabric.global_rank], device=fabric.device))
    return torch.distributed.group.WORLD is hidden, torch.as_tensor(gathered).flatten().tolist()


def again_and_again(backend: str = "gloo") -> tuple[bool, list[float]]:
    """Init, all_reduce, destroy, several times."""
    import torch
    from torch import distributed

    device = "cpu" if backend == "gloo" else f"cuda:{os.environ['LOCAL_RANK']}"
    if backend == "nccl":
        torch.cuda.set_device(device)
    hidden, sums = has_hidden(), []
    for number in range(4):
        distributed.init_process_group(backend)
        value = torch.tensor([float(number)], device=device)
        distributed.all_reduce(value)
        sums.append(value.item())
        distributed.destroy_process_group()
    return hidden, sums


def opens_otherwise(way: str, path: str) -> tuple[bool, bool, float]:
    """As `opens_group`, with other arguments than the ranks in standby had."""
    from datetime import timedelta

    import torch
    from torch import distributed

    rank = int(os.environ["RANK"])
    hidden, waited = hidden_group(), has_hidden()
    given: dict[str, Any] = {"backend": "gloo"}
    if way == "timeout":
        given["timeout"] = timedelta(seconds=1800)
    elif way == "options of one rank" and rank == 1:
        given["pg_options"] = distributed.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch's
    elif way == "own store":
        store = distributed.FileStore(f"{path}/store", 2)  # type: ignore[attr-defined]  # public, not in __all__
        given |= {"store": store, "rank": rank, "world_size": 2}
    elif way == "own interface":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo,lo"
    elif way == "several backends":
        given["backend"] = "cpu:gloo"
    distributed.init_process_group(**given)
    value = torch.ones(1)
    distributed.all_reduce(value)
    adopted = distributed.group.WORLD is hidden
    distributed.destroy_process_group()
    return waited, adopted, value.item()


def value_of_module(name: str) -> tuple[bool, str]:
    """Whether a group waited; what a module of the user's holds."""
    import importlib

    waited, value = has_hidden(), importlib.import_module(name).VALUE
    opens_group()
    return waited, value


def counts_itself(folder: str) -> bool:
    """Leaves a file per call; whether a group waited."""
    with open(f"{folder}/{os.getpid()}", "x"):  # noqa: PTH123  imports next to nothing
        return has_hidden()


def waits(backend: str = "gloo") -> None:
    """With an open group, until it is stopped."""
    import time

    opens_group(backend)
    print("up", flush=True)
    time.sleep(600)


def half_of_them_open() -> None:
    from torch import distributed

    if os.environ["RANK"] == "0":
        distributed.init_process_group("gloo")


def fails(ending: str) -> None:
    """Rank 1 ends badly after an operation of both."""
    import torch
    from torch import distributed

    device = "cpu"
    if os.environ["ACCELERATE_USE_CPU"] == "false":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    distributed.init_process_group("gloo" if device == "cpu" else "nccl")
    distributed.all_reduce(torch.ones(1, device=device))
    if distributed.get_rank() == 1:
        if ending == "raise":
            raise ValueError("boom")
        if ending == "memory":
            torch.empty(1 << 50, dtype=torch.uint8, device=device)
        if ending == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.all_reduce(torch.ones(1, device=device))
    if device != "cpu":
        torch.cuda.synchronize()
