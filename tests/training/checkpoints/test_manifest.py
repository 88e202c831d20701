from __future__ import annotations

from pathlib import Path

import pytest

from accel_nb.errors import CheckpointError
from accel_nb.training.checkpoints import manifest, names
from accel_nb.training.checkpoints.manifest import Manifest


def described(folder: Path, *contents: tuple[str, bytes]) -> Manifest:
    for name, content in contents:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    files = {name: manifest.describe_file(folder / name) for name, _ in contents}
    return Manifest(written_by="1", num_ranks=2, ranks=(0, 1), files=files)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    known = described(tmp_path, ("model.safetensors", b"abc"), ("unet/config.json", b"{}"))

    manifest.write(known, tmp_path)

    assert manifest.read(tmp_path) == known
    assert list(manifest.files_in(tmp_path)) == ["model.safetensors", "unet/config.json"]
    assert manifest.problems(known, tmp_path, thoroughly=known.files) == []


def test_a_folder_without_one_is_upstreams(tmp_path: Path) -> None:
    assert manifest.read(tmp_path) is None


def test_c05_each_problem_is_named_with_its_rank(tmp_path: Path) -> None:
    known = described(
        tmp_path, ("model.safetensors", b"abc"), ("random_states_1.pkl", b"1"), ("gradients_0.bin", b"12"),
        ("optimizer.bin", b"5678"),
    )  # fmt: skip
    (tmp_path / "random_states_1.pkl").unlink()
    (tmp_path / "gradients_0.bin").write_bytes(b"1")
    (tmp_path / "model.safetensors").write_bytes(b"abd")
    (tmp_path / "optimizer.bin").write_bytes(b"5679")

    found = manifest.problems(known, tmp_path, thoroughly=["model.safetensors"])

    assert found == [
        "model.safetensors has other content than was saved (its checksum differs)",
        "rank 1's random_states_1.pkl is missing",
        "rank 0's gradients_0.bin has 1 bytes instead of 2",
    ]


def test_a_damaged_one_is_told(tmp_path: Path) -> None:
    (tmp_path / names.MANIFEST_NAME).write_text('{"version": 1')

    with pytest.raises(CheckpointError, match=r"accel_nb_manifest\.json is damaged: "):
        manifest.read(tmp_path)


def test_a_newer_one_is_refused(tmp_path: Path) -> None:
    manifest.write(Manifest(version=2, written_by="9.1", num_ranks=1), tmp_path)

    with pytest.raises(CheckpointError, match=r"format 2 by accel_nb 9\.1; this version reads format 1\."):
        manifest.read(tmp_path)


def test_fields_of_a_later_minor_version_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / names.MANIFEST_NAME).write_text('{"written_by": "1", "num_ranks": 3, "colour": "red"}')

    known = manifest.read(tmp_path)

    assert known is not None
    assert known.num_ranks == 3
