"""A folder that appears under its name only once it is complete.

    .0.NAME.unfinished    being written, or left by a crash: no checkpoint
    NAME                  a complete one
    .0.NAME.replaced      the one that was NAME, for the moment in which another takes its place

The other names begin with a 0 after the dot because upstream (accelerate 1.15) takes the first number in a name for a
checkpoint's: so a leftover is the oldest for it, and never resumed.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from ...errors import CheckpointError
from . import manifest, names
from .durable import sync_folder


def unfinished_name(target: Path) -> Path:
    return target.with_name(f".0.{target.name}.unfinished")


def replaced_name(target: Path) -> Path:
    return target.with_name(f".0.{target.name}.replaced")


def is_leftover(folder: Path) -> bool:
    return folder.name.startswith(".0.") and folder.suffix in (".unfinished", ".replaced")


def begin(target: Path) -> Path:
    """An empty folder beside `target`, to write into. What an interrupted save left there is removed.

    CheckpointError when there cannot be one.
    """
    if target.exists() and not target.is_dir():
        raise CheckpointError(f"{target} is a file; a checkpoint is a folder. Give save_state another output_dir.")
    put_back(target)
    unfinished = unfinished_name(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        discard(unfinished)
        unfinished.mkdir()
    except OSError as error:
        raise CheckpointError(
            f"{unfinished} cannot be made: {error}. A checkpoint is written beside its final place first, so "
            f"{target.parent} must be writable; give save_state a folder where it is."
        ) from error
    return unfinished


def commit(unfinished: Path, target: Path) -> None:
    """Give `unfinished` its name. All of its files are on the disk before, and the name is when this returns.

    Files in an older `target` that belong to no checkpoint stay. A crash leaves the old one or the new one whole.
    """
    sync_tree(unfinished)
    replaced = replaced_name(target)
    try:
        if target.exists():
            discard(replaced)
            target.rename(replaced)
        unfinished.rename(target)
    except OSError as error:
        put_back(target)
        raise CheckpointError(
            f"the checkpoint cannot be given its name {target}: {error}. A mounted folder cannot be replaced as a "
            "whole; give save_state the name of a folder inside it."
        ) from error
    sync_folder(target.parent)
    if replaced.exists():
        _keep_foreign_files(replaced, target)
        discard(replaced)


def put_back(target: Path) -> None:
    """Undo what a crash, or an error, interrupted between the two renames of `commit`."""
    replaced = replaced_name(target)
    if replaced.is_dir() and not target.exists():
        replaced.rename(target)
        sync_folder(target.parent)


def discard(folder: Path) -> None:
    """Remove `folder`, if it is there. It stops being a checkpoint first, so that a crash leaves none with holes."""
    with suppress(FileNotFoundError):
        (folder / names.MANIFEST_NAME).unlink()
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


def sync_tree(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            sync_folder(path)
    sync_folder(folder)


def _keep_foreign_files(old: Path, new: Path) -> None:
    """Move what the user put beside the files of the checkpoint `old` to `new`, unless that has its own of the name."""
    own = _files_of(old)
    for path in sorted(old.iterdir()):
        is_own = path.name in own or names.belongs_to_checkpoints(path.name)
        if not is_own and not (new / path.name).exists():
            path.rename(new / path.name)


def _files_of(old: Path) -> frozenset[str]:
    """First parts of the paths that the manifest names; a damaged one, or none, names nothing."""
    try:
        known = manifest.read(old)
    except CheckpointError:
        return frozenset()
    return frozenset(name.split("/")[0] for name in known.files) if known else frozenset()
