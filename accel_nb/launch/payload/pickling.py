"""The picklers of a launch: functions towards ranks, values back to the kernel.

cloudpickle does the work. Added here: readable cell names in code objects, large arrays and tensors as buffers beside
the pickle, tensors on the CPU, functions of a notebook that live in the rank's own ``__main__``, and classes typed in a
cell that come home as themselves. Neither pickler imports torch or numpy: it looks whether the process has.
"""

from __future__ import annotations

import ctypes
import io
import pickle
import sys
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, cast

import cloudpickle

from ...protocol.payload import OUT_OF_BAND_BYTES
from .cell_sources import NamedSources
from .free_memory import require_room
from .mapped_arrays import reopening
from .unpickling import (
    MAIN_NAMESPACE,
    complete_class,
    storage_from_buffer,
    tracked_class,
    typed_storage,
)

if TYPE_CHECKING:
    import numpy as np
    import torch

Reduction: TypeAlias = Any
"""A name, a tuple as ``object.__reduce_ex__`` gives it, or NotImplemented: pickle takes its usual way."""


class Writable(Protocol):
    def write(self, data: bytes, /) -> object: ...


class Nowhere:
    """Takes a pickle that is made only to see whether it can be made."""

    def write(self, _: bytes, /) -> None:
        pass


class Refused(pickle.PicklingError):
    """Raised by a reducer for an object which could be pickled but must not be."""


class CellPickler(cloudpickle.Pickler):  # type: ignore[misc]  # untyped upstream
    """Pickles what was typed in a notebook, for a process of the same Python on the same machine."""

    _own_reducers: ClassVar[Mapping[type, str]] = {
        types.CodeType: "_reduce_code",
        types.FunctionType: "_reduce_function",
        types.ModuleType: "_reduce_module",
        io.TextIOWrapper: "_reduce_text_file",
    }
    """Exact type -> method. A dispatch table of an instance would be ignored by the C pickler."""

    def __init__(self, file: Writable, buffers: list[pickle.PickleBuffer]) -> None:
        """Pickle into `file`; large buffers are appended to `buffers` and must be written before they change."""
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=_collector(buffers))
        self.sources = NamedSources()
        self.referenced_modules: set[str] = set()
        """Modules which the reader will import, because something in them was pickled by name."""
        self.moved_to_cpu = False
        """True once a tensor of another device was copied."""
        self.latest: object = None
        """What was reduced last: after a failure, the culprit or its container."""
        self._kept_alive: list[object] = []
        self._reducers = {**self._own_reducers, **_reducers_of_loaded_libraries()}

    def reducer_override(self, obj: object) -> Reduction:
        """How to pickle `obj`; called by the C pickler for everything but plain builtin values."""
        self.latest = obj
        reducer = self._reducers.get(type(obj))
        if reducer is not None:
            return getattr(self, reducer)(obj)
        if issubclass(type(obj), type):  # not isinstance: it asks a proxy for its __class__, which may raise
            return self._reduce_class(cast("type", obj))
        if obj is sys.stdout or obj is sys.stderr:
            # A kernel's streams are not files and cannot be pickled; the rank has its own.
            return getattr, (sys, "stdout" if obj is sys.stdout else "stderr")
        return NotImplemented

    def _reduce_class(self, cls: type) -> Reduction:
        reduced: Reduction = super().reducer_override(cls)
        if reduced is NotImplemented:
            self.referenced_modules.add(cls.__module__)
        return _with_slots(cls, reduced)

    def _reduce_function(self, function: types.FunctionType) -> Reduction:
        reduced: Reduction = super().reducer_override(function)
        if reduced is NotImplemented:
            self.referenced_modules.add(function.__module__)
        return reduced

    def _reduce_module(self, module: types.ModuleType) -> Reduction:
        self.referenced_modules.add(module.__name__)
        return NotImplemented

    def _reduce_code(self, code: types.CodeType) -> Reduction:
        """cloudpickle's reduction with a readable file name; 3.1.3 writes ``<dynamic-code>`` there."""
        constructor, arguments = self.dispatch_table[types.CodeType](code)
        position = next(index for index, value in enumerate(arguments) if isinstance(value, str))  # co_filename
        name = self.sources.name(code.co_filename)
        return constructor, (*arguments[:position], name, *arguments[position + 1 :])

    def _reduce_text_file(self, file: io.TextIOWrapper) -> Reduction:
        """The process's own streams by name. cloudpickle would send any other file's text, silently cut off from it."""
        for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
            if file is getattr(sys, name):
                return getattr, (sys, name)
        raise Refused("cannot pickle an open file")

    def _reduce_array(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Reduction:
        """A large array with gaps becomes one without, so that it can stand beside the pickle like the others."""
        flags = array.flags
        if array.nbytes < OUT_OF_BAND_BYTES or flags.c_contiguous or flags.f_contiguous or array.dtype.hasobject:
            return NotImplemented
        require_room(array.nbytes)
        return array.copy(order="C").__reduce_ex__(pickle.HIGHEST_PROTOCOL)

    def _reduce_memmap(self, array: np.memmap[tuple[int, ...], np.dtype[np.generic]]) -> Reduction:
        """By its file where that holds the same values, else as an ordinary array."""
        import numpy as np

        arguments = reopening(array)
        if arguments is not None:
            return np.memmap, arguments
        plain = array.view(np.ndarray)
        reduced = self._reduce_array(plain)
        return plain.__reduce_ex__(pickle.HIGHEST_PROTOCOL) if reduced is NotImplemented else reduced

    def _reduce_tensor(self, tensor: torch.Tensor) -> Reduction:
        """One without a storage that `_reduce_storage` could copy, as XLA's: its values. torch would bring it back onto
        its device, which the reader need not have.
        """
        if tensor.device.type != "xla":
            return NotImplemented
        require_room(tensor.nbytes)
        self.moved_to_cpu = True
        on_cpu = tensor.detach().cpu().requires_grad_(tensor.requires_grad)
        return on_cpu.__reduce_ex__(pickle.HIGHEST_PROTOCOL)

    def _reduce_typed_storage(self, storage: torch.storage.TypedStorage) -> Reduction:
        return typed_storage, (storage._untyped_storage, storage.dtype)  # noqa: SLF001  its public twin warns of deprecation

    def _reduce_storage(self, storage: torch.UntypedStorage) -> Reduction:
        """Only storages are special: tensors refer to them, so views and tied weights stay tied."""
        if storage.device.type == "meta":
            return NotImplemented
        if storage.device.type != "cpu":
            require_room(storage.nbytes())
            self.moved_to_cpu = True
            storage = storage.cpu()
        self._kept_alive.append(storage)
        num_bytes = storage.nbytes()
        view = (ctypes.c_char * num_bytes).from_address(storage.data_ptr()) if num_bytes else b""
        return storage_from_buffer, (pickle.PickleBuffer(view),)


class FunctionPickler(CellPickler):
    """Towards a rank: functions typed in the notebook get the rank's ``__main__`` as their globals.

    So the rank's ``__main__`` holds what they use, and code in the rank that pickles by name (torch.save of a model,
    multiprocessing) finds its classes and functions there, as it does in the notebook.
    """

    def _reduce_function(self, function: types.FunctionType) -> Reduction:
        reduced = super()._reduce_function(function)
        if isinstance(reduced, tuple) and function.__globals__ is vars(sys.modules["__main__"]):
            maker, (code, _, *others), *rest = reduced  # the second argument is the namespace to be filled
            return maker, (code, MAIN_NAMESPACE, *others), *rest
        return reduced


class ValuePickler(CellPickler):
    """Back to the kernel: a class that the kernel has is used as it is there, not overwritten by the rank's copy."""

    def _reduce_class(self, cls: type) -> Reduction:
        reduced = super()._reduce_class(cls)
        if not isinstance(reduced, tuple) or len(reduced) < 6:  # noqa: PLR2004  no state setter: not a class by value
            return reduced
        maker, arguments, state, items, pairs, setter = reduced
        return tracked_class, (maker, arguments), (setter, state), items, pairs, complete_class


def _with_slots(cls: type, reduced: Reduction) -> Reduction:
    """cloudpickle's reduction of a class by value, with the slots that cloudpickle 3.0 to 3.1 leaves out.

    Without them the copy's instances keep their values in a ``__dict__``, and cannot come home to the real class.
    """
    slots = vars(cls).get("__slots__")
    if not (slots and isinstance(reduced, tuple)):  # empty ones change nothing, and NamedTuple forbids them
        return reduced
    maker, arguments, *rest = reduced
    metaclass, name, bases, namespace, *others = arguments
    return maker, (metaclass, name, bases, {**namespace, "__slots__": slots}, *others), *rest


def _collector(buffers: list[pickle.PickleBuffer]) -> Callable[[pickle.PickleBuffer], bool]:
    """A buffer callback without a reference to its pickler, which would be a cycle that keeps the user's objects."""

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < OUT_OF_BAND_BYTES:
            return True
        buffers.append(buffer)
        return False

    return keep_in_band


def _reducers_of_loaded_libraries() -> dict[type, str]:
    reducers: dict[type, str] = {}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        reducers[numpy.ndarray] = "_reduce_array"
        reducers[numpy.memmap] = "_reduce_memmap"
    if torch is not None:
        reducers[torch.Tensor] = "_reduce_tensor"
        reducers[torch.UntypedStorage] = "_reduce_storage"
        reducers[torch.storage.TypedStorage] = "_reduce_typed_storage"
    return reducers
