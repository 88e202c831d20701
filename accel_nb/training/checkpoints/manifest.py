"""The list of what a checkpoint consists of, and whether all of it is there."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from ...errors import CheckpointError
from . import names
from .durable import write_bytes

_PIECE_BYTES = 1 << 20


class SavedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a checkpoint, as it was when it was written."""

    size_bytes: int
    crc32: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What one folder holds. Written after all else, so that a folder with a manifest once was complete."""

    version: int = 1
    """Of this format. A reader refuses what is newer."""
    written_by: str
    """accel_nb's version."""
    num_ranks: int
    """Of the run, on all machines together."""
    ranks: tuple[int, ...] = ()
    """Those whose files are in this folder: all of them, unless machines keep folders of their own."""
    holds_shared: bool = True
    """Whether models, optimizers and whatever else is alike on all ranks are here. False: only on other machines."""
    iteration: int | None = None
    """Of a folder that was numbered automatically."""
    metric: float | None = None
    """What `save_state` was told; lower is better."""
    accumulated: int = 0
    """Micro-batches since the last optimizer step."""
    time_s: float = 0.0
    """Seconds since the epoch."""
    files: dict[str, SavedFile] = {}
    """By path relative to the folder, with slashes."""


def write(manifest: Manifest, folder: Path) -> None:
    write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1), folder / names.MANIFEST_NAME)


def read(folder: Path) -> Manifest | None:
    """None: the folder has none, as upstream's checkpoints. CheckpointError when it cannot be understood."""
    try:
        content = (folder / names.MANIFEST_NAME).read_bytes()
    except FileNotFoundError:
        return None
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{folder / names.MANIFEST_NAME} is damaged: {error}.") from error
    if manifest.version > 1:
        raise CheckpointError(
            f"the checkpoint {folder} was written in format {manifest.version} by accel_nb {manifest.written_by}; this "
            "version reads format 1. Load it with a newer accel_nb."
        )
    return manifest


def describe_file(file: Path) -> SavedFile:
    size_bytes, crc32 = 0, 0
    with file.open("rb") as content:
        while piece := content.read(_PIECE_BYTES):
            size_bytes += len(piece)
            crc32 = zlib.crc32(piece, crc32)
    return SavedFile(size_bytes=size_bytes, crc32=crc32)


def files_in(folder: Path) -> Iterator[str]:
    """Paths of all files below `folder`, relative and with slashes, but for the manifest."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name != names.MANIFEST_NAME:
            yield file.relative_to(folder).as_posix()


def problems(manifest: Manifest, folder: Path, *, thoroughly: Iterable[str]) -> list[str]:
    """What is wrong with the files of `folder`, one phrase each, such as "rank 1's random_states_1.pkl is missing".

    Every size is compared; the content of the files in `thoroughly`, too.
    """
    read_whole = frozenset(thoroughly)
    found = []
    for name, saved in manifest.files.items():
        file = folder / name
        if not file.is_file():
            found.append(f"{_owned(name)} is missing")
        elif (size_bytes := file.stat().st_size) != saved.size_bytes:
            found.append(f"{_owned(name)} has {size_bytes:,} bytes instead of {saved.size_bytes:,}")
        elif name in read_whole and describe_file(file).crc32 != saved.crc32:
            found.append(f"{_owned(name)} has other content than was saved (its checksum differs)")
    return found


def _owned(name: str) -> str:
    of_rank = re.fullmatch(r"(?:random_states|progress|gradients)_(\d+)\.\w+", name)
    return f"rank {of_rank[1]}'s {name}" if of_rank else name
