"""Which lines of the user's hold the memory of a GPU at a failure, by torch's own recorder.

In a rank that was asked for it: `record` before the function, `take` when it failed.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict

from ...protocol.failure import LineAllocations, MemorySnapshot
from ...protocol.places import is_users, place_text

MAX_ENTRIES = 10_000
"""Of the recorded history, the newest; "several KB each" (torch 2.13, ``_record_memory_history``). What is allocated at
the end is known in any case."""
LINES_SHOWN = 10
_UNKNOWN = "??"
"""A frame that torch could not name."""
_GENERATED = "torchinductor_"
"""In the folder where ``torch.compile`` leaves the code that it writes."""


class Frame(TypedDict):
    filename: str
    line: int
    name: str


class Block(TypedDict, total=False):
    size: int
    state: str
    frames: list[Frame]
    """Innermost first; absent or empty where none was recorded, as in backward's own threads."""


class Segment(TypedDict, total=False):
    blocks: list[Block]


class Snapshot(TypedDict, total=False):
    """What we read of ``torch.cuda.memory._snapshot()``, as its docstring has it (torch 2.6 to 2.13)."""

    segments: list[Segment]


def record() -> None:
    """Have allocations recorded from the moment on when this process begins to use CUDA; it is not begun here."""
    import torch

    # Private, and what torch's own manual_seed does: a context on the wrong device would stay there.
    torch.cuda._lazy_call(_record_now)  # noqa: SLF001


def take(path: Path) -> MemorySnapshot | None:
    """What is allocated now, by line, with everything that was recorded written to `path`. None where this process has
    not used CUDA. Never raises for what fails here or interrupts: another failure is being told.
    """
    import torch

    if not torch.cuda.is_initialized():
        return None
    largest: tuple[LineAllocations, ...] = ()
    total_bytes = 0
    try:
        snapshot = torch.cuda.memory._snapshot()  # noqa: SLF001  documented, though private
        largest = largest_allocations(snapshot)
        total_bytes = live_bytes(snapshot)
        with path.open("wb") as file:
            pickle.dump(snapshot, file)
    except (RuntimeError, OSError, MemoryError, KeyboardInterrupt) as error:
        path.unlink(missing_ok=True)
        problem = f"the snapshot was not written: {type(error).__name__}: {error}"
        return MemorySnapshot(total_bytes=total_bytes, largest=largest, problem=problem)
    return MemorySnapshot(file=str(path), total_bytes=total_bytes, largest=largest)


def largest_allocations(snapshot: Snapshot, num_lines: int = LINES_SHOWN) -> tuple[LineAllocations, ...]:
    """The lines that hold most of what is in use by tensors, the largest first; lines that hold the same by name."""
    sizes: dict[str, list[int]] = {}
    for block in _live(snapshot):
        sizes.setdefault(users_line(block.get("frames") or ()), []).append(block["size"])
    largest = sorted(sizes.items(), key=lambda line: (-sum(line[1]), line[0]))[:num_lines]
    return tuple(LineAllocations(location=name, num_bytes=sum(own), count=len(own)) for name, own in largest)


def live_bytes(snapshot: Snapshot) -> int:
    """All that is in use by tensors."""
    return sum(block["size"] for block in _live(snapshot))


def users_line(frames: Sequence[Frame]) -> str:
    """The innermost of `frames`, which are given innermost first, that is the user's own; empty when none is."""
    own = next((frame for frame in frames if _is_own(frame["filename"])), None)
    return "" if own is None else place_text(own["filename"], own["line"])


def _is_own(file: str) -> bool:
    return is_users(file) and not file.startswith(_UNKNOWN) and _GENERATED not in file


def _live(snapshot: Snapshot) -> Iterator[Block]:
    for segment in snapshot.get("segments", ()):
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                yield block


def _record_now() -> None:
    import torch

    # C++ frames are no line of anybody's, and cost more.
    torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=MAX_ENTRIES)  # noqa: SLF001
