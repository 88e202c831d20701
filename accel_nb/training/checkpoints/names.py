"""Names of the files in a checkpoint. Those that upstream writes, too, have its names (accelerate 1.15,
``utils/constants.py``), so that checkpoints move between the libraries.
"""

from __future__ import annotations

import re

MODEL_NAME = "pytorch_model"
SAFE_MODEL_NAME = "model"
OPTIMIZER_NAME = "optimizer"
SCHEDULER_NAME = "scheduler"
SAMPLER_NAME = "sampler"
RNG_STATE_NAME = "random_states"
SCALER_NAME = "scaler.pt"
WEIGHTS_NAME = f"{MODEL_NAME}.bin"
WEIGHTS_PATTERN_NAME = "pytorch_model{suffix}.bin"
WEIGHTS_INDEX_NAME = f"{WEIGHTS_NAME}.index.json"
SAFE_WEIGHTS_NAME = f"{SAFE_MODEL_NAME}.safetensors"
SAFE_WEIGHTS_PATTERN_NAME = "model{suffix}.safetensors"
SAFE_WEIGHTS_INDEX_NAME = f"{SAFE_WEIGHTS_NAME}.index.json"

MANIFEST_NAME = "accel_nb_manifest.json"
"""Ours: what the checkpoint consists of. Written last."""

_OWN = re.compile(
    r"(model|pytorch_model|optimizer|scheduler|sampler|dl_state_dict)(_\d+)?\.(bin|safetensors)|scaler\.pt"
    r"|(random_states|progress|gradients)_\d+\.(pkl|bin)|custom_checkpoint_\d+\.pkl|accel_nb_manifest\.json"
)


def weights(index: int, *, safe: bool) -> str:
    return _numbered(SAFE_MODEL_NAME if safe else MODEL_NAME, index, "safetensors" if safe else "bin")


def optimizer(index: int) -> str:
    return _numbered(OPTIMIZER_NAME, index, "bin")


def scheduler(index: int) -> str:
    return _numbered(SCHEDULER_NAME, index, "bin")


def custom(index: int) -> str:
    return f"custom_checkpoint_{index}.pkl"


def random_states(rank: int) -> str:
    return f"{RNG_STATE_NAME}_{rank}.pkl"


def progress(rank: int) -> str:
    """Ours: where the rank stands, such as the positions of its loaders."""
    return f"progress_{rank}.bin"


def gradients(rank: int) -> str:
    """Ours: what has accumulated so far; missing where there is nothing."""
    return f"gradients_{rank}.bin"


def belongs_to_checkpoints(name: str) -> bool:
    """Whether a file called so is part of a checkpoint, ours or upstream's, rather than the user's own."""
    return _OWN.fullmatch(name) is not None


def _numbered(stem: str, index: int, suffix: str) -> str:
    """As upstream: the first has no number."""
    return f"{stem}_{index}.{suffix}" if index else f"{stem}.{suffix}"
