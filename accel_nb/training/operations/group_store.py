"""The process group's key-value store: messages between ranks outside of collectives.

Waiting there has no time-out of a collective's, disturbs no device, and works whatever the other ranks do meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from torch.distributed import Store, distributed_c10d  # type: ignore[attr-defined]  # public, says the documentation

from . import abandoned

_FIRST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.1
_TELL_EVERY_S = 1.0


def group_store() -> Store | None:
    """The store that the default group was made with; None where the backend needs none, as MPI."""
    # A private name, of every torch since 1.8; guarded by tests on the oldest and the newest.
    store: Store | None = distributed_c10d._get_default_store()  # noqa: SLF001
    return store


def wait_for_keys(
    store: Store,
    keys: Sequence[str],
    *,
    timeout_s: float | None = None,
    still_waiting: Callable[[float], None] | None = None,
    unless: Callable[[], bool] = lambda: False,
) -> bool:
    """Block until `keys` are set. False when they are not after `timeout_s` (None: wait on for ever), or as soon as
    `unless` is true.

    `still_waiting` is called about every second with the seconds waited so far. A lost connection raises
    ``torch.distributed.DistNetworkError``, and `abandoned` AnotherRankFailed.
    """
    started = time.monotonic()
    end_s = float("inf") if timeout_s is None else timeout_s
    pause_s, told_s = _FIRST_PAUSE_S, _TELL_EVERY_S
    # By asking again and again: the store's own wait hears no interrupt, and torch writes lines whenever one runs out.
    while not store.check(list(keys)):
        abandoned.check()
        waited_s = time.monotonic() - started
        if waited_s >= end_s or unless():
            return False
        if still_waiting is not None and waited_s >= told_s:
            still_waiting(waited_s)
            told_s = waited_s + _TELL_EVERY_S
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
    return True


def read_keys(store: Store, keys: Sequence[str]) -> list[str]:
    """The values of `keys`, which are set."""
    # TCPStore has it, a FileStore has not; the type stubs leave the method out.
    is_extended = store.has_extended_api()  # type: ignore[attr-defined]
    values = store.multi_get(list(keys)) if is_extended else [store.get(key) for key in keys]
    return [value.decode() for value in values]
