"""The steps of "Quick tour": training, evaluation, one process only, saving, precision, accumulation."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from tests.documents.parts import make_loader, make_model, make_optimizer, make_scheduler

loss_function = nn.functional.cross_entropy


def training() -> dict[str, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = make_model()
    optimizer = make_optimizer(model)
    model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, make_loader(), make_scheduler(optimizer)
    )
    losses = []
    for inputs, targets in train_dataloader:
        optimizer.zero_grad()
        loss = loss_function(model(inputs), targets)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        accelerator.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        if not accelerator.optimizer_step_was_skipped:
            lr_scheduler.step()
        losses.append(loss.item())
    return {"batches": len(train_dataloader), "losses": losses}


class Metric:
    """As a metric of ``evaluate``: batches go in, a figure comes out."""

    def __init__(self) -> None:
        self.right = self.counted = 0

    def add_batch(self, predictions: torch.Tensor, references: torch.Tensor) -> None:
        self.right += int((predictions == references).sum())
        self.counted += len(references)


def evaluation() -> dict[str, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator()
    metric = Metric()
    model = accelerator.prepare(make_model())
    validation_dataloader = accelerator.prepare(make_loader(22))
    for inputs, targets in validation_dataloader:
        predictions = model(inputs).argmax(dim=-1)
        all_predictions, all_targets = accelerator.gather_for_metrics((predictions, targets))
        metric.add_batch(all_predictions, all_targets)
    return {"counted": metric.counted, "right": metric.right}


def ragged_evaluation() -> dict[str, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator()
    tokens = torch.ones(2, 3 + accelerator.process_index, dtype=torch.int64)
    padded = accelerator.pad_across_processes(tokens, dim=1, pad_index=-1)
    return {"gathered": accelerator.gather(padded).tolist()}


def batches_split() -> dict[str, Any]:
    from accelerate import Accelerator, DataLoaderConfiguration

    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))
    loader = accelerator.prepare(make_loader(24, 4))
    return {"batches": len(loader), "sizes": [len(inputs) for inputs, _ in loader]}


def one_process_only() -> dict[str, Any]:
    from accelerate import Accelerator, DistributedType

    accelerator = Accelerator()
    ran = []
    if accelerator.is_local_main_process:
        ran.append("once per server")
    if accelerator.is_main_process:
        ran.append("once only")
    if accelerator.distributed_type == DistributedType.XLA:
        ran.append("static shapes")
    for _ in tqdm(range(3), disable=not accelerator.is_local_main_process):
        pass
    accelerator.print("printed once per server")
    accelerator.wait_for_everyone()
    return {"ran": ran}


def saving_a_model() -> dict[str, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = accelerator.prepare(make_model())
    folder = _shared_folder(accelerator)
    filename = f"{folder}/model.pt"

    accelerator.wait_for_everyone()
    unwrapped_model = accelerator.unwrap_model(model)
    accelerator.save(unwrapped_model.state_dict(), filename)
    accelerator.wait_for_everyone()

    expected = [parameter.clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.data.zero_()
    unwrapped_model = accelerator.unwrap_model(model)
    unwrapped_model.load_state_dict(torch.load(filename))
    restored = all(torch.equal(a, b) for a, b in zip(expected, model.parameters(), strict=True))

    accelerator.wait_for_everyone()
    accelerator.save_model(model, f"{folder}/whole", max_shard_size="1GB", safe_serialization=True)
    accelerator.wait_for_everyone()
    return {"restored": restored, "files": sorted(file.name for file in Path(folder, "whole").iterdir())}


class Counter:
    """Something with a state of its own."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def saving_the_state() -> dict[str, Any]:
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    folder = _shared_folder(Accelerator())
    config = ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True)
    accelerator = Accelerator(project_config=config)
    model = make_model()
    optimizer = make_optimizer(model)
    model, optimizer, loader = accelerator.prepare(model, optimizer, make_loader())
    counter = Counter()
    accelerator.register_for_checkpointing(counter)

    counter.value = 7
    accelerator.save_state()
    expected = [parameter.clone() for parameter in model.parameters()]
    for inputs, targets in loader:
        optimizer.zero_grad()
        accelerator.backward(loss_function(model(inputs), targets))
        optimizer.step()
    counter.value = 8
    moved = any(not torch.equal(a, b) for a, b in zip(expected, model.parameters(), strict=True))

    accelerator.load_state(f"{folder}/checkpoints/checkpoint_0")

    restored = all(torch.equal(a, b) for a, b in zip(expected, model.parameters(), strict=True))
    return {"moved": moved, "restored": restored, "counter": counter.value}


def mixed_precision() -> dict[str, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16")
    model = accelerator.prepare(make_model())
    inputs, _ = next(iter(make_loader()))
    outputs = model(inputs)
    with accelerator.autocast():
        inside = torch.mm(inputs, inputs.T)
    return {"outside": str(outputs.dtype), "inside": str(inside.dtype)}


def gradient_accumulation() -> dict[str, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = make_model()
    optimizer = make_optimizer(model)
    scheduler = make_scheduler(optimizer)
    model, optimizer, training_dataloader, scheduler = accelerator.prepare(model, optimizer, make_loader(), scheduler)
    losses = []
    for inputs, label in training_dataloader:
        with accelerator.accumulate(model):
            predictions = model(inputs)
            loss = loss_function(predictions, label)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return {"losses": losses, "learning rate": scheduler.get_last_lr()}


def _shared_folder(accelerator: Any) -> str:  # noqa: ANN401  either library's
    from accelerate.utils import broadcast_object_list

    folder = [tempfile.mkdtemp() if accelerator.is_main_process else None]
    broadcast_object_list(folder)
    return str(folder[0])
