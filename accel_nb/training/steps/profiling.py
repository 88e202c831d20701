"""Record what a rank does, with ``torch.profiler``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ..ranks.rank_member import RankMember
from ..settings import ProfileKwargs

PROFILE_PATTERN_NAME = "profile_{suffix}.json"
"""Of a trace in the folder; upstream's (accelerate 1.15, ``utils/constants.py``)."""


@contextmanager
def profiled(rank: RankMember, settings: ProfileKwargs) -> Iterator[torch.profiler.profile]:
    """Record the block. Afterwards each rank's trace lies in ``settings.output_trace_dir``, if that is given, and every
    rank has written its own. Every rank must enter it then.
    """
    with settings.build() as profiler:
        yield profiler
    if settings.output_trace_dir is None:
        return
    folder = Path(settings.output_trace_dir)
    folder.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(folder / PROFILE_PATTERN_NAME.format(suffix=rank.process_index)))
    rank.wait_for_everyone()
