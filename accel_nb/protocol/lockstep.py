"""What is alike on ranks in step, though no operation compares it: how often they took turns, where a step stands.

Ranks that a failure or an interrupt has ended in different places are known by it, and by their calls of operations.
Such ranks part: what they count begins anew in the next epoch, the same on all of them.
"""

from __future__ import annotations

_counts: dict[str, int] = {}
_places: dict[str, int] = {}
_epoch = 0


def note(name: str) -> None:
    """This rank does `name` once more, which all do equally often. Called by the thread that computes, as all here."""
    _counts[name] = _counts.get(name, 0) + 1


def stand_at(name: str, place: int) -> None:
    """Where this rank stands in `name`; 0: at its beginning."""
    _places[name] = place


def counted() -> str:
    """What this rank has noted."""
    return _text(_counts)


def standing() -> str:
    """That, and where it stands: alike on ranks in step."""
    return f"{_text(_counts)}; {_text(_places)}"


def count_anew() -> None:
    """All ranks begin to count together."""
    _counts.clear()


def begin_epoch(number: int) -> None:
    """The ranks have parted, and meet anew. `number`: higher than before, the same on all ranks."""
    global _epoch  # noqa: PLW0603  one per process is the point
    _epoch = number
    _counts.clear()
    _places.clear()


def epoch() -> int:
    """0 until the ranks part for the first time."""
    return _epoch


def _text(numbers: dict[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(numbers.items()) if number)
