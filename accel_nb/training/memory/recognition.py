"""Which errors say that memory ran out, so that less data may go through."""

from __future__ import annotations

import torch

from ...devices import find_devices

_OF_KINDS_WITHOUT_A_FILE = (
    "FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed",  # HPU; accelerate.utils.memory 1.15
)
"""Of kinds of hardware that have no file in `accel_nb.devices` yet; the others say their own."""

_OF_ANY_KIND = (" out of memory.",)
"""c10's allocators: "CUDA out of memory. Tried to allocate ...", likewise HIP, XPU (accelerate.utils.memory 1.15)."""

_FIRST_LINE_CHARS = 200


def should_reduce_batch_size(exception: BaseException) -> bool:
    """Whether `exception` says that memory ran out, of a device or of the host."""
    if isinstance(exception, MemoryError | torch.OutOfMemoryError):
        return True
    # A RuntimeError is what torch, cuBLAS, cuDNN and XLA raise; the same words in a ValueError are somebody else's.
    return isinstance(exception, RuntimeError) and any(text in str(exception) for text in _texts())


def first_line(error: BaseException) -> str:
    """What `error` says, in one line of moderate length."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:_FIRST_LINE_CHARS]


def _texts() -> tuple[str, ...]:
    own = [text for device in find_devices() for text in device.out_of_memory_texts]
    return (*_OF_ANY_KIND, *own, *_OF_KINDS_WITHOUT_A_FILE)
