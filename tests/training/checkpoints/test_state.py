"""Saving and loading in one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from accel_nb.errors import CheckpointError, CheckpointNotFound, InvalidArgument, TrainingError
from accel_nb.training.accelerator import Accelerator
from accel_nb.training.settings import ProjectConfiguration

from ..examples import regression_loader, small_model


class Counter:
    def __init__(self) -> None:
        self.value: Any = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def prepared(project: Path | None = None, **settings: Any) -> tuple[Accelerator, nn.Module, torch.optim.Optimizer]:  # noqa: ANN401
    configuration = ProjectConfiguration(project_dir=None if project is None else str(project), **settings)
    accelerator = Accelerator(cpu=True, project_config=configuration)
    model = small_model()
    return accelerator, *accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.1))


def a_step(accelerator: Accelerator, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    accelerator.backward(model(torch.ones(2, 4)).sum())
    optimizer.step()
    optimizer.zero_grad()


def weights(model: nn.Module) -> list[float]:
    return [value for parameter in model.parameters() for value in parameter.flatten().tolist()]


def changed_weights(model: nn.Module) -> list[float]:
    """Other ones than any checkpoint of `prepared` has."""
    for parameter in model.parameters():
        nn.init.constant_(parameter, 7.0)
    return weights(model)


@pytest.mark.parametrize("safe", [True, False])
def test_the_files_are_called_as_upstreams(tmp_path: Path, safe: bool) -> None:
    accelerator, *_ = prepared()
    model, optimizer = small_model(), torch.optim.SGD(small_model().parameters(), lr=1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    accelerator.prepare(model, optimizer, scheduler, regression_loader(4))
    accelerator.register_for_checkpointing(Counter(), Counter())

    folder = accelerator.save_state(tmp_path / "state", safe_serialization=safe)

    assert folder == str(tmp_path / "state")
    assert sorted(path.name for path in Path(folder).iterdir()) == sorted([
        "accel_nb_manifest.json", "custom_checkpoint_0.pkl", "custom_checkpoint_1.pkl",
        *(["model.safetensors", "model_1.safetensors"] if safe else ["pytorch_model.bin", "pytorch_model_1.bin"]),
        "optimizer.bin", "optimizer_1.bin", "progress_0.bin", "random_states_0.pkl", "scheduler.bin",
    ])  # fmt: skip


def test_what_is_loaded_is_what_was_saved(tmp_path: Path) -> None:
    accelerator, model, optimizer = prepared()
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    a_step(accelerator, model, optimizer)
    counter.value = 5
    accelerator.set_trigger()
    accelerator.save_state(tmp_path / "s")
    saved, drawn = weights(model), (torch.rand(1), np.random.rand())  # noqa: NPY002
    a_step(accelerator, model, optimizer)
    counter.value = 6
    accelerator.check_trigger()

    accelerator.load_state(tmp_path / "s")

    assert weights(model) == saved
    assert counter.value == 5
    assert (torch.rand(1), np.random.rand()) == drawn  # noqa: NPY002
    assert optimizer.state_dict()["state"][0]["step"].item() == 1
    assert accelerator.check_trigger()
    assert not accelerator.check_trigger()


def test_gradients_that_wait_are_part_of_the_state(tmp_path: Path) -> None:
    accelerator, model, optimizer = prepared()
    accelerator.backward(model(torch.ones(2, 4)).sum())
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    accelerator.save_state(tmp_path / "waiting")
    optimizer.zero_grad()
    accelerator.save_state(tmp_path / "none")

    accelerator.load_state(tmp_path / "waiting")
    found = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    accelerator.load_state(tmp_path / "none")

    assert len(found) == 4
    assert all(map(torch.equal, found, gradients))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_c06_without_a_folder_the_newest_numbered_one_is_loaded(tmp_path: Path) -> None:
    accelerator, model, optimizer = prepared(tmp_path)
    accelerator.save_state()
    a_step(accelerator, model, optimizer)
    accelerator.save_state()
    newest = weights(model)
    a_step(accelerator, model, optimizer)

    again, other, _ = prepared(tmp_path)
    again.load_state()
    folder = again.save_state()

    assert weights(other) == newest
    assert folder == str(tmp_path / "checkpoints" / "checkpoint_2")
    assert again.save_iteration == 3


def test_c06_an_incomplete_newest_one_is_passed_over_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    accelerator, *_ = prepared(tmp_path)
    accelerator.save_state()
    (Path(accelerator.save_state()) / "optimizer.bin").unlink()

    accelerator.load_state()

    assert (
        "checkpoint_1 is incomplete: optimizer.bin is missing; the newest complete one, checkpoint_0, is loaded."
        in capsys.readouterr().out
    )
    assert accelerator.save_iteration == 2


def test_c06_a_damaged_newest_one_is_passed_over_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accelerator, model, optimizer = prepared(tmp_path)
    accelerator.save_state()
    saved = weights(model)
    a_step(accelerator, model, optimizer)
    damaged = Path(accelerator.save_state()) / "optimizer.bin"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")

    accelerator.load_state()

    assert weights(model) == saved
    assert (
        "checkpoint_1 is damaged: optimizer.bin has other content than was saved (its checksum differs); the newest "
        "complete one, checkpoint_0, is loaded." in capsys.readouterr().out
    )
    assert accelerator.save_iteration == 2


def test_c06_when_all_are_damaged_each_is_named(tmp_path: Path) -> None:
    accelerator, *_ = prepared(tmp_path)
    for _ in range(2):
        damaged = Path(accelerator.save_state()) / "optimizer.bin"
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")

    with pytest.raises(CheckpointNotFound, match=r"no complete checkpoint in .*: checkpoint_1 is damaged: .*; chec"):
        accelerator.load_state()


def test_c06_a_folder_that_cannot_be_begun_is_told_once(tmp_path: Path) -> None:
    accelerator, *_ = prepared()
    (tmp_path / "file").write_text("")

    with pytest.raises(CheckpointError) as refused:
        accelerator.save_state(tmp_path / "file" / "checkpoint")

    assert str(refused.value).count("cannot be begun") == 1


def test_c06_the_best_one_outlives_the_limit(tmp_path: Path) -> None:
    from accel_nb import best_checkpoint, latest_checkpoint

    accelerator, *_ = prepared(tmp_path, total_limit=2)
    for metric in (0.3, 0.1, 0.2, torch.tensor(0.4), 0.5):
        accelerator.save_state(metric=metric)

    assert best_checkpoint(tmp_path).name == "checkpoint_1"
    assert latest_checkpoint(tmp_path).name == "checkpoint_4"
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {
        "checkpoint_1", "checkpoint_3", "checkpoint_4",
    }  # fmt: skip


def test_c06_a_metric_that_is_no_number_is_told_before_anything_is_written(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, project_dir=tmp_path)

    with pytest.raises(ValueError, match="one element"):
        accelerator.save_state(metric=torch.ones(2))

    assert list(tmp_path.iterdir()) == []


def test_a_number_that_is_taken_is_not_overwritten(tmp_path: Path) -> None:
    prepared(tmp_path)[0].save_state()

    with pytest.raises(
        CheckpointError, match=r"checkpoint_0 exists already\. load_state\(\) .* ProjectConfiguration\(iteration=1\)"
    ):
        prepared(tmp_path)[0].save_state()


def test_without_any_folder_it_is_said_what_to_give() -> None:
    accelerator, *_ = prepared()

    with pytest.raises(InvalidArgument, match=r"give output_dir, or Accelerator\(project_dir=\.\.\.\)"):
        accelerator.save_state()
    with pytest.raises(CheckpointNotFound, match=r"give input_dir, or Accelerator\(project_dir=\.\.\.\)"):
        accelerator.load_state()


def test_a_limit_that_keeps_nothing_is_refused(tmp_path: Path) -> None:
    accelerator, *_ = prepared(tmp_path, total_limit=0)

    with pytest.raises(InvalidArgument, match="total_limit=0 must be at least 1, or None"):
        accelerator.save_state()


def test_arguments_that_nobody_understands_are_refused(tmp_path: Path) -> None:
    accelerator, *_ = prepared()

    with pytest.raises(TrainingError, match=r"save_state got exclude_frozen_parameters, which only wrappers"):
        accelerator.save_state(tmp_path, exclude_frozen_parameters=True)
    accelerator.save_state(tmp_path / "s")
    with pytest.raises(TypeError, match=r"Unsupported optimizer map location passed: 'invalid'; choose one of None,"):
        accelerator.load_state(tmp_path / "s", map_location="invalid")


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere to load a checkpoint from"):
        prepared()[0].load_state(tmp_path / "nowhere")


def test_a_folder_that_is_no_checkpoint_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be loaded: it holds no file of a checkpoint"):
        prepared()[0].load_state(tmp_path)


def test_a_leftover_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / ".0.best.unfinished").mkdir()

    with pytest.raises(CheckpointError, match=r"it is what an interrupted save_state left; .* may hold complete ones"):
        prepared()[0].load_state(tmp_path / ".0.best.unfinished")


def test_c05_nothing_is_loaded_from_a_damaged_checkpoint(tmp_path: Path) -> None:
    accelerator, model, optimizer = prepared()
    folder = Path(accelerator.save_state(tmp_path / "s"))
    content = (folder / "optimizer.bin").read_bytes()
    (folder / "optimizer.bin").write_bytes(content[:-1] + b"!")
    a_step(accelerator, model, optimizer)
    before = weights(model)

    with pytest.raises(CheckpointError, match=r"optimizer\.bin has other content than was saved"):
        accelerator.load_state(folder)

    assert weights(model) == before


def test_objects_without_a_state_are_refused_by_position() -> None:
    accelerator, *_ = prepared()

    with pytest.raises(ValueError, match=r"which these lack: Item at index 0, Tensor; Item at index 2, int\."):
        accelerator.register_for_checkpointing(torch.ones(1), small_model(), 5)


def test_other_registered_objects_are_told(tmp_path: Path) -> None:
    accelerator, *_ = prepared()
    accelerator.register_for_checkpointing(Counter())
    accelerator.save_state(tmp_path / "s")
    other, model, _ = prepared()
    before = changed_weights(model)

    with pytest.raises(CheckpointError, match=r"holds 1 registered objects, and this program has 0 \(none\)\. Prepare"):
        other.load_state(tmp_path / "s")

    assert weights(model) == before


def test_more_optimizers_than_were_saved_are_told(tmp_path: Path) -> None:
    prepared()[0].save_state(tmp_path / "s")
    accelerator, model, _ = prepared()
    accelerator.prepare(torch.optim.SGD(small_model().parameters(), lr=1))
    before = changed_weights(model)

    with pytest.raises(CheckpointError, match=r"holds 1 optimizers, and this program has 2 \(Acc"):
        accelerator.load_state(tmp_path / "s")

    assert weights(model) == before


def test_more_models_than_were_saved_are_told(tmp_path: Path) -> None:
    prepared()[0].save_state(tmp_path / "s")
    accelerator, model, _ = prepared()
    accelerator.prepare(small_model())
    before = changed_weights(model)

    with pytest.raises(CheckpointError, match=r"has neither model_1\.safetensors nor pytorch_model_1\.bin"):
        accelerator.load_state(tmp_path / "s")

    assert weights(model) == before


def test_a_program_that_only_evaluates_loads_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accelerator, model, optimizer = prepared()
    accelerator.prepare(regression_loader(4))
    a_step(accelerator, model, optimizer)
    accelerator.save_state(tmp_path / "s")

    evaluating = Accelerator(cpu=True)
    other = evaluating.prepare(small_model())
    evaluating.load_state(tmp_path / "s")

    assert weights(other) == weights(model)
    assert "the positions of 1 loaders are in" in capsys.readouterr().out


def test_hooks_write_and_read_and_may_take_models_over(tmp_path: Path) -> None:
    accelerator, model, _ = prepared()
    calls: list[object] = []

    def write(models: list[nn.Module], states: list[dict[str, Any]], folder: str) -> None:
        calls.append(models[0] is model)
        (Path(folder) / "data.json").write_text(json.dumps(list(states.pop())))

    def read(models: list[nn.Module], folder: str) -> None:
        models.pop()
        calls.append(json.loads((Path(folder) / "data.json").read_text()))

    writing = accelerator.register_save_state_pre_hook(write)
    reading = accelerator.register_load_state_pre_hook(read)
    folder = Path(accelerator.save_state(tmp_path / "s"))
    accelerator.load_state(folder)
    writing.remove()
    reading.remove()
    accelerator.save_state(tmp_path / "s")

    assert calls == [True, ["0.weight", "0.bias", "2.weight", "2.bias"]]
    assert not (folder / "data.json").exists()
    assert (folder / "model.safetensors").exists()


def test_c03_a_hook_that_fails_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    accelerator, model, optimizer = prepared()
    accelerator.save_state(tmp_path / "s")
    saved = weights(model)
    a_step(accelerator, model, optimizer)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    accelerator.register_save_state_pre_hook(fail)
    with pytest.raises(
        CheckpointError,
        match=r"s was not written: OSError: \[Errno 28\] No space left on device \(rank 0\)\. Nothing has taken",
    ) as caught:
        accelerator.save_state(tmp_path / "s")

    assert isinstance(caught.value.__cause__, OSError)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    accelerator.load_state(tmp_path / "s")
    assert weights(model) == saved


def test_a_full_disk_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    accelerator, model, _ = prepared()
    accelerator.save_state(tmp_path / "s")
    code = (
        "import resource, signal, torch\n"
        "from accel_nb import Accelerator\n"
        "accelerator = Accelerator(cpu=True)\n"
        "accelerator.prepare(torch.nn.Linear(512, 512))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        f"accelerator.save_state({str(tmp_path / 's')!r}, safe_serialization=False)\n"
    )

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "accel_nb.errors.CheckpointError: the checkpoint" in ended.stderr
    assert "was not written" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    accelerator.load_state(tmp_path / "s")
    assert len(weights(model)) == 49


def test_without_safetensors_models_are_pickled_and_it_is_said(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['safetensors'] = None\n"
        "import torch\n"
        "from accel_nb import Accelerator\n"
        "accelerator = Accelerator(cpu=True)\n"
        "model = accelerator.prepare(torch.nn.Linear(2, 2))\n"
        f"accelerator.save_state({str(tmp_path / 's')!r})\n"
        f"accelerator.load_state({str(tmp_path / 's')!r})\n"
        f"accelerator.save_model(model, {str(tmp_path / 'm')!r})\n"
    )

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ended.stdout.count("safetensors is not installed, so models are saved by torch.save, as") == 2
    assert (tmp_path / "s" / "pytorch_model.bin").exists()
    assert (tmp_path / "m" / "pytorch_model.bin").exists()


class FakeScaler:
    """Stands in for the loss scaler, which only CUDA has."""

    def __init__(self) -> None:
        self.scale = 65536.0

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.scale = state["scale"]


def test_a05_the_scaler_is_saved_and_loaded(tmp_path: Path) -> None:
    accelerator, *_ = prepared()
    scaler: Any = FakeScaler()
    accelerator.scaler = scaler
    scaler.scale = 8.0
    accelerator.save_state(tmp_path / "s")
    scaler.scale = 1.0

    accelerator.load_state(tmp_path / "s")

    assert scaler.scale == 8.0
    assert (tmp_path / "s" / "scaler.pt").exists()


def test_a05_a_checkpoint_without_scaler_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepared()[0].save_state(tmp_path / "s")
    accelerator, *_ = prepared()
    scaler: Any = FakeScaler()
    accelerator.scaler = scaler

    accelerator.load_state(tmp_path / "s")

    assert "has no scaler.pt: it was not saved in fp16. The gradient scaler begins anew" in capsys.readouterr().out


def test_files_that_the_user_keeps_in_the_folder_stay(tmp_path: Path) -> None:
    accelerator, *_ = prepared()
    folder = Path(accelerator.save_state(tmp_path / "best"))
    (folder / "tokenizer.json").write_text("{}")

    accelerator.save_state(tmp_path / "best")

    assert (folder / "tokenizer.json").exists()
    accelerator.load_state(folder)
