"""Training functions for dry runs, as users write them. Each goes on, or fails, after its first step."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from accel_nb import Accelerator, DistributedDataParallelKwargs, GradientAccumulationPlugin, find_executable_batch_size


class Branches(nn.Module):
    """Of which forward takes one."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = nn.Linear(4, 4)
        self.left_out = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.taken(x)  # type: ignore[no-any-return]


def mlp(width: int = 64) -> nn.Module:
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, batch_size: int = 8, width: int = 4) -> None:
    for number in range(3):
        optimizer.zero_grad()
        model(torch.rand(batch_size, width)).sum().backward()
        optimizer.step()
        print(f"went on after step {number}")


def with_accelerator(batch_size: int = 32) -> str:
    accelerator = Accelerator()
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(TensorDataset(torch.rand(256, 16)), batch_size=batch_size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for (x,) in loader:
        optimizer.zero_grad()
        accelerator.backward(model(x).sum())
        optimizer.step()
        print("went on")
    return "value"


def accumulating() -> None:
    accelerator = Accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=3))
    model = accelerator.prepare(mlp())
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    for number in range(6):
        with accelerator.accumulate(model):
            print(f"micro-batch {number}")
            accelerator.backward(model(torch.rand(4, 16)).sum())
            optimizer.step()
            optimizer.zero_grad()


def plain_torch(**settings: Any) -> None:  # noqa: ANN401  those of DistributedDataParallel
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Branches(), **settings)
    steps(model, torch.optim.SGD(model.parameters(), lr=0.1))


def unused_on_purpose() -> None:
    accelerator = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])
    model = Branches()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    steps(model, optimizer)


def one_model_without_ranks() -> None:
    model = Branches()
    steps(model, torch.optim.SGD(model.parameters(), lr=0.1))


def catching_errors() -> None:
    while True:
        try:
            with_accelerator()
        except Exception as error:  # noqa: BLE001  that is the point
            print(f"caught {error!r}")


def catching_everything() -> int:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        try:
            steps(model, optimizer)
        except BaseException:  # noqa: BLE001
            print("caught")
    return 5


def failing_on_the_way_out() -> None:
    losses: list[float] = []
    model = nn.Linear(4, 1)
    try:
        steps(model, torch.optim.Adam(model.parameters()))
    finally:
        print(losses[-1])


def without_step() -> int:
    nn.Linear(4, 1)(torch.rand(3, 4)).sum().backward()
    return 3


def step_on_rank_0_only() -> None:
    if os.environ["RANK"] == "0":
        one_model_without_ranks()


def adversaries() -> None:
    """Two models with an optimizer each; only one steps first."""
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.Adam(model.parameters()) for model in (critic, generator)]
    critic(generator(torch.rand(5, 4)).detach()).sum().backward()
    optimizers[0].step()


def with_closure() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(torch.rand(8, 4)).sum()
        loss.backward()
        return float(loss)

    optimizer.step(closure)


def with_closure_after_gradients() -> None:
    """As Lightning accumulates: the last part of the batch is in the step."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters())
    model(torch.rand(8, 4)).sum().backward()

    def closure() -> float:
        loss = model(torch.rand(8, 4)).sum()
        loss.backward()
        return float(loss)

    optimizer.step(closure)


def overflowing_first() -> None:
    """The first step of fp16 training does not happen: its gradients are not finite."""
    accelerator = Accelerator()
    model = mlp()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    for number in range(9):
        scale = float("inf") if number < 2 else 1.0
        optimizer.zero_grad()
        accelerator.backward(model(torch.rand(4, 16)).sum() * scale)
        optimizer.step()
        print(f"step {number} did not happen")


def functional_gradients() -> list[float]:
    x = torch.ones(2)
    print("gradient", torch.func.grad(lambda y: (y**2).sum())(x).tolist())
    one_model_without_ranks()
    return []


def recomputing() -> None:
    layers = nn.ModuleList([nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)])
    x = torch.rand(8, 64)
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False)
    optimizer = torch.optim.Adam(layers.parameters())
    x.sum().backward()
    optimizer.step()
    print("went on")


def stepping_within_backward() -> None:
    """Each parameter by an optimizer of its own, as soon as its gradient is there, which is then let go of."""
    model = nn.Sequential(Branches(), nn.Linear(4, 4))
    optimizers: dict[torch.Tensor, torch.optim.Optimizer] = {
        parameter: torch.optim.Adam([parameter]) for parameter in model.parameters()
    }

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        model(torch.rand(8, 4)).sum().backward()
        print("went on")


def compiled() -> None:
    model = Branches()
    steps(cast("nn.Module", torch.compile(model, backend="eager")), torch.optim.SGD(model.parameters(), lr=0.1))


def in_a_thread() -> int:
    thread = threading.Thread(target=one_model_without_ranks)
    threading.excepthook = lambda _: None
    thread.start()
    thread.join()
    return 1


def searching_for_a_batch_size() -> None:
    @find_executable_batch_size(starting_batch_size=16)
    def train(batch_size: int) -> None:
        print(f"tried {batch_size}")
        with_accelerator(batch_size)

    train()


def failing() -> None:
    raise ValueError("a mistake before the first step")


def with_accelerate() -> None:
    from accelerate import Accelerator as Theirs

    accelerator = Theirs()
    model = mlp()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    for _ in range(2):
        accelerator.backward(model(torch.rand(8, 16)).sum())
        optimizer.step()
        print("went on")


def with_trainer(folder: str) -> None:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    words = torch.randint(0, 50, (64, 6))
    rows = [{"input_ids": row, "labels": int(row[0]) % 2} for row in words]
    settings = TrainingArguments(
        folder, per_device_train_batch_size=4, num_train_epochs=3, report_to=[], save_strategy="no", use_cpu=True
    )
    Trainer(BertForSequenceClassification(config), settings, train_dataset=rows).train()
    print("went on")


def scripted() -> None:
    model = torch.jit.script(Branches())
    steps(model, torch.optim.SGD(model.parameters(), lr=0.1))


def traced() -> None:
    model = torch.jit.trace(mlp(), torch.rand(2, 16))
    steps(model, torch.optim.SGD(model.parameters(), lr=0.1), width=16)


def on_meta_tensors() -> None:
    with torch.device("meta"):
        model = mlp()
        steps(model, torch.optim.SGD(model.parameters(), lr=0.1), width=16)


def sharded() -> None:
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = mlp(width=64)
    fully_shard(model)
    steps(model, torch.optim.Adam(model.parameters()), width=16)


def functional_gradients_in_a_thread() -> None:
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.func.grad(lambda y: (y**2).sum())(torch.ones(2))))
    thread.start()
    thread.join()
    print("gradient", found[0].tolist())
    one_model_without_ranks()


class Adversaries(nn.Module):
    """Both in one module, as users keep them together."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = nn.Linear(4, 4), nn.Linear(4, 1)


def adversaries_in_one_module() -> None:
    both = Adversaries()
    optimizers = [torch.optim.Adam(model.parameters()) for model in (both.critic, both.generator)]
    both.critic(both.generator(torch.rand(5, 4)).detach()).sum().backward()
    optimizers[0].step()


def part_of_a_module_without_ranks() -> None:
    dist.init_process_group("gloo")
    both = nn.ModuleDict({"trained": DistributedDataParallel(Branches())})
    steps(both["trained"], torch.optim.SGD(both.parameters(), lr=0.1))


def left_to_itself() -> None:
    dist.init_process_group("gloo")
    model = Branches()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["left_out.weight", "left_out.bias"])
    distributed = DistributedDataParallel(model)
    steps(distributed, torch.optim.SGD(distributed.parameters(), lr=0.1))


def using_what_never_came() -> None:
    losses: list[float] = []
    with contextlib.suppress(BaseException):
        one_model_without_ranks()
    print(losses[-1])


def leaving() -> None:
    sys.exit(0)


def naming_cuda(how: str) -> None:
    if how == "group":
        dist.init_process_group("nccl")
    elif how == "device":
        torch.cuda.set_device(0)
    else:
        nn.Linear(4, 4).to("cuda:0")


def one_learns_from_the_other() -> None:
    dist.init_process_group("gloo")
    model = nn.Linear(4, 1)
    if dist.get_rank() == 0:
        steps(model, torch.optim.SGD(model.parameters(), lr=0.1))
    dist.broadcast(model.weight.data, 0)


def calming_the_scheduler() -> None:
    """The step that silences ``lr_scheduler.step() before optimizer.step()``."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step()
    steps(model, optimizer)


def made_by_its_first_call() -> None:
    model = nn.Sequential(nn.LazyLinear(8))
    model(torch.rand(2, 4))
    steps(model, torch.optim.SGD(model.parameters(), lr=0.1))


def without_a_model() -> None:
    weight = torch.rand(100, requires_grad=True)
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
