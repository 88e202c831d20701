"""Gives memory back."""

from __future__ import annotations

import gc

from ..ranks import placement


def clear_device_cache(garbage_collection: bool = False) -> None:
    """Give memory that torch keeps for later back to the device. `garbage_collection`: also what only cycles hold."""
    if garbage_collection:
        gc.collect()
    placement.empty_cache()


def release_memory(*objects: object) -> list[None]:
    """Give memory back and return as many times None as there are `objects`, to be assigned to their names:
    ``model, batch = release_memory(model, batch)``. The objects themselves live until that assignment.
    """
    clear_device_cache(garbage_collection=True)
    return [None] * len(objects)
