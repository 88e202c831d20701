"""What every part that knows its rank offers: who it is, and how it works together with the others."""

from __future__ import annotations

import functools
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from ...protocol import agreement
from ..operations.nested import Data
from ..operations.transport import Collectives
from . import turns
from .distributed_type import DistributedType
from .process_group import RankFacts
from .splitting import split

Function = Callable[..., Any]


class RankMember(ABC):
    """Base of `PartialState`, `AcceleratorState` and `Accelerator`."""

    @property
    @abstractmethod
    def facts(self) -> RankFacts:
        """Which rank this process is, and where it computes."""

    @property
    @abstractmethod
    def collectives(self) -> Collectives:
        """What all ranks do together."""

    @property
    def num_processes(self) -> int:
        return self.facts.num_processes

    @property
    def process_index(self) -> int:
        return self.facts.process_index

    @property
    def local_process_index(self) -> int:
        """Number of this rank on its own machine."""
        return self.facts.local_process_index

    @property
    def device(self) -> torch.device:
        return self.facts.device

    @property
    def distributed_type(self) -> DistributedType:
        return self.facts.distributed_type

    @property
    def backend(self) -> str | None:
        """As torch names it, such as "gloo"; None when a single process needs none."""
        return self.facts.backend

    @property
    def use_distributed(self) -> bool:
        return self.facts.num_processes > 1

    @property
    def multi_device(self) -> bool:
        """Whether there are several ranks, as `use_distributed`."""
        return self.use_distributed

    @property
    def is_main_process(self) -> bool:
        return self.facts.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        """True on the first rank of each machine."""
        return self.facts.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        return self.facts.process_index == self.facts.num_processes - 1

    def wait_for_everyone(self) -> None:
        """Return once every rank has called this."""
        self.collectives.wait()

    def unchecked(self) -> AbstractContextManager[None]:
        """A block whose operations ranks do not compare first; see `accel_nb.unchecked`."""
        return agreement.unchecked()

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Run the block on the main process, then on all others at once. Every rank must enter it.

        The others wait as long as it takes: no collective's time-out counts.
        """
        with turns.leader_first(self.facts, leads=self.is_main_process, scope="main"):
            yield

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """Run the block on the first rank of each machine, then on its others. Every rank must enter it.

        They wait as long as it takes: no collective's time-out counts.
        """
        # The number tells apart several nodes that are played on one machine, the name those that have no number.
        scope = f"{platform.node()}/{self.facts.node_index}"
        with turns.leader_first(self.facts, leads=self.is_local_main_process, scope=scope):
            yield

    @contextmanager
    def split_between_processes(self, inputs: Data, apply_padding: bool = False) -> Iterator[Data]:
        """This rank's contiguous part of `inputs`: a list, tuple, string, tensor, array or data set, or a dict of such,
        equally long.

        The first ranks get one item more when the length is no multiple; where nothing is left, the part is empty.
        With `apply_padding` every part is as long as the longest, repeating the last item of `inputs`.
        Raises ValueError for dict values of different lengths, TypeError for anything that cannot be split.
        """
        yield split(inputs, self.num_processes, self.process_index, padded=apply_padding)

    def on_main_process(self, function: Function | None = None) -> Function:
        """Decorator: the function runs on the main process only; elsewhere it returns None."""
        return _only_if(lambda: self.is_main_process, function)

    def on_local_main_process(self, function: Function | None = None) -> Function:
        """Decorator: the function runs on the first rank of each machine only; elsewhere it returns None."""
        return _only_if(lambda: self.is_local_main_process, function)

    def on_last_process(self, function: Function | None = None) -> Function:
        """Decorator: the function runs on the last rank only; elsewhere it returns None."""
        return _only_if(lambda: self.is_last_process, function)

    def on_process(self, function: Function | None = None, process_index: int | None = None) -> Function:
        """Decorator: the function runs on rank `process_index` only; elsewhere it returns None."""
        if process_index is None:
            raise ValueError("on_process needs process_index=: the number of the rank that runs the function.")
        return _only_if(lambda: self.process_index == process_index, function)

    def on_local_process(self, function: Function | None = None, local_process_index: int | None = None) -> Function:
        """Decorator: the function runs on that rank of each machine only; elsewhere it returns None."""
        if local_process_index is None:
            raise ValueError("on_local_process needs local_process_index=: the rank that runs the function.")
        return _only_if(lambda: self.local_process_index == local_process_index, function)

    def print(self, *values: object, **options: Any) -> None:  # noqa: ANN401  those of print
        """`print` on the first rank of each machine, nothing elsewhere."""
        if self.is_local_main_process:
            print(*values, **options)  # noqa: T201  this is its purpose


def _only_if(wanted: Callable[[], bool], function: Function | None) -> Function:
    """`function`, or a decorator, that does nothing unless `wanted()` at the time of the call."""
    if function is None:
        return lambda decorated: _only_if(wanted, decorated)

    @functools.wraps(function)
    def guarded(*args: object, **kwargs: object) -> object:
        return function(*args, **kwargs) if wanted() else None

    return guarded
