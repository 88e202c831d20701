"""What comes back of a run, asked for once and again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accel_nb.errors import ResultError, StartError
from accel_nb.launch.result import RunResult

from .census import until_up
from .launching import launch, start
from .lifecycle_code import goes_on_when, own_pid
from .test_channel import no_free_descriptors


class LoadsOnRanksOnly:
    """A value that the kernel cannot load."""

    def __reduce__(self) -> tuple[object, ...]:
        return _loaded, ()


def _loaded() -> LoadsOnRanksOnly:
    if "RANK" not in os.environ:
        raise ValueError("there is no rank here")
    return LoadsOnRanksOnly()


def rank_1_returns_it() -> object:
    return LoadsOnRanksOnly() if os.environ["RANK"] == "1" else 5


def test_a_value_that_cannot_be_loaded_is_told_each_time_it_is_asked_for() -> None:
    run = launch(rank_1_returns_it).run

    with pytest.raises(ResultError, match=r"^Rank 1: .*ValueError: there is no rank here") as first:
        run.result(0)
    with pytest.raises(ResultError) as second:
        run.result(0)

    assert second.value is first.value
    assert run.status == "finished"
    assert run.logs(1) == ""


def test_values_are_loaded_once() -> None:
    run = launch(own_pid).run

    assert isinstance(run.result(), RunResult)
    assert run.result() is run.result()


def test_a_kernel_without_free_descriptors_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    run = until_up(start(goes_on_when, str(tmp_path / "go")))

    with no_free_descriptors():
        # With no number left, not even this file could be opened.
        (tmp_path / "go").mkdir()
        over = run.wait(60)

    assert over
    assert run.status == "failed"
    with pytest.raises(StartError, match=r"This process has no free file descriptors for what ranks send"):
        run.result()
    assert len(set(launch(own_pid).values)) == 2
