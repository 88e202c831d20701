"""Files of tensors, written whole and read without running code."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from accel_nb.errors import CheckpointError, TrainingError
from accel_nb.training.checkpoints.saving import clean_state_dict_for_safetensors, load, load_state_dict, save
from accel_nb.training.ranks.state import PartialState


class OwnClass:
    pass


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    return model


def test_tensors_arrays_and_plain_values_are_loaded_where_they_are_wanted(tmp_path: Path) -> None:
    PartialState(cpu=True)
    file = io.BytesIO()

    save({"x": torch.ones(2), "y": np.ones(1), "z": 3}, tmp_path / "values")
    save({"x": torch.ones(2)}, file)
    file.seek(0)

    assert load(tmp_path / "values")["y"].tolist() == [1.0]
    assert load(str(tmp_path / "values"), map_location="meta")["x"].device.type == "meta"
    assert load(file)["x"].tolist() == [1.0, 1.0]


def test_code_is_loaded_only_if_asked_for(tmp_path: Path) -> None:
    PartialState(cpu=True)
    save(OwnClass(), tmp_path / "object")

    with pytest.raises(CheckpointError, match="load it with weights_only=False"):
        load(tmp_path / "object")

    assert isinstance(load(tmp_path / "object", weights_only=False), OwnClass)


def test_of_shared_tensors_the_first_name_is_kept_and_the_others_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    PartialState(cpu=True)

    save(tied().state_dict(), tmp_path / "model.safetensors", safe_serialization=True)

    assert sorted(load_state_dict(tmp_path / "model.safetensors")) == ["0.bias", "0.weight", "1.bias"]
    [record] = caplog.records
    assert record.getMessage().startswith("Removed shared tensor names ['1.weight']: safetensors keep a tensor once.")
    assert clean_state_dict_for_safetensors(nn.Linear(1, 1).state_dict()).keys() == {"weight", "bias"}
    assert len(caplog.records) == 1


def test_weights_are_put_on_one_device_or_refused(tmp_path: Path) -> None:
    PartialState(cpu=True)
    file = str(tmp_path / "model.bin")
    save(tied().state_dict(), file)

    assert load_state_dict(file, device_map={"": "meta"})["1.weight"].device.type == "meta"
    with pytest.raises(TrainingError, match="spreading weights over devices is not part of this version"):
        load_state_dict(file, device_map={"0": "cpu", "1": "meta"})
