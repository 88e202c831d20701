"""What ranks are told that called operations of all ranks which do not fit together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..errors import DistributedOperationException
from . import sink
from .events import CollectiveMismatch

TORCHS_HOME = "torch.distributed"
"""How the names of plain torch's operations begin; all others are ours, or made by `verify_operation`."""

_TO_DO = (
    "Nothing was sent. Bring tensors to one length with pad_across_processes, or gather values of any kind with "
    "gather_object."
)
_TO_DO_WITH_TORCHS = "Give the same number of elements and the same dtype on all ranks."


def mismatch(
    names: Sequence[str], given: Sequence[str], places: Sequence[str] = (), *, reports: bool
) -> DistributedOperationException:
    """The error to raise on every rank.

    `names`, `given`: the dotted name of what each rank called, and what with, by rank; an empty name: it has called
    nothing. `places`: the user's lines, by rank; empty where they are not known. `reports`: whether this rank reports
    it as an event, which one of them does.
    """
    if reports:
        sink.emit(CollectiveMismatch(operations=tuple(names), given=tuple(given), places=tuple(places)))
    tails = [f" ({place})" if place else "" for place in places or [""] * len(names)]
    called = sorted({name for name in names if name})
    if len(called) > 1:
        calls = [f"{name}({one})" if name else "none yet" for name, one in zip(names, given, strict=True)]
        lines = [f"  rank {index}: {call}{tail}" for index, (call, tail) in enumerate(zip(calls, tails, strict=True))]
        what = "the ranks called different operations. All of them have to call the same one, in the same order:"
        return _error("\n".join([what, *lines]), names, given)
    texts = [one if name else "has not called it yet" for name, one in zip(names, given, strict=True)]
    lines = [f"  rank {index}: {text}{tail}" for index, (text, tail) in enumerate(zip(texts, tails, strict=True))]
    what = f"{called[0]} needs the same structure, shapes and dtypes on all ranks, but was given:"
    todo = _TO_DO_WITH_TORCHS if called[0].startswith(TORCHS_HOME) else _TO_DO
    return _error("\n".join([what, *lines, todo]), names, given)


def differing(names: Sequence[str], given: Sequence[str]) -> tuple[int, ...]:
    """The ranks whose calls were not those of more than half of all; empty: no call has such a majority."""
    calls = list(zip(names, given, strict=True))
    usual, count = Counter(calls).most_common(1)[0]
    return tuple(rank for rank, call in enumerate(calls) if call != usual) if count * 2 > len(calls) else ()


def _error(text: str, names: Sequence[str], given: Sequence[str]) -> DistributedOperationException:
    error = DistributedOperationException(text)
    error.differing = differing(names, given)
    return error
