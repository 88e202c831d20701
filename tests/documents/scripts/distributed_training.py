"""The steps of "Distributed training": one object, prepare, backward, and a whole script."""

from __future__ import annotations

from typing import Any

from torch import nn
from tqdm.auto import tqdm

from tests.documents.parts import (
    make_classifier,
    make_loader,
    make_model,
    make_named_loader,
    make_optimizer,
    make_scheduler,
)


def step_by_step() -> dict[str, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator()
    device = accelerator.device

    model = make_classifier()
    optimizer = make_optimizer(model)
    num_epochs = 2
    train_dataloader, eval_dataloader, model, optimizer = accelerator.prepare(
        make_named_loader(), make_named_loader(10), model, optimizer
    )
    lr_scheduler = make_scheduler(optimizer, num_epochs * len(train_dataloader))

    progress_bar = tqdm(range(num_epochs * len(train_dataloader)), disable=True)
    losses = []
    for _ in range(num_epochs):
        for batch in train_dataloader:
            outputs = model(**batch)
            loss = outputs.loss
            accelerator.backward(loss)

            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            progress_bar.update(1)
            losses.append(loss.item())
    return {"device": device.type, "losses": losses, "eval batches": len(eval_dataloader)}


def as_a_script() -> dict[str, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = make_model()
    optimizer = make_optimizer(model)
    scheduler = make_scheduler(optimizer)
    loss_function = nn.functional.cross_entropy
    model, optimizer, training_dataloader, scheduler = accelerator.prepare(model, optimizer, make_loader(), scheduler)

    losses = []
    for batch in training_dataloader:
        optimizer.zero_grad()
        inputs, targets = batch
        outputs = model(inputs)
        loss = loss_function(outputs, targets)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return {"losses": losses, "learning rate": scheduler.get_last_lr()}
