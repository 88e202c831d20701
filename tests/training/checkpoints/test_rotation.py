from __future__ import annotations

from pathlib import Path

import pytest

from accel_nb.errors import CheckpointNotFound
from accel_nb.training.checkpoints import manifest, rotation
from accel_nb.training.checkpoints.manifest import Manifest, SavedFile


def checkpoint(project: Path, iteration: int, metric: float | None = None) -> Path:
    folder = project / "checkpoints" / f"checkpoint_{iteration}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_text("abc")
    files = {"model.safetensors": SavedFile(size_bytes=3, crc32=0)}
    manifest.write(Manifest(written_by="test", num_ranks=1, metric=metric, files=files), folder)
    return folder


def kept(project: Path) -> list[str]:
    return sorted(path.name for path in (project / "checkpoints").iterdir())


def test_c06_numbers_are_ordered_as_numbers(tmp_path: Path) -> None:
    for iteration in (9, 10, 2):
        checkpoint(tmp_path, iteration)
    (tmp_path / "checkpoints" / ".0.checkpoint_11.unfinished").mkdir()
    (tmp_path / "checkpoints" / "notes 12").mkdir()

    assert rotation.iterations(tmp_path / "checkpoints") == [2, 9, 10]
    assert rotation.latest_checkpoint(tmp_path).name == "checkpoint_10"


def test_c06_the_newest_that_is_complete_is_the_latest(tmp_path: Path) -> None:
    checkpoint(tmp_path, 1)
    (checkpoint(tmp_path, 2) / "model.safetensors").write_text("ab")

    assert rotation.latest_checkpoint(tmp_path).name == "checkpoint_1"
    _, passed_over = rotation.newest_complete(tmp_path / "checkpoints")
    assert passed_over == ["checkpoint_2 is incomplete: model.safetensors has 2 bytes instead of 3"]


def test_upstreams_checkpoints_count_as_complete(tmp_path: Path) -> None:
    checkpoint(tmp_path, 1)
    (tmp_path / "checkpoints" / "checkpoint_4").mkdir()

    assert rotation.latest_checkpoint(tmp_path).name == "checkpoint_4"


def test_c06_the_best_has_the_lowest_metric(tmp_path: Path) -> None:
    for iteration, metric in enumerate((0.5, 0.25, 0.25, float("nan"), None, 0.75)):
        checkpoint(tmp_path, iteration, metric)

    assert rotation.best_checkpoint(tmp_path).name == "checkpoint_2"


def test_c06_only_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    for iteration, metric in enumerate((0.5, 0.25, 0.5, 0.5, None)):
        checkpoint(tmp_path, iteration, metric)

    removed = rotation.make_room(tmp_path / "checkpoints", total_limit=2)

    assert [path.name for path in removed] == ["checkpoint_0", "checkpoint_2"]
    assert kept(tmp_path) == ["checkpoint_1", "checkpoint_3", "checkpoint_4"]


@pytest.mark.parametrize("limit", [3, 10])
def test_as_many_as_the_limit_are_kept(tmp_path: Path, limit: int) -> None:
    for iteration in range(3):
        checkpoint(tmp_path, iteration)

    assert rotation.make_room(tmp_path / "checkpoints", limit) == []


def test_where_there_is_none_the_sentence_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match=r"no checkpoint in .*checkpoints\. save_state\(\) makes"):
        rotation.latest_checkpoint(tmp_path)
    with pytest.raises(CheckpointNotFound, match=r"has a metric\. Give one when saving: accelerator\.save_state"):
        rotation.best_checkpoint(tmp_path)


def test_where_none_is_complete_each_is_told(tmp_path: Path) -> None:
    (checkpoint(tmp_path, 0) / "model.safetensors").unlink()

    with pytest.raises(ValueError, match=r"no complete checkpoint in .*: checkpoint_0 is incomplete: model\."):
        rotation.latest_checkpoint(tmp_path)
