"""A prepared loader is the user's own DataLoader made anew: its class and settings, with parts replaced.

torch forbids to change the samplers of a loader that exists, so a loader is copied, not changed. The copy's class is
assembled from ours and the user's: a loader class with an ``__iter__`` of its own, or torchdata's StatefulDataLoader,
goes on doing what it does, below what we add.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any, ClassVar, Self

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from ...errors import TrainingError

Loader = DataLoader[Any]

_KEPT_ARGUMENTS = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
    "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order",
)  # fmt: skip
"""Arguments of DataLoader (torch 2.6 to 2.13) that are attributes of a loader under the same name."""


class DataLoaderAdapter(DataLoader[Any]):
    """Base of prepared loaders: a DataLoader around a DataLoader of any class.

    Args:
        dataset: as DataLoader's.
        use_stateful_dataloader: read through torchdata's StatefulDataLoader; TrainingError when torchdata is missing.
        batch_sampler: as DataLoader's.
        kwargs: DataLoader's.
    """

    _assembled_from: ClassVar[tuple[type[DataLoaderAdapter], type[Loader]] | None] = None
    _left_behind: ClassVar[tuple[str, ...]] = ("_iterator",)
    """Attributes that make sense in this process only, and are None in a copy made by pickle."""
    is_constructed: bool = False
    """Whether its class was called, as a DataLoader's is, instead of being made `around` a loader."""
    use_stateful_dataloader: bool

    def __init__(
        self,
        dataset: Any,  # noqa: ANN401  torch's own parameter
        use_stateful_dataloader: bool = False,
        batch_sampler: Any = None,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        base = stateful_loader_class() if use_stateful_dataloader else DataLoader
        self.__class__ = _assembled(type(self), base)
        with _without_torchdatas_warning():
            base.__init__(self, dataset, batch_sampler=batch_sampler, **kwargs)
        self.use_stateful_dataloader, self.is_constructed = use_stateful_dataloader, True

    @classmethod
    def around(cls, loader: Loader, **replaced: Any) -> Self:  # noqa: ANN401  attributes of DataLoader, of any kind
        """A loader of this class and `loader`'s, with the attributes of `loader`, but for those given.

        `loader` itself stays as it is and may still be used. Attributes of our own classes are to be set by the caller.
        """
        made: Self = object.__new__(_assembled(cls, type(loader)))
        # Past DataLoader's own guard: nothing iterates over this loader yet. Running workers stay `loader`'s.
        made.__dict__.update(loader.__dict__ | {"_iterator": None} | replaced)
        made.use_stateful_dataloader = made.base_is_stateful
        return made

    @property
    def base_is_stateful(self) -> bool:
        """Whether the class below ours keeps a state that can be saved, as torchdata's StatefulDataLoader does."""
        return hasattr(super(), "state_dict")  # DataLoader has no such method, and there is no common base class

    @property
    def reads_plainly(self) -> bool:
        """Whether the class below ours leaves iteration to torch or torchdata, which give one batch per index."""
        below = super().__iter__.__func__  # type: ignore[attr-defined]
        return below is DataLoader.__iter__ or below.__module__.startswith("torchdata.")

    @property
    def index_sampler(self) -> Any:  # noqa: ANN401  torch takes anything that can be iterated over
        """What says which samples are read together: the batch sampler or, without batching, the sampler."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    @property
    def is_batched(self) -> bool:
        return self.batch_sampler is not None or isinstance(self.sampler, BatchSampler)

    def replace_index_sampler(self, sampler: Any) -> None:  # noqa: ANN401
        """Read by the indices of `sampler` from the next pass on. Running workers end."""
        name = "sampler" if self.batch_sampler is None else "batch_sampler"
        self.__dict__.update({name: sampler, "_iterator": None})  # past DataLoader's guard, see `around`

    def base_state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = super().state_dict()  # type: ignore[misc]  # see base_is_stateful
        return state

    def load_base_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name == "base_dataloader":  # upstream's name for the loader that it wraps; ours is that loader
            return self
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce_ex__(self, protocol: object) -> Any:  # noqa: ANN401
        """Assembled classes have no name to be found by. Running workers stay in this process."""
        del protocol
        ours, base = self._assembled_from or (type(self), DataLoader)
        return _unpickled, (ours, base, self.__dict__ | dict.fromkeys(self._left_behind))


def stateful_loader_class() -> type[Loader]:
    """torchdata's StatefulDataLoader. TrainingError when it is not installed."""
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError as error:
        raise TrainingError(
            "use_stateful_dataloader=True needs the package torchdata (pip install torchdata). Prepared loaders keep "
            "their position without it: leave the option out and use accelerator.save_state."
        ) from error
    return StatefulDataLoader  # type: ignore[no-any-return]


def as_stateful(loader: Loader) -> Loader:
    """A StatefulDataLoader with the settings of `loader`; `loader` itself if it is one.

    TrainingError for a loader class with an ``__iter__`` of its own, which would be lost.
    """
    stateful = stateful_loader_class()
    if isinstance(loader, stateful):
        return loader
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise TrainingError(
            f"use_stateful_dataloader=True reads through torchdata's StatefulDataLoader, which would lose the __iter__ "
            f"of {type(loader).__qualname__}. Derive that class from StatefulDataLoader, or leave the option out."
        )
    known = signature(stateful.__init__).parameters  # older versions of torchdata know fewer
    arguments = {name: getattr(loader, name) for name in _KEPT_ARGUMENTS if name in known}
    if isinstance(loader.dataset, IterableDataset):
        order: dict[str, Any] = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is None:
        order = {"batch_size": None, "sampler": loader.sampler}
    else:
        order = {"batch_sampler": loader.batch_sampler}
    with _without_torchdatas_warning():
        return stateful(loader.dataset, **arguments, **order)


@contextmanager
def _without_torchdatas_warning() -> Iterator[None]:
    """until torchdata > 0.11: it calls a function that torch 2.13 warns about."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'set_vital' is deprecated")
        yield


_assembled_classes: dict[tuple[type, type], type[Any]] = {}
"""Ours and the user's -> the class made of both: one for each pair, so that loaders of a kind have one class."""


def _assembled(ours: type[DataLoaderAdapter], base: type[Loader]) -> type[Any]:
    """`ours` on top of `base`. Given an assembled class, it is taken apart first."""
    ours, own_base = ours._assembled_from or (ours, DataLoader)  # noqa: SLF001  of this module
    if issubclass(base, DataLoaderAdapter):
        base = (base._assembled_from or (base, DataLoader))[1]  # noqa: SLF001
    base = own_base if base is DataLoader else base
    if issubclass(ours, base):
        return ours
    if (ours, base) not in _assembled_classes:
        attributes = {"_assembled_from": (ours, base), "__module__": ours.__module__}
        _assembled_classes[ours, base] = type(ours.__name__, (ours, base), attributes)
    return _assembled_classes[ours, base]


def _unpickled(ours: type[DataLoaderAdapter], base: type[Loader], attributes: dict[str, Any]) -> DataLoaderAdapter:
    made: DataLoaderAdapter = object.__new__(_assembled(ours, base))
    made.__dict__.update(attributes)
    return made
