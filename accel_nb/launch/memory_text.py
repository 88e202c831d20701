"""What held a GPU's memory when a rank failed, as lines for a failure's text."""

from __future__ import annotations

from ..protocol.failure import MemorySnapshot
from .sizes import size_text

NOBODYS_LINE = "no line of yours: backward, or a library's own thread"


def memory_lines(snapshot: MemorySnapshot) -> list[str]:
    """A headline, a line per place, and where the whole snapshot is."""
    lines = [f"Tensors on the GPU held {size_text(snapshot.total_bytes)}, most of it allocated at:"]
    if not snapshot.largest:
        lines = [] if snapshot.problem else ["No tensor was on the GPU."]
    lines += [
        f"  {size_text(one.num_bytes):>10} in {one.count:,} by {one.location or NOBODYS_LINE}"
        for one in snapshot.largest
    ]
    if snapshot.problem:
        return [*lines, f"Memory snapshot: {snapshot.problem}"]
    return [*lines, f"Memory snapshot, to be opened at https://docs.pytorch.org/memory_viz: {snapshot.file}"]
