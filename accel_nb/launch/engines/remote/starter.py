"""What an engine has to say about the agents that it has started: are they alive, why not, and how they are ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class AgentStarter(Protocol):
    """Of one attempt. Used by the thread that joins the keepers; `close` is the last call."""

    def fd(self) -> int:
        """A descriptor that becomes readable when `gone` may have something new; -1: there is none."""

    def gone(self) -> Mapping[int, str]:
        """Seats whose agents have ended or will never come, as far as the engine knows, each with a sentence why; with
        an empty one when there is nothing to say. Called often: cheap.
        """

    def evidence(self, seat: int) -> str:
        """What the engine knows about the end, or the absence, of that agent, as sentences; empty: nothing."""

    def seat_text(self, seat: int) -> str:
        """For people: ``rank 2 on host b``, ``node 1``."""

    def replaces(self, seat: int) -> bool:
        """Whether another attempt of the run has a new agent in place of that one, if it is lost."""

    def kill(self) -> None:
        """End all agents now, whatever they do."""

    def close(self) -> None:
        """Give back what is held, and wait for what was started here: all agents have ended, or are given up."""
