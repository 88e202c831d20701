"""What a run gives back: the ranks' return values, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, overload

from ..protocol.failure import RankFailure

Value = TypeVar("Value")
_SHOWN_CHARS = 200


class RunResult(Sequence[Value]):
    """The values by rank; with ``returns="main"`` only rank 0's. In a notebook nothing is shown when all are None."""

    def __init__(self, values: Sequence[Value], duration_s: float, failures: tuple[RankFailure, ...] = ()) -> None:
        self._values = tuple(values)
        self.duration_s = duration_s
        self.failures = failures
        """Empty, unless the run failed and was asked for with ``on_failure="return"``; then the cause is first."""

    @property
    def main(self) -> Value:
        """What rank 0 returned."""
        return self._values[0]

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, index: int) -> Value: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Value]: ...
    def __getitem__(self, index: int | slice) -> Value | Sequence[Value]:
        return self._values[index]

    def __repr__(self) -> str:
        text = " ".join(repr(list(self._values)).split())
        if len(text) > _SHOWN_CHARS:
            text = f"{text[:_SHOWN_CHARS]}..."
        return f"RunResult({text}, {self.duration_s:.1f} s{', failed' if self.failures else ''})"

    def _ipython_display_(self) -> None:
        """Show nothing for nothing. IPython takes NotImplementedError as "use the ordinary repr"."""
        if self.failures or any(value is not None for value in self._values):
            raise NotImplementedError
