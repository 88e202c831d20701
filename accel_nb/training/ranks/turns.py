"""One rank goes first, the others wait for it without a collective, whose time-out would end them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress

from torch.distributed import DistError, Store  # type: ignore[attr-defined]  # public, says the documentation

from ...protocol import ledger, lockstep, sink
from ...protocol.events import Notice
from ...protocol.places import users_place
from ..operations.group_store import group_store, wait_for_keys
from . import process_group
from .process_group import RankFacts

FIRST_NOTICE_S = 60.0
"""After so long a wait the user is told; then at each doubling."""


@contextmanager
def leader_first(facts: RankFacts, *, leads: bool, scope: str) -> Iterator[None]:
    """Run the block on the rank that `leads`, then on the others that give the same `scope`. Every rank must enter it.

    The leader does not wait. Also when its block raises, the others go on.
    """
    announce, wait = _signals(facts, scope)
    if not leads:
        wait()
    try:
        yield
    finally:
        if leads:
            announce()


def _signals(facts: RankFacts, scope: str) -> tuple[Callable[[], None], Callable[[], None]]:
    if facts.num_processes == 1:
        return _nothing, _nothing
    lockstep.note("turns")
    store = group_store()
    if store is None:
        return (lambda: process_group.barrier(facts.device),) * 2
    # Counted in the store, which outlives states: each rank's next turn has a key that was never used.
    turn = store.add(f"accel_nb/turns/{scope}/{facts.process_index}", 1)
    key = f"accel_nb/turn/{scope}/{turn}"
    return (lambda: store.set(key, "")), (lambda: _wait(store, key, facts))


def _wait(store: Store, key: str, facts: RankFacts) -> None:
    own = ledger.own()
    with nullcontext() if own is None or not own.may_write else own.activity("main_process_first", *users_place()):
        wait_for_keys(store, [key], still_waiting=_Heartbeat(facts))
    # The last one clears up. With several machines, each with a turn of its own, nobody knows that he is the last.
    with suppress(DistError):  # the rank that has the store may have ended
        if store.add(f"{key}/seen", 1) == facts.num_processes - 1:
            store.delete_key(key)
            store.delete_key(f"{key}/seen")


def _nothing() -> None:
    return


class _Heartbeat:
    """Says now and then that, and for whom, the ranks of a machine wait. One of them speaks."""

    def __init__(self, facts: RankFacts) -> None:
        self._speaks = facts.local_process_index == 1 or (facts.local_process_index == 0 and facts.process_index > 0)
        self._next_s = FIRST_NOTICE_S

    def __call__(self, waited_s: float) -> None:
        if not self._speaks or waited_s < self._next_s:
            return
        self._next_s *= 2
        tell(f"waiting for the rank that goes first (main_process_first), {waited_s / 60:.0f} min so far")


def tell(text: str) -> None:
    """One sentence of ours for the user: in the run's view, else on stderr."""
    if sink.is_open():
        sink.emit(Notice(text=text))
    else:
        print(f"accel_nb: {text}", file=sys.stderr, flush=True)  # noqa: T201  there is no view
