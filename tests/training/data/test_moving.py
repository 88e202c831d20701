from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from accel_nb.training.data.moving import Direct, Staying, mover_to
from accel_nb.training.data.preparing import prepare_data_loader

from ..examples import Numbers

CPU = torch.device("cpu")


class Movable:
    """Moves itself, as the batch of a tokenizer does."""

    def __init__(self, where: str = "home") -> None:
        self.where = where

    def to(self, device: torch.device) -> Movable:
        return Movable(str(device))


@pytest.mark.parametrize(
    "batch",
    [
        torch.arange(3),
        [torch.arange(3), (torch.zeros(2), "text", None, 3)],
        {"a": torch.arange(3), "b": [b"bytes", 1.5, True]},
    ],
    ids=["tensor", "lists", "dict"],
)
def test_a_batch_that_is_there_already_is_passed_on_itself(batch: Any) -> None:  # noqa: ANN401
    mover = mover_to(CPU, non_blocking=False)

    assert mover.finish(mover.start(batch)) is batch


def test_what_is_elsewhere_or_moves_itself_is_moved() -> None:
    mover = mover_to(torch.device("meta"), non_blocking=True)

    moved = mover.finish(mover.start({"tensor": torch.zeros(2), "own": Movable(), "text": "text"}))

    assert moved["tensor"].device.type == "meta"
    assert moved["own"].where == "meta"
    assert moved["text"] == "text"


def test_containers_that_cannot_be_seen_through_keep_their_kind() -> None:
    moved = mover_to(torch.device("meta"), non_blocking=False).start(OrderedDict(a=torch.zeros(1)))

    assert type(moved) is OrderedDict
    assert moved["a"].device.type == "meta"


def test_without_a_device_batches_stay() -> None:
    assert isinstance(mover_to(None, non_blocking=False), Staying)
    assert isinstance(mover_to(CPU, non_blocking=False), Direct)


@pytest.mark.parametrize("non_blocking", [False, True])
def test_non_blocking_reaches_the_copies(non_blocking: bool) -> None:
    asked: list[bool] = []

    class Watched(torch.Tensor):
        def to(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            asked.append(kwargs["non_blocking"])
            return super().to(*args, **kwargs)

    loader = DataLoader(Numbers(2), 2, collate_fn=lambda items: torch.tensor(items).as_subclass(Watched))
    prepared = prepare_data_loader(loader, CPU, put_on_device=True, non_blocking=non_blocking)

    list(prepared)

    assert asked == [non_blocking]
