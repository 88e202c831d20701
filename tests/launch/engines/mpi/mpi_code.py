"""Functions for ranks under mpirun."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accel_nb import Accelerator
from accel_nb.utils import set_seed


def trained(num_epochs: int = 2) -> list[float]:
    """Losses of the quickstart's loop, each the mean over all ranks."""
    set_seed(7)
    features = torch.randn(256, 8)
    targets = features.sum(dim=1, keepdim=True)
    loader = DataLoader(TensorDataset(features, targets), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    accelerator = Accelerator()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _ in range(num_epochs):
        for inputs, wanted in loader:
            loss = nn.functional.mse_loss(model(inputs), wanted)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
    print(f"rank {accelerator.process_index} of {accelerator.num_processes} has trained")
    return losses


def who() -> dict[str, str]:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "GLOO_SOCKET_IFNAME")
    return {name: os.environ[name] for name in names}


def summed() -> float:
    torch.distributed.init_process_group("gloo")
    value = torch.full((1,), float(torch.distributed.get_rank() + 1))
    torch.distributed.all_reduce(value)
    return value.item()


def raises_on_one() -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("no such colour")
    time.sleep(100)


def sleeps() -> None:
    # A line that all ranks write would be shown once, for all of them.
    print(f"rank {os.environ['RANK']} is up")
    time.sleep(100)


def aborts_on_one() -> None:
    """As ``MPI.COMM_WORLD.Abort(5)`` of mpi4py does, with the MPI library of Debian's Open MPI."""
    library = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
    assert library.MPI_Init(None, None) == 0
    print("up")
    if os.environ["RANK"] == "1":
        library.MPI_Abort(ctypes.byref(ctypes.c_char.in_dll(library, "ompi_mpi_comm_world")), 5)
    time.sleep(100)


def mpi_rank_and_size() -> tuple[int, int]:
    """What Debian's Open MPI tells this process."""
    library = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
    assert library.MPI_Init(None, None) == 0
    world = ctypes.byref(ctypes.c_char.in_dll(library, "ompi_mpi_comm_world"))
    rank, size = ctypes.c_int(), ctypes.c_int()
    library.MPI_Comm_rank(world, ctypes.byref(rank))
    library.MPI_Comm_size(world, ctypes.byref(size))
    library.MPI_Finalize()
    return rank.value, size.value


def opens_mpi_group() -> None:
    torch.distributed.init_process_group("mpi")
