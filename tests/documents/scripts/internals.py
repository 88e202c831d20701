"""The statements of "Internal mechanisms", each as the code that shows it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler

from tests.documents.parts import data, make_loader, make_model, make_optimizer, make_scheduler


def shared_state() -> dict[str, Any]:
    from accelerate import Accelerator, PartialState
    from accelerate.state import AcceleratorState

    accelerator = Accelerator()
    first, second, partial = accelerator.state, AcceleratorState(), PartialState()
    return {
        "shared": first.__dict__ is second.__dict__,
        "ranks": [state.num_processes for state in (first, second, partial, accelerator)],
        "rank is the same": first.process_index == partial.process_index == accelerator.process_index,
    }


def what_prepare_makes() -> dict[str, Any]:
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.scheduler import AcceleratedScheduler
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator()
    model = make_model()
    optimizer = make_optimizer(model)
    model, optimizer, scheduler, loader = accelerator.prepare(
        model, optimizer, make_scheduler(optimizer), make_loader()
    )
    dispatching = Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    sent = dispatching.prepare(make_loader())
    return {
        "model": isinstance(model, torch.nn.Module),
        "optimizer": isinstance(optimizer, AcceleratedOptimizer),
        "scheduler": isinstance(scheduler, AcceleratedScheduler),
        "loader": isinstance(loader, DataLoaderShard) and isinstance(loader, DataLoader),
        "dispatcher": isinstance(sent, DataLoaderDispatcher) and isinstance(sent, DataLoader),
        "every other batch": [inputs[0].tolist() for inputs, _ in loader],
        "the same data": [inputs[0].tolist() for inputs, _ in sent],
    }


def random_order() -> dict[str, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator(rng_types=["torch", "generator"])
    torch.manual_seed(accelerator.process_index)
    dataset = list(range(16))
    generator = torch.Generator().manual_seed(accelerator.process_index)
    sampler = RandomSampler(dataset, generator=generator)
    loader = accelerator.prepare(DataLoader(dataset, batch_size=2, sampler=sampler))  # type: ignore[arg-type]
    passes = [accelerator.gather(torch.cat(list(loader))).tolist() for _ in range(2)]
    return {"complete": [sorted(one) == dataset for one in passes], "new order": passes[0] != passes[1]}


def placement_off() -> dict[str, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator(device_placement=False)
    loader = accelerator.prepare(make_loader())
    return {"devices": sorted({str(inputs.device) for inputs, _ in loader}), "samples": len(data(24)[0])}


def stateful_loader() -> dict[str, Any]:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))
    loader = accelerator.prepare(make_loader())
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    expected = [inputs.tolist() for inputs, _ in batches]
    fresh = accelerator.prepare(make_loader())
    fresh.load_state_dict(state)
    return {"goes on": [inputs.tolist() for inputs, _ in fresh] == expected, "left": len(expected)}
