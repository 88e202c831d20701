"""Which line of the user's a process is at, read from the stacks that faulthandler wrote of it."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ...protocol.places import place_text
from ..failures import is_own_file

_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
_WORKER_BEGINS = ("_worker_loop", "_bootstrap")
"""Functions of torch's DataLoader and of multiprocessing that begin the life of a worker. What is below them belongs,
in a forked worker, to the rank.
"""
_FETCHES = ("/torch/utils/data/_utils/fetch.py",)
"""The file in which a DataLoader's worker calls the dataset."""


class Frame(NamedTuple):
    """One line of Python that a process is in."""

    file: str
    """As Python has it: ``<Cell In[3]>``, a path."""
    line: int
    function: str

    @property
    def place(self) -> str:
        return place_text(self.file, self.line)

    def source(self, cells: Mapping[str, str]) -> str:
        """The text of the line; empty when it is not known. `cells`: texts of files that are not on disk."""
        if self.file in cells:
            lines = cells[self.file].splitlines()
            return lines[self.line - 1].strip() if 0 < self.line <= len(lines) else ""
        linecache.checkcache(self.file)
        return linecache.getline(self.file, self.line).strip()


def main_thread(stacks: str) -> list[Frame]:
    """Of one dump of faulthandler's, the frames of the process's first thread, the innermost first.

    It lists threads from the newest to the oldest (``_Py_DumpTracebackThreads``, CPython 3.11 to 3.13).
    """
    frames: list[Frame] = []
    for line in stacks.splitlines():
        if "(most recent call first)" in line:
            frames = []
        elif found := _FRAME.fullmatch(line):
            frames.append(Frame(found["file"], int(found["line"]), found["function"]))
    return frames


def own_frame(frames: list[Frame]) -> Frame | None:
    """The innermost frame that is the user's own, a cell's before a module's. None when all are libraries'."""
    own = [frame for frame in frames if is_own_file(frame.file)]
    cells = [frame for frame in own if frame.file.startswith("<Cell")]
    return next(iter(cells or own), None)


def busy_frame(stacks: str) -> Frame | None:
    """Where a child of a rank's is that does something for it; None of one that waits for work, or says nothing."""
    frames = list(_above_begin(main_thread(stacks)))
    own = own_frame(frames)
    if own is not None or not any(frame.file.endswith(_FETCHES) for frame in frames):
        return own
    return frames[0]


def _above_begin(frames: list[Frame]) -> Iterator[Frame]:
    for frame in frames:
        if frame.function in _WORKER_BEGINS:
            return
        yield frame
