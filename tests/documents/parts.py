"""What the documents take for granted: a model, data, an optimizer, a schedule. Small, and alike everywhere."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

NUM_FEATURES = 4
NUM_CLASSES = 3


class Output(NamedTuple):
    loss: torch.Tensor
    logits: torch.Tensor


class Classifier(nn.Module):
    """Takes its batch by name and computes its own loss, as models of Transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(NUM_FEATURES, 8), nn.Tanh(), nn.Linear(8, NUM_CLASSES))

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> Output:
        logits = self.layers(features)
        return Output(nn.functional.cross_entropy(logits, labels), logits)


def make_classifier() -> Classifier:
    torch.manual_seed(0)
    return Classifier()


def make_model() -> nn.Module:
    return make_classifier().layers


def make_optimizer(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def make_scheduler(optimizer: Optimizer, num_steps: int = 100) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: max(0.0, 1 - step / num_steps))


def data(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    features = torch.randn(length, NUM_FEATURES, generator=torch.Generator().manual_seed(length))
    return features, (features.abs().sum(1) % NUM_CLASSES).long()


def make_loader(length: int = 24, batch_size: int = 4) -> DataLoader[tuple[torch.Tensor, ...]]:
    """(features, labels), in order."""
    return DataLoader(TensorDataset(*data(length)), batch_size)


def make_named_loader(length: int = 24, batch_size: int = 4) -> DataLoader[dict[str, torch.Tensor]]:
    """Batches that go into `Classifier` by name."""
    features, labels = data(length)
    samples = [{"features": one, "labels": label} for one, label in zip(features, labels, strict=True)]
    return DataLoader(samples, batch_size)  # type: ignore[arg-type]
