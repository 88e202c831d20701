"""Writing that survives a power cut: content first, names afterwards."""

from __future__ import annotations

import os
from pathlib import Path


def write_bytes(content: bytes, file: Path) -> None:
    """`content` in a new file, on the disk when this returns. The name is durable once `sync_folder` was called."""
    with file.open("wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())


def sync_file(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


sync_folder = sync_file
"""Makes the names in a folder durable (POSIX: fsync of the directory)."""
