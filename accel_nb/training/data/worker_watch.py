"""Whether a dataset deals its samples out to the DataLoader's workers by itself.

Each worker reads a copy of an iterable dataset. One that shares its samples among them asks torch how many there are
(``get_worker_info().num_workers``), in its ``__iter__`` or in the loader's `worker_init_fn`; one that does not gives
all workers the same. So whoever asks is taken to share. This is the border to torch's own record of a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as torchs_worker

WorkerInit = Callable[[int], object]


class WatchedWorkerInfo:
    """Stands in for torch's WorkerInfo in a worker, and notes what it is asked."""

    def __init__(self, info: Any) -> None:  # noqa: ANN401  its class and fields differ between versions of torch
        self._info = info
        self.was_asked_for_number = False
        self.when_asked: Callable[[], object] | None = None
        """Called when it is, before the answer."""
        self.seed_of_pass: int | None = None
        """Instead of this worker's own seed; alike on all ranks, so that what is shuffled with it is, too."""
        self.id: int = info.id

    @property
    def num_workers(self) -> int:
        self.was_asked_for_number = True
        if self.when_asked is not None:
            self.when_asked()
        return self.number_unasked

    @property
    def number_unasked(self) -> int:
        """The number of workers, for us."""
        number: int = self._info.num_workers
        return number

    @property
    def base_seed(self) -> int:
        """The same in all workers of a loader, another one in each pass that starts workers."""
        seed: int = self._info.seed
        return seed - self.id

    @property
    def seed(self) -> int:
        own: int = self._info.seed
        return own if self.seed_of_pass is None else self.seed_of_pass + self.id

    @property
    def dataset(self) -> Any:  # noqa: ANN401
        """The user's own, not our share of it: what `worker_init_fn` configures."""
        return getattr(self._info.dataset, "dataset", self._info.dataset)

    @property
    def shared_dataset(self) -> Any:  # noqa: ANN401
        return self._info.dataset

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.__dict__["_info"], name)


class Watching:
    """A `worker_init_fn` that begins to watch, then calls the user's own."""

    def __init__(self, worker_init_fn: WorkerInit | None) -> None:
        self.worker_init_fn = worker_init_fn

    def __call__(self, worker_id: int) -> None:
        torchs_worker._worker_info = WatchedWorkerInfo(get_worker_info())  # type: ignore[assignment]  # noqa: SLF001
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker_id)


def watched_worker() -> WatchedWorkerInfo | None:
    """What is known of this worker; None outside of watched workers."""
    info: object = get_worker_info()
    return info if isinstance(info, WatchedWorkerInfo) else None
