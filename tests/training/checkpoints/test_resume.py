from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from .training_run import Case, train

RunRanks = Callable[..., list[Any]]


def interrupted_and_resumed(case: Case, project: Path, save_after: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """One process: an uninterrupted run, and one in two parts that begins on other random numbers each time."""
    whole = train(case, project / "unused")
    first = train(case, project, save_after=save_after)
    torch.manual_seed(999)
    second = train(case, project, resume=True)
    return whole, {**second, "steps": first["steps"] + second["steps"]}


def assert_same(whole: dict[str, Any], joined: dict[str, Any]) -> None:
    assert [step[0] for step in joined["steps"]] == [step[0] for step in whole["steps"]]
    assert joined["steps"] == whole["steps"]
    assert all(map(torch.equal, joined["weights"], whole["weights"]))
    assert joined["after"] == whole["after"]


# 22 samples in batches of 2 are 11 batches: 3 is in the middle of an epoch and of a step, 4 of an epoch, 11 its end.
@pytest.mark.parametrize("save_after", [3, 4, 10, 11, 14])
def test_c01_one_process_goes_on_to_the_bit(tmp_path: Path, save_after: int) -> None:
    whole, joined = interrupted_and_resumed(Case(), tmp_path, save_after)

    assert len(whole["steps"]) == 33
    assert_same(whole, joined)


CASES = {
    "shuffled": Case(),
    "seedable": Case(settings=(("use_seedable_sampler", True),)),
    "split": Case(batch_size=4, settings=(("split_batches", True),)),
    "workers": Case(num_workers=1),
    "bf16": Case(mixed_precision="bf16"),
    "stream dispatched": Case(is_stream=True),
    "stream sharded": Case(is_stream=True, settings=(("dispatch_batches", False),)),
    "map dispatched": Case(settings=(("dispatch_batches", True),)),
    "stateful": Case(settings=(("use_stateful_dataloader", True),)),
    "stateful stream": Case(is_stream=True, settings=(("use_stateful_dataloader", True),)),
}


# With 2 ranks an epoch has 6 micro-batches, or 5 or 6 of a stream: 3 is in the middle of a step.
@pytest.mark.parametrize("save_after", [3, 4])
@pytest.mark.parametrize("name", CASES)
def test_c01_two_ranks_go_on_to_the_bit(run_ranks: RunRanks, tmp_path: Path, name: str, save_after: int) -> None:
    case = CASES[name]
    if name.startswith("stateful"):
        pytest.importorskip("torchdata.stateful_dataloader")

    whole = run_ranks(lambda: train(case, tmp_path / "unused"), 2)
    first = run_ranks(lambda: train(case, tmp_path, save_after=save_after), 2)
    second = run_ranks(lambda: train(case, tmp_path, resume=True), 2)

    for rank in range(2):
        assert_same(whole[rank], {**second[rank], "steps": first[rank]["steps"] + second[rank]["steps"]})
    assert len(first[0]["steps"]) == save_after


def test_c01_epoch_end_on_two_ranks(run_ranks: RunRanks, tmp_path: Path) -> None:
    whole = run_ranks(lambda: train(Case(), tmp_path / "unused"), 2)
    first = run_ranks(lambda: train(Case(), tmp_path, save_after=6), 2)
    second = run_ranks(lambda: train(Case(), tmp_path, resume=True), 2)

    for rank in range(2):
        assert_same(whole[rank], {**second[rank], "steps": first[rank]["steps"] + second[rank]["steps"]})
