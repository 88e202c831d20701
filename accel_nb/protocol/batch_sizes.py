"""What a run has learned of batch sizes that do not fit, handed from one start of its ranks to the next."""

from __future__ import annotations

import msgspec


class SearchHistory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of all searches of a run."""

    failed: dict[str, tuple[int, ...]] = {}
    """Name of the search -> sizes that did not fit, in the order in which they failed."""
    died: tuple[str, ...] = ()
    """Searches in whose tries a rank's process has died, which counts as "does not fit" once."""
    restarts: int = 0
    """How often the ranks were started again because of that: these are none of the user's `max_restarts`."""
