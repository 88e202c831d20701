from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from accel_nb.errors import CheckpointNotFound, InvalidArgument, TrainingError
from accel_nb.training.checkpoints.model_files import load_checkpoint_in_model, save_model, size_in_bytes, split


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 5), nn.Linear(5, 1))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("safe", [True, False])
def test_a_small_model_is_one_file(tmp_path: Path, safe: bool) -> None:
    save_model(model().state_dict(), tmp_path / "m", "10GB", safe=safe)

    assert files(tmp_path / "m") == ["model.safetensors" if safe else "pytorch_model.bin"]


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("max_shard_size", [20, 100, "0.1KB", 200, 10_000])
def test_shards_and_index_are_those_of_upstream(tmp_path: Path, safe: bool, max_shard_size: int | str) -> None:
    from accelerate import Accelerator as UpstreamAccelerator
    from accelerate.state import AcceleratorState

    UpstreamAccelerator(cpu=True).save_model(
        model(), tmp_path / "theirs", 100 if max_shard_size == "0.1KB" else max_shard_size, safe_serialization=safe
    )
    AcceleratorState._reset_state(reset_partial_state=True)
    save_model(model().state_dict(), tmp_path / "ours", max_shard_size, safe=safe)

    assert files(tmp_path / "ours") == files(tmp_path / "theirs")
    for index in (tmp_path / "ours").glob("*.index.json"):
        ours, theirs = json.loads(index.read_text()), json.loads((tmp_path / "theirs" / index.name).read_text())
        assert ours["weight_map"] == theirs["weight_map"]
        assert ours["metadata"]["total_size"] == theirs["metadata"]["total_size"]


@pytest.mark.parametrize("safe", [True, False])
def test_upstream_loads_the_shards(tmp_path: Path, safe: bool) -> None:
    from accelerate.utils.modeling import load_checkpoint_in_model

    saved, other = model(), nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 5), nn.Linear(5, 1))
    save_model(saved.state_dict(), tmp_path, 100, safe=safe)

    load_checkpoint_in_model(other, str(tmp_path))

    assert all(map(torch.equal, saved.state_dict().values(), other.state_dict().values()))


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("max_shard_size", [100, "1GB"])
def test_what_was_saved_is_loaded(tmp_path: Path, safe: bool, max_shard_size: int | str) -> None:
    saved, other = model(), nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 5), nn.Linear(5, 1))
    save_model(saved.state_dict(), tmp_path, max_shard_size, safe=safe)

    load_checkpoint_in_model(other, tmp_path, strict=True)

    assert all(map(torch.equal, saved.state_dict().values(), other.state_dict().values()))


def test_a_dtype_is_for_numbers_with_a_point(tmp_path: Path) -> None:
    save_model(model().state_dict(), tmp_path, "1GB", safe=True)
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 5), nn.Linear(5, 1))

    load_checkpoint_in_model(other, tmp_path / "model.safetensors", dtype="bfloat16")

    weight = model().state_dict()["0.weight"]
    assert torch.equal(other.state_dict()["0.weight"], weight.bfloat16().float())


def test_where_no_model_is_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match=r"there is no model in .*: none of model\.safetensors, model\.safe"):
        load_checkpoint_in_model(model(), tmp_path)
    with pytest.raises(CheckpointNotFound, match=r"there is no file .*other\.bin to load a model from"):
        load_checkpoint_in_model(model(), tmp_path / "other.bin")


def test_models_are_not_spread_over_devices(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"load_checkpoint_in_model\(device_map=.auto., offload_folder=.x.\)"):
        load_checkpoint_in_model(model(), tmp_path, device_map="auto", offload_folder="x")  # type: ignore[arg-type]


def test_shards_of_an_earlier_save_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_model(model().state_dict(), tmp_path, 20, safe=True)

    save_model(model().state_dict(), tmp_path, "1GB", safe=True)

    assert files(tmp_path) == ["config.json", "model.safetensors"]


def test_names_of_one_memory_stay_together() -> None:
    shared = torch.ones(4)

    shards = split({"a": shared, "b": torch.ones(4), "c": shared, "d": torch.ones(40)}, 16)

    assert [list(shard.tensors) for shard in shards] == [["a", "c"], ["d"], ["b"]]


@pytest.mark.parametrize(
    ("size", "expected"), [(5, 5), ("5", 5), ("10GB", 10**10), ("1.5 kb", 1500), ("2MiB", 2**21), ("1TB", 10**12)]
)
def test_sizes(size: int | str, expected: int) -> None:
    assert size_in_bytes(size) == expected


@pytest.mark.parametrize("size", [0, "0GB", "ten", "5XB", -1, ""])
def test_what_is_no_size_is_refused(size: int | str) -> None:
    with pytest.raises(InvalidArgument, match=r"max_shard_size=.* is no size; give bytes, or a number with B, KB, MB"):
        size_in_bytes(size)


def test_a_file_is_no_folder_for_a_model(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("")

    with pytest.raises(InvalidArgument, match=r"save_directory='.*m' is a file; give a folder\."):
        save_model(model().state_dict(), tmp_path / "m", "1GB", safe=True)


def test_tensors_without_data_are_refused(tmp_path: Path) -> None:
    state = nn.Linear(2, 2, device="meta").state_dict()

    with pytest.raises(TrainingError, match=r"'weight' and 1 other tensors are on the meta device"):
        save_model(state, tmp_path, "1GB", safe=True)
