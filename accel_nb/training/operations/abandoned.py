"""Whether this rank should leave what it waits for, since another one will not come: asked by whatever waits in Python.

A search for a batch size says it while a try is under way, and searches may be nested; every other wait only asks.
"""

from __future__ import annotations

from ...errors import AnotherRankFailed

_reasons: dict[object, str] = {}
"""Of those who want this rank to leave. One per process."""


def leave(whose: object, reason: str) -> None:
    """From now on `check` raises, until `stay` for the same `whose`. Any thread may call this."""
    _reasons[whose] = reason


def stay(whose: object) -> None:
    """`check` returns again, as far as `whose` is concerned."""
    _reasons.pop(whose, None)


def check() -> None:
    """To be called now and then in a wait for other ranks. AnotherRankFailed when it is in vain."""
    for reason in tuple(_reasons.values()):
        raise AnotherRankFailed(reason)
