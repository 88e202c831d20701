"""Numbers of bytes for people."""

from __future__ import annotations


def size_text(num_bytes: int) -> str:
    """``1.5 GiB``, ``3.0 MiB``, ``12.0 KiB``, ``80 bytes``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} bytes"
