"""The steps of "Troubleshooting": logging, shape mismatches, running out of memory."""

from __future__ import annotations

import io
import logging
import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from tests.documents.parts import make_loader, make_model, make_optimizer, make_scheduler


def logged() -> dict[str, Any]:
    from accelerate import Accelerator
    from accelerate.logging import get_logger

    accelerator = Accelerator()
    stream = io.StringIO()
    logging.basicConfig(stream=stream, format="%(levelname)s %(message)s", force=True)
    logger = get_logger(__name__, log_level="INFO")
    logger.debug("hidden")
    logger.info("main")
    logger.warning("everybody", main_process_only=False)
    logger.info("in order", in_order=True)
    accelerator.wait_for_everyone()
    return {"lines": [line.split(" [RANK")[0].split()[0] for line in stream.getvalue().splitlines()]}


def level_of_the_environment() -> dict[str, Any]:
    from accelerate.logging import get_logger

    return {"level": get_logger("document").logger.level}


def shape_mismatch() -> dict[str, Any]:
    from accelerate import PartialState
    from accelerate.utils.operations import DistributedOperationException, broadcast

    state = PartialState()
    tensor = torch.zeros((1, 5) if state.process_index == 0 else (1, 2, 5))
    try:
        broadcast(tensor)
    except DistributedOperationException as error:
        return {"error": str(error)}
    return {"error": None}


def out_of_memory() -> dict[str, Any]:
    from accelerate import Accelerator
    from accelerate.utils import find_executable_batch_size

    args = SimpleNamespace(batch_size=16)
    tried = []
    accelerator = Accelerator()

    @find_executable_batch_size(starting_batch_size=args.batch_size)  # type: ignore[untyped-decorator]
    def inner_training_loop(batch_size: int) -> list[float]:
        nonlocal accelerator  # Ensure they can be used in our context
        accelerator.free_memory()
        tried.append(batch_size)
        model = make_model()
        model.to(accelerator.device)
        optimizer = make_optimizer(model)
        train_dataloader, eval_dataloader = make_loader(24, batch_size), make_loader(10, batch_size)
        lr_scheduler = make_scheduler(optimizer, num_steps=len(train_dataloader) * 2)
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
            model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
        )
        losses = []
        for inputs, targets in train_dataloader:
            if len(inputs) > 4:
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            losses.append(loss.item())
        return losses

    losses = inner_training_loop()
    return {"tried": tried, "steps": len(losses), "finite": all(map(math.isfinite, losses))}
