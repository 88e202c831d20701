"""One low-level message that is known, and sentences that several of them share."""

from __future__ import annotations

from collections.abc import Callable
from re import Match
from typing import NamedTuple

from ...protocol.failure import Explanation


class Known(NamedTuple):
    """One known cause."""

    name: str
    """For tests and documents: which entry it is."""
    pattern: str
    """A regular expression that is searched in a message, upper and lower case alike; ``.`` is no end of a line."""
    meaning: str
    """One sentence: what has happened."""
    remedy: str
    """One sentence: what to do."""
    particulars: Callable[[Match[str]], str] | None = None
    """What the message itself says, made readable: a sentence, or nothing; out of what `pattern` has found."""

    def found(self, match: Match[str]) -> Known:
        """The same of one message."""
        said = self.particulars(match) if self.particulars else ""
        return self._replace(meaning=f"{self.meaning} {said}") if said else self

    def of_earlier(self, type_name: str) -> Known:
        """The same of an exception that came before the one that is told: it may, or may not, be the reason."""
        return self._replace(meaning=f"About the {type_name} that came first: {self.meaning}")

    @property
    def explanation(self) -> Explanation:
        return Explanation(meaning=self.meaning, remedy=self.remedy)


SAME_CALLS = (
    "Let every rank call the same operations in the same order with the same shapes: checks (debug=True) name the line "
    "where ranks part, accelerator.pad_across_processes makes shapes equal."
)
MORE_SHARED_MEMORY = (
    "Give the container more (docker run --shm-size=8g or --ipc=host; in Kubernetes an emptyDir of medium Memory at "
    "/dev/shm)"
)
FIND_LINE = "Launch with env={'CUDA_LAUNCH_BLOCKING': '1'}, so that the traceback ends at the guilty line"
