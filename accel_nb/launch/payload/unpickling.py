"""What our pickles call while they are loaded: their names are part of the format.

torch is imported here only when the pickle holds a tensor.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import cloudpickle.cloudpickle

from ...protocol.payload import OUT_OF_BAND_BYTES

if TYPE_CHECKING:
    import torch

_classes_by_tracker_id: weakref.WeakValueDictionary[object, type] = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID  # noqa: SLF001  no public way to a class from its id
_unfinished_classes: weakref.WeakSet[type] = weakref.WeakSet()
"""Classes made by `tracked_class` that still wait for their contents."""


def main_namespace() -> dict[str, object]:
    """The globals of this process's ``__main__``."""
    return vars(sys.modules["__main__"])


class _MainNamespace:
    """Stands in a pickle for the globals of the reader's ``__main__``."""

    def __reduce__(self) -> tuple[Callable[[], dict[str, object]], tuple[()]]:
        return main_namespace, ()


MAIN_NAMESPACE = _MainNamespace()


def storage_from_buffer(buffer: bytes | bytearray | memoryview) -> torch.UntypedStorage:
    """A CPU storage with the bytes of `buffer`: a small one is copied, a large one keeps using the buffer's memory."""
    import torch

    num_bytes = memoryview(buffer).nbytes
    if not num_bytes:
        return torch.UntypedStorage(0)
    flat = torch.frombuffer(buffer, dtype=torch.uint8)
    return (flat.clone() if num_bytes < OUT_OF_BAND_BYTES else flat).untyped_storage()


def typed_storage(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.storage.TypedStorage:
    """What torch's own tensor reductions refer to (``torch._utils._rebuild_tensor_v2``)."""
    import torch

    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def tracked_class(maker: Callable[..., type], arguments: tuple[object, ...]) -> type:
    """The class this process has for cloudpickle's tracker id in `arguments`, else an empty one from `maker`.

    The id is the last argument but one of both makers, ``_make_skeleton_class`` and ``_make_skeleton_enum``
    (cloudpickle 3.0 to 3.1).
    """
    known: type | None = _classes_by_tracker_id.get(arguments[-2])
    if known is not None:
        return known
    made = maker(*arguments)
    _unfinished_classes.add(made)
    return made


def complete_class(cls: type, setter_and_state: tuple[Callable[[type, object], object], object]) -> None:
    """Fill a class that `tracked_class` has made; leave one alone that was here before."""
    if cls in _unfinished_classes:
        _unfinished_classes.discard(cls)
        setter, state = setter_and_state
        setter(cls, state)
