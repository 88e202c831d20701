"""Where code inside a rank reports events: nowhere, until a launcher gives a destination."""

from __future__ import annotations

from collections.abc import Callable

from .events import RunEvent

_destination: Callable[[RunEvent], None] | None = None


def emit(event: RunEvent) -> None:
    """Report `event`. Any thread of a rank may call it; outside a launch it does nothing."""
    if _destination is not None:
        _destination(event)


def deliver_to(destination: Callable[[RunEvent], None] | None) -> None:
    """Send what is emitted from now on to `destination`. Called once by the launcher, in the rank."""
    global _destination  # noqa: PLW0603  one slot per process is the point
    _destination = destination


def is_open() -> bool:
    """Whether this process is a rank of a run."""
    return _destination is not None
