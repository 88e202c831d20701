from __future__ import annotations

from pathlib import Path

import pytest

from accel_nb.errors import CheckpointError
from accel_nb.training.checkpoints import folder, manifest
from accel_nb.training.checkpoints.manifest import Manifest, SavedFile


def finished(target: Path, content: str) -> Path:
    unfinished = folder.begin(target)
    (unfinished / "model.safetensors").write_text(content)
    known = Manifest(written_by="test", num_ranks=1, files={"model.safetensors": SavedFile(size_bytes=1, crc32=0)})
    manifest.write(known, unfinished)
    return unfinished


def test_a_checkpoint_has_its_name_only_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "new" / "checkpoint_0"

    unfinished = finished(target, "a")

    assert not target.exists()
    assert unfinished.parent == target.parent
    folder.commit(unfinished, target)
    assert (target / "model.safetensors").read_text() == "a"
    assert list(target.parent.iterdir()) == [target]


def test_a_checkpoint_is_replaced_and_the_users_own_files_stay(tmp_path: Path) -> None:
    target = tmp_path / "best"
    folder.commit(finished(target, "old"), target)
    (target / "optimizer.bin").write_text("of an older checkpoint")
    (target / "tokenizer.json").write_text("mine")
    (target / "logs").mkdir()
    (target / "logs" / "run.txt").write_text("mine, too")

    folder.commit(finished(target, "new"), target)

    assert (target / "model.safetensors").read_text() == "new"
    assert not (target / "optimizer.bin").exists()
    assert (target / "tokenizer.json").read_text() == "mine"
    assert (target / "logs" / "run.txt").read_text() == "mine, too"
    assert list(tmp_path.iterdir()) == [target]


def test_c03_what_an_interrupted_save_left_is_removed_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "checkpoint_3"
    (folder.begin(target) / "half").write_text("a")

    unfinished = folder.begin(target)

    assert list(unfinished.iterdir()) == []
    assert folder.is_leftover(unfinished)
    assert not folder.is_leftover(target)


def test_c03_a_crash_between_the_two_renames_is_undone(tmp_path: Path) -> None:
    target = tmp_path / "checkpoint"
    folder.commit(finished(target, "old"), target)
    target.rename(folder.replaced_name(target))

    folder.begin(target)

    assert (target / "model.safetensors").read_text() == "old"


def test_a_file_is_no_place_for_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")

    with pytest.raises(CheckpointError, match=r"taken is a file; a checkpoint is a folder\. Give save_state another"):
        folder.begin(tmp_path / "taken")


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(CheckpointError, match=r"cannot be made: \[Errno .*A checkpoint is written beside its final pl"):
        folder.begin(tmp_path / "file" / "checkpoint")


def test_a_name_that_cannot_be_given_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "checkpoint"
    folder.commit(finished(target, "old"), target)
    unfinished = finished(target, "new")
    rename = Path.rename

    def refuse(path: Path, name: Path) -> Path:
        if path == unfinished:
            raise OSError(16, "Device or resource busy")
        return rename(path, name)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(CheckpointError, match=r"cannot be given its name .*checkpoint.* give save_state the name of a"):
        folder.commit(unfinished, target)

    assert (target / "model.safetensors").read_text() == "old"


def test_what_is_discarded_first_stops_being_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "checkpoint"
    folder.commit(finished(target, "a"), target)
    monkeypatch.setattr("shutil.rmtree", lambda path: pytest.fail("crashed") if not any(path.iterdir()) else None)

    folder.discard(target)

    assert [path.name for path in target.iterdir()] == ["model.safetensors"]
    assert manifest.read(target) is None
