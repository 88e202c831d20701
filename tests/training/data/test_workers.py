"""DataLoader workers and classes that were typed in a cell, in ranks of a real launch."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Iterator
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch

from accel_nb.errors import TrainingError
from accel_nb.training.data.worker_pickling import teach_multiprocessing
from tests.launch.launching import launch

CELL = """
import dataclasses
import torch
from torch.utils.data import DataLoader, Dataset
from accel_nb import Accelerator

@dataclasses.dataclass
class Pair:
    number: int
    square: torch.Tensor

class Squares(Dataset):
    def __init__(self):
        self.table = torch.arange(8) ** 2
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return Pair(index, self.table[index])

def in_a_list(pairs):
    return pairs

def see(worker):
    torch.zeros(worker)

def read(contexts):
    accelerator = Accelerator()
    read = {}
    for context in contexts:
        loader = accelerator.prepare(DataLoader(
            Squares(), 2, num_workers=2, collate_fn=in_a_list, worker_init_fn=see, persistent_workers=True,
            multiprocessing_context=context,
        ))
        passes = [[pair for batch in loader for pair in batch] for _ in range(2)]
        assert all(type(pair) is Pair for one in passes for pair in one), "the rank's own class comes back"
        read[context] = [[(pair.number, pair.square.item()) for pair in one] for one in passes]
    return read
"""


@pytest.fixture
def cell() -> Iterator[dict[str, Any]]:
    """The names of CELL, run in a ``__main__`` that no other process can import, as a kernel's is."""
    real, main = sys.modules["__main__"], types.ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(compile(CELL, "<cell 1>", "exec"), vars(main))
    yield vars(main)
    sys.modules["__main__"] = real


def test_d18_classes_of_a_cell_go_to_workers_of_every_kind_and_come_back(cell: dict[str, Any]) -> None:
    launched = launch(cell["read"], [None, "fork", "forkserver", "spawn"])

    assert launched.values == [
        dict.fromkeys((None, "fork", "forkserver", "spawn"), [[(n, n * n) for n in numbers]] * 2)
        for numbers in ([0, 1, 4, 5], [2, 3, 6, 7])
    ]


def sent(value: object) -> Any:  # noqa: ANN401
    """What arrives when multiprocessing sends `value`."""
    return pickle.loads(ForkingPickler.dumps(value))


def test_d18_lambdas_and_local_classes_are_sent_by_value(cell: dict[str, Any]) -> None:
    teach_multiprocessing()
    factor = 3

    class Local:
        def times(self, number: int) -> int:
            return factor * number

    assert sent(lambda number: factor * number)(2) == 6
    assert sent(Local)().times(2) == 6
    assert sent(Local) is Local
    assert sent(cell["Pair"]) is cell["Pair"]


def test_d18_what_has_a_home_is_sent_by_name() -> None:
    teach_multiprocessing()

    assert sent(pickle.dumps) is pickle.dumps
    assert b"test_workers" in bytes(ForkingPickler.dumps(sent))
    assert len(bytes(ForkingPickler.dumps(TrainingError))) < 200


def test_d18_tensors_still_go_through_shared_memory(cell: dict[str, Any]) -> None:
    teach_multiprocessing()
    pair = cell["Pair"](1, torch.zeros(1 << 16))

    pickled = bytes(ForkingPickler.dumps(pair))

    assert len(pickled) < 1 << 15
    pickle.loads(pickled).square.fill_(7)
    assert pair.square[0] == 7
    resource_sharer.stop(timeout=5)  # the thread that hands descriptors over


def test_d18_what_cannot_be_sent_is_told_with_its_name() -> None:
    teach_multiprocessing()
    frame = sys._getframe()

    def captures() -> object:
        return frame

    with pytest.raises(TrainingError, match=r"captures, which was typed in a notebook, cannot be sent to DataLoader"):
        ForkingPickler.dumps(captures)
