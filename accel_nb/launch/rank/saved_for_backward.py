"""How much memory tensors take that autograd keeps between forward and backward, at its peak.

Each is wrapped when autograd saves it and noticed when autograd lets go of it (``saved_tensors_hooks``). A storage
counts once, however many tensors share it; parameters and what the model was called with are counted elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .step_sizes import is_tracing, storage_id, storages

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]


class SavedForBackward:
    """Counts within `watched`, in the thread that entered it."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self.peak_fixed_bytes = 0
        """At that peak: what is shaped like a parameter, such as its copy in the dtype of autocast."""
        self._bytes = 0
        self._fixed_bytes = 0
        self._held: dict[int, tuple[int, int, bool]] = {}
        """Id of a storage -> number of tensors saved in it, bytes, whether it is fixed."""
        self._elsewhere: Collection[int] = frozenset()
        self._parameter_shapes: Collection[Shape] = frozenset()

    @contextmanager
    def watched(self) -> Iterator[None]:
        from torch.autograd import graph

        hooks = graph.saved_tensors_hooks(self._pack, self._unpack)
        refuse = graph.disable_saved_tensors_hooks
        own_thread = threading.get_ident()
        aside = False

        @contextmanager
        def without_ours(error_message: str) -> Iterator[None]:
            # torch.func cannot work under hooks and refuses them: ours, which are this thread's, step aside once.
            nonlocal aside
            if aside or threading.get_ident() != own_thread:
                with refuse(error_message):
                    yield
                return
            hooks.__exit__()
            aside = True
            try:
                with refuse(error_message):
                    yield
            finally:
                aside = False
                hooks.__enter__()

        graph.disable_saved_tensors_hooks = without_ours
        try:
            with hooks:
                yield
        finally:
            graph.disable_saved_tensors_hooks = refuse

    def begin(self, elsewhere: Collection[int], parameter_shapes: Collection[Shape]) -> None:
        """A model is called. `elsewhere`: ids of storages that are counted elsewhere. `parameter_shapes`: each sorted,
        since weights are saved transposed, too.
        """
        self._elsewhere = elsewhere
        self._parameter_shapes = parameter_shapes

    def leave_out(self, elsewhere: Iterable[int]) -> None:
        """Storages that are counted elsewhere, as turns out only now."""
        for one in elsewhere:
            count, num_bytes, fixed = self._held.get(one, (0, 0, False))
            if count:
                self._held[one] = (count, 0, fixed)
                self._bytes -= num_bytes
                self.peak_bytes -= num_bytes
                if fixed:
                    self._fixed_bytes -= num_bytes
                    self.peak_fixed_bytes -= num_bytes

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | _Held:
        import torch

        if is_tracing() or torch.compiler.is_compiling():
            return tensor
        held = tuple(
            self._hold(tensor, one) for one in storages([tensor]) if storage_id(one) not in self._elsewhere
        )  # fmt: skip
        return _Held(tensor, held, self) if held else tensor

    def _hold(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> int:
        key = storage_id(storage)
        count, num_bytes, fixed = self._held.get(key, (0, 0, False))
        if not count:
            # Data that nothing is trained through may be a view of a whole dataset, of which a device gets this part.
            num_bytes = storage.nbytes() if tensor.requires_grad else min(storage.nbytes(), tensor.nbytes)
            fixed = tuple(sorted(tensor.shape)) in self._parameter_shapes
            self._add(num_bytes, fixed=fixed)
        self._held[key] = (count + 1, num_bytes, fixed)
        return key

    @staticmethod
    def _unpack(saved: torch.Tensor | _Held) -> torch.Tensor:
        return saved.tensor if isinstance(saved, _Held) else saved

    def _add(self, num_bytes: int, *, fixed: bool) -> None:
        self._bytes += num_bytes
        self._fixed_bytes += num_bytes if fixed else 0
        if self._bytes > self.peak_bytes:
            self.peak_bytes, self.peak_fixed_bytes = self._bytes, self._fixed_bytes

    def let_go(self, held: Iterable[int]) -> None:
        """Autograd holds one tensor less in each of these storages."""
        for key in held:
            count, num_bytes, fixed = self._held.pop(key)
            if count > 1:
                self._held[key] = (count - 1, num_bytes, fixed)
            else:
                self._add(-num_bytes, fixed=fixed)


class _Held:
    """A saved tensor as autograd holds it."""

    __slots__ = ("_counter", "_storages", "tensor")

    def __init__(self, tensor: torch.Tensor, storages: tuple[int, ...], counter: SavedForBackward) -> None:
        self.tensor = tensor
        self._storages = storages
        self._counter = counter

    def __del__(self) -> None:
        self._counter.let_go(self._storages)
