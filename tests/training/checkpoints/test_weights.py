from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from accel_nb.errors import TrainingError
from accel_nb.training.checkpoints import weights
from accel_nb.training.checkpoints.reading import read_file


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight


def test_tied_weights_are_written_once_and_loaded_under_both_names(tmp_path: Path) -> None:
    model, other = Tied(), Tied()

    weights.write_tensors(model.state_dict(), tmp_path / "model.safetensors")
    read = weights.read_weights(tmp_path / "model.safetensors")
    weights.load_weights(other, read)

    assert list(read) == ["first.weight"]
    assert torch.equal(other.second.weight, model.first.weight)
    assert other.second.weight is other.first.weight


def test_parts_of_one_memory_keep_their_own_values(tmp_path: Path) -> None:
    memory = torch.arange(6.0)

    weights.write_tensors({"a": memory[:3], "b": memory[3:], "c": memory.view(2, 3).t()}, tmp_path / "t.safetensors")
    read = weights.read_weights(tmp_path / "t.safetensors")

    assert read["a"].tolist() == [0, 1, 2]
    assert read["b"].tolist() == [3, 4, 5]
    assert read["c"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_what_is_no_tensor_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"'extra' is a dict\. Use safe_serialization=False\."):
        weights.write_tensors({"w": torch.ones(1), "extra": {}}, tmp_path / "t.safetensors")


@pytest.mark.parametrize("saved_prefix", ["", "module."])
@pytest.mark.parametrize("own_prefix", ["", "module."])
def test_names_of_the_wrapped_and_of_the_bare_model_both_fit(saved_prefix: str, own_prefix: str) -> None:
    wrapped = nn.Sequential()
    model = nn.Linear(2, 2)
    wrapped.add_module("module", model)
    state = {f"{saved_prefix}weight": torch.ones(2, 2), f"{saved_prefix}bias": torch.ones(2)}

    weights.load_weights(wrapped if own_prefix else model, state)

    assert model.weight.tolist() == [[1, 1], [1, 1]]


def test_another_model_is_refused_by_torch() -> None:
    with pytest.raises(RuntimeError, match="Missing key"):
        weights.load_weights(nn.Linear(2, 2), {"weight": torch.ones(2, 2)})


def test_load_state_dict_kwargs_are_passed_on() -> None:
    model = nn.Linear(2, 2)

    weights.load_weights(model, {"weight": torch.ones(2, 2)}, strict=False)

    assert model.weight.sum().item() == 4


def test_without_safetensors_it_is_said_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['safetensors'] = None\n"
        "import torch\n"
        "from pathlib import Path\n"
        "from accel_nb.training.checkpoints.weights import has_safetensors, write_tensors\n"
        "assert not has_safetensors()\n"
        f"write_tensors({{'w': torch.ones(1)}}, Path({str(tmp_path / 'w')!r}))\n"
    )

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "safe_serialization=True needs safetensors: `pip install accel-nb[checkpoints]`" in ended.stderr


class Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("harm",)


def test_a_file_that_would_run_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"a": Harmful()}, tmp_path / "optimizer.bin")

    with pytest.raises(TrainingError, match=r'more than tensors and plain values: .*\{"weights_only": False\}'):
        read_file(tmp_path / "optimizer.bin")
    assert capsys.readouterr().out == ""
    read_file(tmp_path / "optimizer.bin", weights_only=False)
    assert capsys.readouterr().out == "harm\n"


def test_a_truncated_file_is_told(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(100)}, tmp_path / "optimizer.bin")
    content = (tmp_path / "optimizer.bin").read_bytes()
    (tmp_path / "optimizer.bin").write_bytes(content[:100])

    with pytest.raises(TrainingError, match=r"cannot be read, it is damaged or no file of torch\.save"):
        read_file(tmp_path / "optimizer.bin")
