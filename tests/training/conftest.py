"""`run_ranks`: a function in fresh CPU processes that torchrun's variables make ranks, without accel_nb's launcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from accel_nb.training.ranks.state import reset_state

from .rank_factory import RankFactory


@pytest.fixture(scope="session")
def _rank_factory() -> Iterator[RankFactory]:
    with RankFactory() as factory:
        yield factory


@pytest.fixture(scope="session", autouse=True)
def _torch_is_set_up() -> None:
    """torch's compiler sets a variable of the environment for good: its first use does, and importing it may, which
    the first optimizer does.
    """
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    cache_dir()


@pytest.fixture
def run_ranks(_rank_factory: RankFactory) -> Callable[..., list[Any]]:
    """``run_ranks(function, num_ranks, *args)`` gives what ``function(*args)`` returned on each rank."""
    return _rank_factory.run


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    """A test in the session's own process begins and ends without an Accelerator."""
    reset_state()
    yield
    reset_state()
