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
_THREADING = "/threading.py"
_WAITS_FOR_THREADS = (_THREADING, "/queue.py", "/concurrent/futures/_base.py")
"""The innermost frame of a thread that waits for another one."""
_ENDS, _RANKS_FILE = "_leave", "/accel_nb/launch/rank/main.py"
"""The function that ends a rank's process. What is below it belongs, in a forked one, to whoever forked it."""
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


def threads(stacks: str) -> list[list[Frame]]:
    """Of one dump of faulthandler's, the frames of each thread, the innermost first. The process's first thread is the
    last one.

    It lists threads from the newest to the oldest (``_Py_DumpTracebackThreads``, CPython 3.11 to 3.13).
    """
    found: list[list[Frame]] = [[]]
    for line in stacks.splitlines():
        if "(most recent call first)" in line:
            found.append([])
        elif frame := _FRAME.fullmatch(line):
            found[-1].append(Frame(frame["file"], int(frame["line"]), frame["function"]))
    return found


def main_thread(stacks: str) -> list[Frame]:
    """The last of `threads`."""
    return threads(stacks)[-1]


def awaited_threads(stacks: str) -> list[Frame]:
    """Where threads of the user's are while the first one waits for some; empty when it does something else."""
    *others, first = threads(stacks)
    if not first or not first[0].file.endswith(_WAITS_FOR_THREADS):
        return []
    return [frame for frames in others if (frame := own_frame(frames)) is not None]


def own_frame(frames: list[Frame]) -> Frame | None:
    """The innermost frame that is the user's own, a cell's before a module's. None when all are libraries'."""
    own = [frame for frame in frames if is_own_file(frame.file)]
    cells = [frame for frame in own if frame.file.startswith("<Cell")]
    return next(iter(cells or own), None)


def leaving_frames(stacks: str) -> list[Frame]:
    """What the process of a rank is in while it ends, the innermost first; empty when it does not end yet."""
    frames = main_thread(stacks)
    ends = (index for index, one in enumerate(frames) if one.function == _ENDS and one.file.endswith(_RANKS_FILE))
    return frames[: next(ends, 0)]


def waits_for_threads_to_end(leaving: list[Frame]) -> bool:
    """Whether that is the interpreter's wait for threads that are no daemons."""
    return bool(leaving) and leaving[-1].function == "_shutdown" and leaving[-1].file.endswith(_THREADING)


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
