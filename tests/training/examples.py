"""Data and models that the tests of the training layer share."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

NUM_FEATURES = 4


class Numbers(Dataset[int]):
    """Sample i is the number i."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


def regression_data(length: int = 64) -> TensorDataset:
    generator = torch.Generator().manual_seed(11)
    features = torch.randn(length, NUM_FEATURES, generator=generator)
    return TensorDataset(features, features.sum(1, keepdim=True) + 0.1 * torch.randn(length, 1, generator=generator))


def regression_loader(
    batch_size: int, length: int = 64, *, shuffle: bool = True
) -> DataLoader[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(5)
    return DataLoader(regression_data(length), batch_size, shuffle=shuffle, generator=generator)


def small_model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(NUM_FEATURES, 8), nn.Tanh(), nn.Linear(8, 1))
