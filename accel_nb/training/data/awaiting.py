"""Waiting for a loader's next batch, noted in the ledger of a launch: others may wait for this rank meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...protocol import ledger
from ...protocol.places import users_place


def next_batch(batches: Iterator[Any], end: object) -> Any:  # noqa: ANN401  the user's
    """What `batches` give next; `end` when they are over."""
    own = ledger.own()
    if own is None or not own.may_write:
        return next(batches, end)
    with own.activity("next batch", *users_place(), counts_as_own=True):
        return next(batches, end)
