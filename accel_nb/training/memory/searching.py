"""The loop of one search, and what is told of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...errors import NoExecutableBatchSize
from ...protocol import environment, sink
from ...protocol.events import BatchSizeTried
from ..ranks import turns
from . import regroup
from .agreement import Ranks, find_ranks
from .calling import Function, name_of
from .conditions import Conditions
from .effective_batch import Steps, factor_for
from .held import Held
from .leaving import Departure, check_failed, smallest
from .outcomes import Outcome, Readiness, ranks_out_of_memory
from .reductions import Policy, Reduction, choose_policy
from .release import clear_device_cache
from .trying import Try


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of `find_executable_batch_size`; see there."""

    reduce_batch_size_fn: Callable[[], int] | None
    reduction: Reduction | None
    minimum_batch_size: int
    keep_effective_batch: bool
    probe: Function | None
    name: str | None
    together: bool

    def check(self) -> None:
        """ValueError for what cannot be."""
        if self.minimum_batch_size < 1:
            raise ValueError(f"minimum_batch_size={self.minimum_batch_size!r} must be 1 or more.")


class Search:
    """Calls one function with batch sizes until one fits. Not for several threads at once."""

    def __init__(self, function: Function, starting_batch_size: int, settings: Settings) -> None:
        self.name = settings.name or name_of(function)
        self._function = function
        self._settings = settings
        self._first_size = starting_batch_size
        self._batch_size = starting_batch_size
        """What the next call begins with."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401  the function's value
        calling = _Calling(self._function, self.name, self._settings, self._batch_size, self._first_size)
        try:
            size, value = calling.run(args, kwargs)
        except BaseException:
            if calling.steps is not None:
                calling.steps.restore()
            raise
        self._batch_size = size
        return value


class _Calling:
    """One call of a search."""

    def __init__(self, function: Function, name: str, settings: Settings, start: int, first_size: int) -> None:
        self._function = function
        self._name = name
        self._probe = settings.probe
        self._minimum = settings.minimum_batch_size
        self._first_size = first_size
        self._start = start
        self._policy: Policy = choose_policy(
            settings.reduction, settings.reduce_batch_size_fn, start=start, minimum=settings.minimum_batch_size
        )
        self._ranks: Ranks | None = find_ranks(name) if settings.together else None
        self.steps = Steps() if settings.keep_effective_batch else None
        self._tried: list[int] = []
        self._conditions = Conditions()
        self._last: Outcome | None = None
        """The last time that memory ran out, and on which rank."""
        self._last_rank: int | None = None
        self._stalled: int | None = None
        """A next size that is not smaller than the one before."""

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, Any]:
        """The batch size that fits, and the function's value. Raises NoExecutableBatchSize."""
        clear_device_cache(garbage_collection=True)
        size = self._first()
        best: tuple[int, Any] | None = None
        number = 0
        while size:
            fits, value, following = self._tried_with(size, number, args, kwargs)
            if fits:
                best = size, value
            value = None
            number += 1
            if fits and not following:
                break
            size = following
        if self._ranks is not None:
            self._ranks.part()
        if best is None:
            raise NoExecutableBatchSize(self._no_size_left())
        return best

    def _first(self) -> int:
        """The size to begin with, the same on all ranks; 0: there is none."""
        failed_before = environment.failed_batch_sizes(self._name)
        size = self._start if self._start >= self._minimum else 0
        while size in failed_before:
            self._tried.append(size)
            size = self._smaller(size)
        if self._ranks is not None:
            size = smallest(self._ranks.begin(0, Readiness(size=size)))
        if self._tried and (self._ranks is None or self._ranks.rank == 0) and size:
            failed = ", ".join(map(str, self._tried))
            turns.tell(f"{self._name} begins with batch size {size}: before the restart, {failed} did not fit.")
        return size

    def _tried_with(
        self, size: int, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bool, Any, int]:
        """Whether `size` fits everywhere, the function's value then, and what to try next (0: nothing)."""
        self._tried.append(size)
        if number:
            self._conditions.restore()
        started_s = time.monotonic()
        recipe, held = regroup.recipe_of_group(), Held()
        one = Try(self._name, size, number, self._ranks, held)
        with self.steps.multiplied(self._factor(size)) if self.steps else contextlib.nullcontext():
            outcome, value = one.call(partial(self._call, size, args, kwargs))
        outcomes: Sequence[Outcome] | None = [outcome]
        if self._ranks is not None:
            outcomes = self._ranks.outcomes_unless_out(number) if outcome.kind == "fits" else None
        if outcomes is not None and all(known.kind == "fits" for known in outcomes):
            following = self._policy.after_fit(size) or 0
            if self._ranks is not None and following:
                following = smallest(self._ranks.begin(number + 1, Readiness(size=following)))
            self._tell(size, started_s, outcomes, following)
            return True, value, following
        value = None
        following, outcomes = self._after_failure(size, number, held, recipe, outcomes)
        self._tell(size, started_s, outcomes, following)
        return False, None, following

    def _call(self, size: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        if self._probe is not None:
            self._probe(size, *args, **kwargs)
        return self._function(size, *args, **kwargs)

    def _after_failure(
        self, size: int, number: int, held: Held, recipe: regroup.Recipe | None, outcomes: Sequence[Outcome] | None
    ) -> tuple[int, Sequence[Outcome]]:
        """Leave the try; the size of the next one (0: none), and how it has ended on each rank."""
        if self._ranks is None:
            assert outcomes is not None
            held.let_go_of_the_rest()
            clear_device_cache(garbage_collection=True)
            following = self._smaller(size)
        else:
            if outcomes is not None:
                check_failed(outcomes, self._ranks.rank)
            departure = Departure(self._ranks, number, recipe)
            outcomes = departure.leave(held)
            following = departure.come_back(self._smaller(size))
        self._last_rank = ranks_out_of_memory(outcomes)[0]
        self._last = outcomes[self._last_rank]
        return following, outcomes

    def _smaller(self, size: int) -> int:
        """What this rank would try after `size`; 0: nothing."""
        following = self._policy.after_failure(size)
        if following is not None and following >= size:
            self._stalled = following
            return 0
        return following or 0

    def _factor(self, size: int) -> int:
        return factor_for(size, self._first_size) if self.steps is not None else 1

    def _tell(self, size: int, started_s: float, outcomes: Sequence[Outcome], following: int) -> None:
        out = ranks_out_of_memory(outcomes)
        event = BatchSizeTried(
            function=self._name,
            batch_size=size,
            fits=not out,
            duration_s=time.monotonic() - started_s,
            reason=outcomes[out[0]].reason if out else "",
            next_batch_size=following or None,
            on_ranks=out if len(out) < len(outcomes) else (),
            num_updates=max((outcomes[rank].num_updates for rank in out), default=0),
            accumulation=self._factor(size),
            next_accumulation=self._factor(following) if following else 1,
        )
        is_silent = not out and len(self._tried) == 1
        if sink.is_open():
            sink.emit(event)
        elif not is_silent and (self._ranks is None or self._ranks.rank == 0):  # nobody shows this process's events
            print(event.sentence, flush=True)  # noqa: T201  like the view of a launch

    def _no_size_left(self) -> str:
        if not self._tried and self._start >= 1:
            return (
                f"No executable batch size found: {self._name} was to start with {self._start}, which is below "
                f"minimum_batch_size={self._minimum}."
            )
        if not self._tried:
            return f"No executable batch size found, reached zero: {self._name} was to start with {self._start}."
        sizes = ", ".join(map(str, self._tried))
        if self._stalled is not None:
            found = f"the reduction gave {self._stalled} after {self._tried[-1]}, which is not smaller"
        else:
            found = "reached zero" if self._minimum == 1 else f"reached minimum_batch_size={self._minimum}"
        what = f"No executable batch size found, {found}. {self._name} ran out of memory with {sizes}"
        if self._last is None:
            return f"{what}, before the ranks were restarted."
        where = f" on rank {self._last_rank}" if self._ranks is not None else ""
        when = f" after {self._last.num_updates} optimizer steps" if self._last.num_updates else ""
        return f"{what}; the last error{where}{when} was: {self._last.details}"
