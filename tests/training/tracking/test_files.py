"""TensorBoard's event files and lines of JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from accel_nb import Accelerator, JsonlTracker, TensorBoardTracker
from accel_nb.training.ranks.state import existing_facts

VALUES: dict[str, Any] = {
    "loss": torch.tensor([0.5]),
    "lr": np.float32(0.25),
    "epoch": 2,
    "note": "warm-up",
    "parts": {"a": torch.tensor(1.0), "b": 2.0},
}


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_gets_numbers_texts_and_groups(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=str(tmp_path))
    accelerator.init_trackers("digits")

    accelerator.log(VALUES, step=3)
    accelerator.log({"loss": 0.25}, step=4)
    accelerator.end_training()

    folder = tmp_path / "digits"
    assert scalars(folder) == {"loss": [(3, 0.5), (4, 0.25)], "lr": [(3, 0.25)], "epoch": [(3, 2.0)]}
    assert scalars(folder / "parts_a") == {"parts": [(3, 1.0)]}
    assert scalars(folder / "parts_b") == {"parts": [(3, 2.0)]}


def test_tensorboard_says_what_it_leaves_out(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=str(tmp_path))
    accelerator.init_trackers("digits")

    with pytest.warns(UserWarning, match=r"^tensorboard cannot record 'histogram': its value is a Tensor\. It is left"):
        accelerator.log({"histogram": torch.zeros(3)})
    accelerator.log({"histogram": torch.zeros(3)})
    accelerator.end_training()


def test_tensorboard_keeps_the_settings(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=str(tmp_path))

    accelerator.init_trackers("digits", {"lr": 0.1, "betas": (0.9, 0.999), "model": {"width": 8}})
    accelerator.end_training()

    (file,) = (tmp_path / "digits").glob("*/hparams.yml")
    assert json.loads(file.read_text()) == {"lr": 0.1, "betas": "(0.9, 0.999)", "model/width": 8}


def test_tensorboard_takes_arguments_of_its_writer_and_gives_it_away(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=str(tmp_path))
    accelerator.init_trackers("digits", init_kwargs={"tensorboard": {"filename_suffix": ".mine"}})

    writer = accelerator.get_tracker("tensorboard", unwrap=True)
    accelerator.get_tracker("tensorboard").log_images({"digits": np.zeros((1, 3, 8, 8), np.uint8)}, step=1)
    accelerator.end_training()

    assert isinstance(writer, tensorboard.SummaryWriter)
    assert [file.suffix for file in (tmp_path / "digits").iterdir()] == [".mine"]


def test_making_a_tracker_asks_for_no_state(tmp_path: Path) -> None:
    TensorBoardTracker("digits", tmp_path)
    JsonlTracker("digits", tmp_path)

    assert existing_facts() is None


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "digits" / "metrics.jsonl").read_text().splitlines()]


def test_jsonl_holds_one_line_per_call_whole_at_once(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, log_with="jsonl", project_dir=str(tmp_path))
    accelerator.init_trackers("digits", {"lr": 0.1, "model": {"width": 8}})

    accelerator.log(VALUES, step=3)
    accelerator.log({"weights": torch.ones(2), "bad": [math.nan, -math.inf], "path": Path("a")})

    first, second = lines(tmp_path)
    assert first.pop("_time_s") > 0
    assert first == {"_step": 3, "loss": 0.5, "lr": 0.25, "epoch": 2, "note": "warm-up", "parts/a": 1.0, "parts/b": 2.0}
    assert {**second, "_time_s": 0} == {
        "_step": None, "_time_s": 0, "weights": [1.0, 1.0], "bad": ["nan", "-inf"], "path": "a",
    }  # fmt: skip
    assert json.loads((tmp_path / "digits" / "config.json").read_text()) == {"lr": 0.1, "model/width": 8}
    accelerator.end_training()


def test_jsonl_goes_on_where_the_last_run_ended(tmp_path: Path) -> None:
    for step in range(2):
        accelerator = Accelerator(cpu=True, log_with="jsonl", project_dir=str(tmp_path))
        accelerator.init_trackers("digits")
        accelerator.log({"loss": 1.0}, step=step)
        accelerator.end_training()

    assert [line["_step"] for line in lines(tmp_path)] == [0, 1]


def test_a_step_that_is_no_whole_number_is_refused(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, log_with="jsonl", project_dir=str(tmp_path))
    accelerator.init_trackers("digits")

    accelerator.log({"loss": 1.0}, step=torch.tensor(7))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="float"):
        accelerator.log({"loss": 1.0}, step=0.5)  # type: ignore[arg-type]
    accelerator.end_training()

    assert [line["_step"] for line in lines(tmp_path)] == [7]
