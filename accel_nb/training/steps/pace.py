"""How many batches one optimizer step takes, as it is seen.

Not what was asked for: a loop may cut its batches into pieces, or add up gradients by hand. So it is counted how many
batches of the active loader go by from one optimizer step to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..data.prepared import PreparedLoader

MAX_STEPS_WATCHED = 10
"""After that many, what was not seen is left out: passes may have too few steps."""


@dataclass(frozen=True)
class _Look:
    """Where a loop was in a backward."""

    pass_token: object
    num_batches: int
    num_steps: int
    num_of_all: int

    def begins_after(self, before: _Look) -> bool:
        """Whether a new batch was begun after a step that came since the look `before`: a step ended with a batch."""
        is_same_pass = self.pass_token is before.pass_token
        return is_same_pass and self.num_batches > before.num_batches and self.num_of_all > before.num_of_all


class Pace:
    """Of one optimizer: how many batches each of its steps takes."""

    def __init__(self) -> None:
        self._newest: _Look | None = None
        self._first: _Look | None = None
        """The first that began all data, or a batch after a step."""
        self.batches_per_step: int | None = None
        """None: not seen, or steps and batches do not go together."""
        self.is_known = False
        """No more is to be seen."""

    def look(self, loader: PreparedLoader | None, num_steps: int, num_of_all: int) -> None:
        """Called in each backward, until `is_known`. `num_steps`: steps of the optimizer so far; `num_of_all`: those of
        the others of the loop, too.
        """
        if num_steps and (loader is None or num_steps >= MAX_STEPS_WATCHED):
            self.is_known = True
        if loader is None or self.is_known:
            return
        before = self._newest
        self._newest = now = _Look(loader.pass_token, loader.num_batches_given, num_steps, num_of_all)
        if before is None:
            self._first = now if now.num_batches == 1 and not num_of_all else None
            return
        if not now.begins_after(before):
            return
        first = self._first
        if first is None or not (now.begins_after(first) and now.num_steps > first.num_steps):
            self._first = now
            return
        num_batches, rest = divmod(now.num_batches - first.num_batches, now.num_steps - first.num_steps)
        self.batches_per_step = num_batches if num_batches and not rest else None
        self.is_known = True
