"""The random generators of one rank, as upstream's ``random_states_{rank}.pkl`` (accelerate 1.15) holds them."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch

from ..ranks import placement


def collect(step: int, device: torch.device) -> dict[str, Any]:
    """States of Python's, NumPy's, torch's and the accelerator's generators, and `step`, which upstream keeps here."""
    states: dict[str, Any] = {"step": step, "random_state": random.getstate()}
    states["torch_manual_seed"] = torch.get_rng_state()
    try:
        import numpy as np
    except ImportError:  # torch can do without it
        pass
    else:
        states["numpy_random_seed"] = np.random.get_state()  # noqa: NPY002  what users' augmentation draws from
    return states | placement.accelerator_random_states(device)


def restore(states: dict[str, Any], device: torch.device) -> None:
    random.setstate(states["random_state"])
    if "numpy_random_seed" in states:
        import numpy as np

        np.random.set_state(states["numpy_random_seed"])  # noqa: NPY002  see `collect`
    torch.set_rng_state(states["torch_manual_seed"].cpu())
    placement.restore_accelerator_random_states(states, device)


def derive(states: dict[str, Any], rank: int) -> None:
    """Start generators for a rank that the saved run did not have: always the same ones for the same checkpoint, and
    others than any rank's.
    """
    origin = states["torch_manual_seed"].cpu().contiguous().numpy().tobytes()
    seed = int.from_bytes(hashlib.sha256(origin + rank.to_bytes(8)).digest()[:8]) % 2**63
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    torch.manual_seed(seed)
