"""What `Accelerator`s of this process hold, so that what a failed try has prepared can be let go of."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from ..data.prepared import PreparedLoader


class Holder(Protocol):
    """An `Accelerator`."""

    @property
    def prepared_lists(self) -> tuple[list[Any], ...]: ...

    @property
    def update_count(self) -> int: ...

    gradient_accumulation_steps: int

    def begin_step_anew(self) -> None: ...


_holders: weakref.WeakSet[Holder] = weakref.WeakSet()


def note(holder: Holder) -> None:
    """`holder` was made."""
    _holders.add(holder)


def holders() -> Sequence[Holder]:
    return list(_holders)


def num_updates() -> int:
    """Optimizer steps of what is prepared now; of several optimizers, the one that stepped most."""
    return max((holder.update_count for holder in _holders), default=0)


class Held:
    """What was prepared at one moment. Keeps none of it alive."""

    def __init__(self) -> None:
        self._updates = num_updates()
        self._things = {id(thing): weakref.ref(thing) for thing in _prepared()}
        self._passes = [(weakref.ref(loader), loader.iteration) for loader in _loaders()]

    def num_updates_since(self) -> int:
        """Optimizer steps made since that moment, as far as they were made with what is prepared now."""
        now = num_updates()
        return now - self._updates if now >= self._updates else now

    def let_go_of_the_rest(self) -> None:
        """`Accelerator`s forget what was prepared after that moment, and the micro-batches of a step begun. Loaders
        from before count their passes from where they were: another rank may have begun more of them.
        """
        for holder in _holders:
            for prepared in holder.prepared_lists:
                prepared[:] = [thing for thing in prepared if self._was_there(thing)]
            holder.begin_step_anew()
        for known, number in self._passes:
            loader = known()
            if loader is not None:
                loader.iteration = number

    def _was_there(self, thing: object) -> bool:
        known = self._things.get(id(thing))
        return known is not None and known() is thing


def _loaders() -> list[PreparedLoader]:
    return [thing for thing in _prepared() if isinstance(thing, PreparedLoader)]


def _prepared() -> list[Any]:
    return [thing for holder in _holders for prepared in holder.prepared_lists for thing in prepared]
