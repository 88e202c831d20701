"""A flag that any rank can raise and all see at the same step, as for stopping early."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..operations.transport import Collectives


class Trigger:
    """Raised by one rank or several, seen by all at the next `check`, which lowers it."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """On this rank alone; tells nobody yet. More often than once is once."""
        self._is_set = True

    def state_dict(self) -> dict[str, bool]:
        """Whether this rank has raised it."""
        return {"is_set": self._is_set}

    def load_state_dict(self, state_dict: Mapping[str, bool]) -> None:
        self._is_set = state_dict["is_set"]

    def check(self, ranks: Collectives) -> bool:
        """Whether any rank has raised the flag since the last check. Every rank must call this."""
        seen: torch.Tensor = ranks.reduce(torch.tensor(self._is_set), "max", 1.0)
        self._is_set = False
        return bool(seen.item())
