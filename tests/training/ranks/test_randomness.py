from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from accel_nb.training.accelerator import Accelerator
from accel_nb.training.choices import RNGType
from accel_nb.training.ranks.randomness import set_seed, synchronize_rng_state, synchronize_rng_states
from accel_nb.training.ranks.state import PartialState

from ..examples import Numbers, small_model

RunRanks = Callable[..., list[Any]]


def noise() -> tuple[object, ...]:
    return tuple(torch.rand(3).tolist()), random.random(), float(np.random.random())  # noqa: NPY002


def streams(device_specific: bool | None) -> dict[str, Any]:
    accelerator = Accelerator()
    set_seed(7, device_specific)
    before = noise()
    split = torch.randperm(5).tolist()
    loader, _ = accelerator.prepare(DataLoader(Numbers(8), 2, shuffle=True, collate_fn=list), small_model())
    epochs = [[index for batch in loader for index in batch] for _ in range(2)]
    return {"before": before, "split": split, "epochs": epochs, "after": noise(), "dropout": torch.rand(3).tolist()}


def test_g01_data_order_is_shared_and_noise_is_each_ranks_own(run_ranks: RunRanks) -> None:
    first, second = run_ranks(streams, 2, None)
    again = run_ranks(streams, 2, None)

    assert [first, second] == again
    assert first["before"] == second["before"]
    assert first["split"] == second["split"]
    for ours, theirs in zip(first["epochs"], second["epochs"], strict=True):
        assert sorted(ours + theirs) == list(range(8))
    for ours, theirs in zip(first["after"], second["after"], strict=True):
        assert ours != theirs
    assert first["dropout"] != second["dropout"]


def test_g01_noise_is_alike_when_asked_for(run_ranks: RunRanks) -> None:
    first, second = run_ranks(streams, 2, False)

    assert first["after"] == second["after"]
    assert first["dropout"] == second["dropout"]


def test_g01_noise_differs_at_once_when_asked_for(run_ranks: RunRanks) -> None:
    first, second = run_ranks(streams, 2, True)

    assert first["before"] != second["before"]
    for ours, theirs in zip(first["epochs"], second["epochs"], strict=True):
        assert sorted(ours + theirs) == list(range(8))


def seeded_twice(reads: bool) -> dict[str, Any]:
    accelerator = Accelerator()
    loader, _ = accelerator.prepare(DataLoader(Numbers(8), 2, shuffle=True, collate_fn=list), small_model())
    set_seed(7)
    split = torch.randperm(5).tolist()
    weights = [parameter.tolist() for parameter in small_model().parameters()]
    if reads:
        read = [index for batch in loader for index in batch]
    else:
        accelerator.prepare(small_model())
        read = []
    return {"alike": (split, weights), "read": read, "after": noise()}


@pytest.mark.parametrize("reads", [True, False])
def test_g01_a_second_seed_makes_ranks_alike_until_training_begins_again(run_ranks: RunRanks, reads: bool) -> None:
    first, second = run_ranks(seeded_twice, 2, reads)

    assert [first, second] == run_ranks(seeded_twice, 2, reads)
    assert first["alike"] == second["alike"]
    assert sorted(first["read"] + second["read"]) == (list(range(8)) if reads else [])
    for ours, theirs in zip(first["after"], second["after"], strict=True):
        assert ours != theirs


def noise_after_torchs_own_seed() -> list[Any]:
    accelerator = Accelerator()
    model = small_model()
    torch.manual_seed(5)
    before = torch.rand(2).tolist()
    accelerator.prepare(model)
    return [before, torch.rand(2).tolist()]


def test_g01_noise_is_each_ranks_own_after_torchs_own_manual_seed(run_ranks: RunRanks) -> None:
    first, second = run_ranks(noise_after_torchs_own_seed, 2)

    assert first[0] == second[0]
    assert first[1] != second[1]
    assert [first, second] == run_ranks(noise_after_torchs_own_seed, 2)


def ranks_own_streams() -> tuple[int, int]:
    Accelerator()
    torch.manual_seed(PartialState().process_index + 40)
    expected = torch.initial_seed()
    model = torch.nn.Linear(1, 1)
    Accelerator().prepare(model)
    return expected, torch.initial_seed()


def test_streams_that_differ_already_are_left_alone(run_ranks: RunRanks) -> None:
    assert run_ranks(ranks_own_streams, 2) == [(40, 40), (41, 41)]


def test_one_process_goes_on_with_its_stream_after_prepare() -> None:
    model = small_model()
    set_seed(3)
    expected = torch.rand(2)

    set_seed(3)
    Accelerator(cpu=True).prepare(model)

    assert torch.equal(torch.rand(2), expected)


def synchronised() -> tuple[object, ...]:
    rank = PartialState().process_index
    torch.manual_seed(rank)
    generator = torch.Generator().manual_seed(rank)
    synchronize_rng_states(["torch", "generator", "cuda"], generator)
    synchronize_rng_states(["generator"])
    return torch.rand(2).tolist(), torch.rand(2, generator=generator).tolist()


def test_synchronised_generators_are_those_of_the_main_process(run_ranks: RunRanks) -> None:
    expected = torch.rand(2, generator=torch.Generator().manual_seed(0)).tolist()

    assert run_ranks(synchronised, 2) == [(expected, expected)] * 2


def test_an_unknown_generator_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rng_types holds 'npu'; known are 'torch', 'cuda', .*'generator'"):
        synchronize_rng_states(["npu"])


def deterministic() -> bool:
    set_seed(1, deterministic=True)
    return torch.are_deterministic_algorithms_enabled()


def test_deterministic_algorithms_are_asked_of_torch(run_ranks: RunRanks) -> None:
    assert run_ranks(deterministic, 1) == [True]


def one_synchronised() -> list[float]:
    generator = torch.Generator().manual_seed(PartialState().process_index)
    synchronize_rng_state(RNGType.GENERATOR, generator)
    return list(torch.rand(2, generator=generator).tolist())


def test_one_generator_is_synchronised_by_its_upstream_name(run_ranks: RunRanks) -> None:
    expected = torch.rand(2, generator=torch.Generator().manual_seed(0)).tolist()

    assert run_ranks(one_synchronised, 2) == [expected] * 2


def test_synchronising_no_generator_is_refused() -> None:
    PartialState(cpu=True)

    with pytest.raises(ValueError, match="needs generator="):
        synchronize_rng_state("generator")
    with pytest.raises(ValueError, match="rng_types holds 'npu'"):
        synchronize_rng_state(RNGType.NPU)
