"""`find_executable_batch_size`: the search for a batch size that fits into memory, on all ranks at once.

size -> try on every rank -> outcomes -> fits everywhere: its value
                                      -> not somewhere: everybody leaves it -> smaller size -> ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, overload

from .calling import Function, check_function, check_left_out, name_of, whole_number
from .reductions import Reduction, check_reduction
from .searching import Search, Settings


@overload
def find_executable_batch_size(
    function: None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[[], int] | None = None,
    *,
    reduction: Reduction | None = None,
    minimum_batch_size: int = 1,
    keep_effective_batch: bool = False,
    probe: Function | None = None,
    name: str | None = None,
    together: bool = True,
) -> Callable[[Function], Function]: ...
@overload
def find_executable_batch_size(
    function: Function,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[[], int] | None = None,
    *,
    reduction: Reduction | None = None,
    minimum_batch_size: int = 1,
    keep_effective_batch: bool = False,
    probe: Function | None = None,
    name: str | None = None,
    together: bool = True,
) -> Function: ...
def find_executable_batch_size(
    function: Function | None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[[], int] | None = None,
    *,
    reduction: Reduction | None = None,
    minimum_batch_size: int = 1,
    keep_effective_batch: bool = False,
    probe: Function | None = None,
    name: str | None = None,
    together: bool = True,
) -> Function:
    """`function`, called with the first batch size that fits into memory on every rank; or, without `function`, its
    decorator.

    The batch size is `function`'s first parameter, and the caller leaves it out. Every rank must call it. When memory
    runs out on one, all leave the try, also from within an operation that waits for that rank, and begin the next one
    with the same size and, where need be, a process group made anew; what `Accelerator`s have prepared in the try is
    let go of. A later call begins with the size that the last one ended with. Each try is an event of the run.

    Args:
        function: takes the batch size first.
        starting_batch_size: tried first; of several, that of the rank that says the smallest.
        reduce_batch_size_fn: gives the next size after one that did not fit.
        reduction: instead of that, "halve", "bisect" (also larger sizes again, until the largest that fits is known to
            3 % of the first one: `function` is called to its end several times, and the value of the largest is kept
            meanwhile), a factor below 1, or a function of the size that failed. None: 0.9.
        minimum_batch_size: nothing below it is tried.
        keep_effective_batch: raise the accumulation steps of every `Accelerator` so that a step has as many samples as
            it had with the first size, to the nearest whole number of steps.
        probe: called before `function` with the same arguments; memory that runs out there ends the try, too. One step
            with the largest batch of the data, for instance.
        name: of the search, in events and messages; None: `function`'s. Two of the same name share what a restart of
            the ranks remembers.
        together: False: this rank searches for itself, whatever the others do. It must then not work together with
            them in `function`.

    ValueError and TypeError for arguments that cannot be. Raises, when called: TypeError when a batch size is passed.
    NoExecutableBatchSize, a RuntimeError, when no smaller size is left. AnotherRankFailed when another rank failed
    otherwise. Any error of `function` that does not say that memory ran out, at once.
    """
    check_reduction(reduction, reduce_batch_size_fn)
    starting_batch_size = whole_number("starting_batch_size", starting_batch_size)
    minimum_batch_size = whole_number("minimum_batch_size", minimum_batch_size)
    settings = Settings(
        reduce_batch_size_fn=reduce_batch_size_fn, reduction=reduction, minimum_batch_size=minimum_batch_size,
        keep_effective_batch=keep_effective_batch, probe=probe, name=name, together=together,
    )  # fmt: skip
    settings.check()

    def decorated(function: Function) -> Function:
        check_function(function, name or name_of(function))
        search = Search(function, starting_batch_size, settings)

        @functools.wraps(function)
        def with_fitting_batch_size(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  those of `function`
            check_left_out(function, search.name, args, kwargs)
            return search.call(args, kwargs)

        return with_fitting_batch_size

    return decorated if function is None else decorated(function)
