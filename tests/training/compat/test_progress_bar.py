"""A progress bar on one rank of each machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from accel_nb.training.compat.progress_bar import tqdm

RunRanks = Callable[..., list[Any]]


def bars() -> list[bool]:
    made = [tqdm(range(2)), tqdm(range(2), main_process_only=False), tqdm(range(2), disable=True)]
    disabled = [bar.disable for bar in made]
    for bar in made:
        bar.close()
    return disabled


def test_only_the_first_rank_shows_it_unless_told_otherwise(run_ranks: RunRanks) -> None:
    assert run_ranks(bars, 2) == [[False, False, True], [True, False, True]]


def test_the_switch_of_earlier_versions_is_refused() -> None:
    with pytest.raises(ValueError, match="say main_process_only=False by name"):
        tqdm(False, range(2))
