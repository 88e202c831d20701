"""Get a device ready in a rank that waits for its function: what takes long and needs nothing of the user's.

For the kinds of `OPENERS` only: others have no standby ranks. The process looks afterwards as if nothing had been
done, as far as torch lets user code see: the current device, memory statistics, generators.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def _opened_cpu(_index: int) -> Iterator[torch.device]:
    import torch

    yield torch.device("cpu")


@contextlib.contextmanager
def _opened_cuda(index: int) -> Iterator[torch.device]:
    import torch

    # Puts back the device that was current before without opening a context on it, which ``set_device`` would.
    with torch.cuda.device(index):
        yield torch.device("cuda", index)
        torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(index)
    torch.cuda.reset_accumulated_memory_stats(index)


Opener = Callable[[int], AbstractContextManager["torch.device"]]
"""Given the position of a rank's device among those it sees: opens it, gives it to use, tidies up."""

OPENERS: Mapping[str, Opener] = {"cpu": _opened_cpu, "cuda": _opened_cuda}
"""By kind of device."""
