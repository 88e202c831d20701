"""The same script with Hugging Face Accelerate and with accel_nb: what a person who moves sees must be the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from accel_nb.training.settings import GradientAccumulationPlugin

from .examples import regression_data, small_model

RunRanks = Callable[..., list[Any]]

pytest.importorskip("accelerate")


class Numbered(Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """The regression data with the number of each sample."""

    def __init__(self, length: int) -> None:
        self.data = regression_data(length)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, *self.data[index]


class Streamed(IterableDataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """The same, one after the other."""

    def __init__(self, length: int) -> None:
        self.samples = Numbered(length)

    def __iter__(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        return (self.samples[index] for index in range(len(self.samples)))


def accelerator_of(library: str, options: dict[str, Any]) -> Any:  # noqa: ANN401
    """`options`: the Accelerator's, and under "loading" and "accumulation" those of two of its settings."""
    module: Any = __import__(library)
    settings = dict(options)
    # 1.15 accepts split_batches= and ignores it; only its configuration object is heard.
    loading = {"split_batches": settings.pop("split_batches", False), **settings.pop("loading", {})}
    if "accumulation" in settings:
        from accelerate.utils import GradientAccumulationPlugin as Theirs

        kind = Theirs if library == "accelerate" else GradientAccumulationPlugin
        settings["gradient_accumulation_plugin"] = kind(**settings.pop("accumulation"))
    return module.Accelerator(dataloader_config=module.DataLoaderConfiguration(**loading), **settings)


def script(
    library: str, length: int, options: dict[str, Any], *, clip: float | None = None, streams: bool = False
) -> dict[str, list[Any]]:
    torch.manual_seed(29)
    accelerator = accelerator_of(library, options)
    model = small_model()
    plain = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(plain, 40)
    training: Any = DataLoader(Streamed(length), 6) if streams else DataLoader(Numbered(length), 6, shuffle=True)
    model, optimizer, loader, validation, scheduler = accelerator.prepare(
        model, plain, training, DataLoader(Numbered(length), 4), schedule
    )
    seen: dict[str, list[Any]] = {name: [] for name in ("order", "losses", "rates", "metrics", "norms", "synced")}
    for _ in range(2):
        for index, features, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(features), targets)
                accelerator.backward(loss)
                if clip is not None and accelerator.sync_gradients:
                    seen["norms"].append(accelerator.clip_grad_norm_(model.parameters(), clip).item())
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            seen["order"].append(index.tolist())
            seen["losses"].append(loss.item())
            seen["rates"].append(scheduler.get_last_lr()[0])
            seen["synced"].append(accelerator.sync_gradients)
        for index, features, _ in validation:
            numbers, outputs = accelerator.gather_for_metrics((index, model(features).detach()))
            seen["metrics"] += [*numbers.tolist(), *outputs.flatten().tolist()]
    return seen


CASES: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
    (23, {}, {}),
    (23, {}, {"clip": 0.2}),
    (24, {"split_batches": True}, {}),
    (24, {"mixed_precision": "bf16"}, {"clip": 0.2}),
    (48, {"gradient_accumulation_steps": 2}, {"clip": 0.2}),
    (48, {"accumulation": {"num_steps": 2, "sync_each_batch": True}}, {}),
    (36, {"accumulation": {"num_steps": 2, "sync_with_dataloader": False, "adjust_scheduler": False}}, {}),
    (24, {"step_scheduler_with_optimizer": False}, {}),
    (23, {"loading": {"dispatch_batches": True}}, {}),
    (48, {"loading": {"even_batches": False}}, {}),
    (23, {"loading": {"use_seedable_sampler": True, "data_seed": 7}}, {}),
    (24, {}, {"streams": True}),
    (24, {"loading": {"dispatch_batches": False}}, {"streams": True}),
]


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize(("length", "options", "loop"), CASES, ids=lambda one: str(one) or None)
def test_losses_order_rates_and_metrics_are_equal(
    run_ranks: RunRanks, num_ranks: int, length: int, options: dict[str, Any], loop: dict[str, Any]
) -> None:
    theirs, ours = (
        run_ranks(partial(script, library, length, options, **loop), num_ranks)
        for library in ("accelerate", "accel_nb")
    )

    for our_rank, their_rank in zip(ours, theirs, strict=True):
        assert our_rank["order"] == their_rank["order"]
        assert our_rank["synced"] == their_rank["synced"]
        for name in ("metrics", "rates", "losses", "norms"):
            assert our_rank[name] == pytest.approx(their_rank[name], abs=1e-6)
