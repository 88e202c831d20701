"""What all ranks do equally often without comparing it: micro-batches of a step, passes over data, turns, meetings.

Ranks that a failure or an interrupt has ended in different places are known by these counts, and by their calls of
operations. Such ranks part: what they count goes on from the next epoch, the same on all of them.
"""

from __future__ import annotations

_count = 0
_epoch = 0


def note() -> None:
    """This rank does such a thing. Called by the thread that computes."""
    global _count  # noqa: PLW0603  one per process is the point
    _count += 1


def count() -> int:
    """How often it has; what it did since then tells more than the number."""
    return _count


def begin_epoch(number: int) -> None:
    """The ranks have parted, and meet anew. `number`: higher than before, the same on all ranks."""
    global _epoch  # noqa: PLW0603  likewise
    _epoch = number


def epoch() -> int:
    """0 until the ranks part for the first time."""
    return _epoch
