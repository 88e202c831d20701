"""What every try of a search begins with, so that it gives what a search that began with its batch size would give."""

from __future__ import annotations

import torch

from ..checkpoints import random_states
from ..ranks import randomness
from ..ranks.state import AcceleratorState, existing_facts, is_initialized


class Conditions:
    """Random numbers as they were when the search began.

    Ranks leave a try at different points. Without this they would go on with different numbers: another
    ``random_split`` on each, for instance. The generator of an accelerator is among them when a state was made before.
    """

    def __init__(self) -> None:
        facts = existing_facts()
        self._device = torch.device("cpu") if facts is None else facts.device
        self._generators = random_states.collect(0, self._device)
        self._seeding = randomness.last_seeding()
        self._noise_is_separate = is_initialized() and AcceleratorState().noise_is_separate

    def restore(self) -> None:
        random_states.restore(self._generators, self._device)
        randomness.restore_seeding(self._seeding)
        if is_initialized():
            AcceleratorState().noise_is_separate = self._noise_is_separate
