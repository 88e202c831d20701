"""tqdm on one rank of each machine."""

from __future__ import annotations

from typing import Any

from ...errors import TrainingError
from ..ranks.state import PartialState


def tqdm(*args: Any, main_process_only: bool = True, **kwargs: Any) -> Any:  # noqa: ANN401  tqdm's
    """``tqdm.auto.tqdm(*args, **kwargs)``, shown on the first rank of each machine only, unless told otherwise.

    TrainingError when tqdm is not installed; ValueError when the first argument is a bool, which was the switch of
    earlier versions of Accelerate.
    """
    try:
        from tqdm.auto import tqdm as bar
    except ImportError:
        raise TrainingError("the progress bar needs tqdm: `pip install tqdm`.") from None
    if args and isinstance(args[0], bool):
        raise ValueError(f"tqdm({args[0]!r}, ...) is not possible: say main_process_only={args[0]!r} by name.")
    disable = kwargs.pop("disable", False) or (main_process_only and not PartialState().is_local_main_process)
    return bar(*args, disable=disable, **kwargs)
