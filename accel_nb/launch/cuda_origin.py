"""What initialised CUDA in the kernel: which cell, which line, through which library.

torch keeps a queue of calls that it makes when it initialises CUDA (``torch.cuda._lazy_call``). One call of ours in it
notes the stack of that moment, so nothing is patched. torch is never imported here: the call is put into the queue as
soon as somebody else has imported it. What opens CUDA without torch is seen after the cell, by the driver's file.

cells ── begin, end ──> CudaWatch ── look ──> Origin.place, .sentence
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import NamedTuple

from ..devices import nvml
from .payload.cell_sources import NamedSources

_SITES = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})
_OWN = str(Path(__file__).parents[1])
_LIBRARIES = (_OWN, *_SITES, *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}, "<frozen ")


class Frame(NamedTuple):
    file: str
    line: int


class Origin(NamedTuple):
    """The moment at which CUDA was initialised in this process, as far as it is known."""

    cell: str = ""
    """``In[3]``: the cell that ran then; empty when none did, and until it has ended."""
    frames: tuple[Frame, ...] = ()
    """Innermost first; empty when only the cell is known."""
    before: bool = False
    """It was so already when accel_nb began to look, in `cell` or an earlier one."""
    by_torch: bool = True
    """False: CUDA's driver was opened, and torch has not initialised CUDA."""

    @property
    def place(self) -> str:
        """``Cell In[3], line 2, through bitsandbytes``; empty when nothing is known."""
        if self.before:
            return "before accel_nb was used first" + (f", in Cell {self.cell} or earlier" if self.cell else "")
        line, library = _users_line(self.frames)
        through = f", through {library}" if library else ""
        return (line or (f"Cell {self.cell}" if self.cell else "")) + through

    @property
    def sentence(self) -> str:
        what = (
            "torch has initialised CUDA in this process"
            if self.by_torch
            else "CUDA's driver is open in this process, by another library than torch or since devices were counted"
        )
        return f"{what}: {self.place or 'nobody saw where'}."


class CudaWatch:
    """Looks at this process. `begin` and `end` are called in the thread that runs cells."""

    def __init__(self, driver_is_open: Callable[[], bool] = nvml.has_cuda_open) -> None:
        self._by_torch: Origin | None = None
        self._by_driver: Origin | None = None
        self._driver_is_open = driver_is_open
        self._started = False
        self._queued = False
        self._finder = _TorchIsComing(self._queue_up)

    @property
    def origin(self) -> Origin | None:
        """What is known now; None when CUDA is not initialised here, or nobody has looked."""
        return self._by_torch or self._by_driver

    def start(self) -> None:
        """Begin to look. Again it does nothing. In the middle of a cell, `begin` belongs after it."""
        if not self._started:
            self._started = True
            self._see(before=True)
            self._queue_up()

    def begin(self) -> None:
        """A cell is about to run."""
        self._queue_up()
        if not self._queued and self._by_torch is None:
            self._finder.install()

    def end(self, cell: str = "") -> None:
        """It is over. Only now its number is known: IPython counts up before or after it tells that a cell begins."""
        self._finder.remove()
        self._queue_up()
        self._see()
        self._by_torch, self._by_driver = (_named(origin, cell) for origin in (self._by_torch, self._by_driver))

    def look(self) -> Origin | None:
        """`origin`, brought up to date, whether somebody has looked before or not."""
        self._see(before=not self._started)
        return self.origin

    def _see(self, *, before: bool = False) -> None:
        if self._by_torch is None and self._initialised():
            self._by_torch = Origin(before=before)
        if self._by_driver is None and self._driver_is_open():
            self._by_driver = Origin(before=before, by_torch=False)

    def _queue_up(self) -> None:
        """Have torch call us when it initialises CUDA, once it is there."""
        cuda = _torch_cuda()
        if cuda is not None and not self._queued and not cuda.is_initialized():
            self._queued = True
            cuda._lazy_call(self._note)  # noqa: SLF001  what torch's own parts call, in 2.6 to 2.13

    def _note(self) -> None:
        """Called by torch, in whichever thread initialises CUDA. Must not raise: that would break the user's code."""
        if self._by_torch is None:
            self._by_torch = Origin(frames=_stack(sys._getframe(1)))  # noqa: SLF001  `inspect` would read the sources

    @staticmethod
    def _initialised() -> bool:
        cuda = _torch_cuda()
        return cuda is not None and bool(cuda.is_initialized())


class _TorchIsComing:
    """Stands first among the finders of modules, finds none, and so learns when torch.cuda has been imported."""

    def __init__(self, when_there: Callable[[], None]) -> None:
        self._when_there = when_there

    def install(self) -> None:
        if self not in sys.meta_path and _torch_cuda() is None:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Not while a module is looked for: the search goes through the very list."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Part of importlib's protocol; a module that is asked for after torch.cuda tells that it is there."""
        del name, path, target
        self._when_there()
        return None


def _named(origin: Origin | None, cell: str) -> Origin | None:
    """`origin`, which happened in `cell` unless it has a cell already."""
    return origin if origin is None or origin.cell else origin._replace(cell=cell)


def _torch_cuda() -> ModuleType | None:
    """torch.cuda, once it is imported so far that it can be asked: `_lazy_init` uses all that we do."""
    cuda = sys.modules.get("torch.cuda")
    return cuda if hasattr(cuda, "_lazy_init") and hasattr(cuda, "_lazy_call") else None


def _stack(frame: FrameType | None) -> tuple[Frame, ...]:
    frames: list[Frame] = []
    while frame is not None:
        frames.append(Frame(frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(frames)


def _users_line(frames: tuple[Frame, ...]) -> tuple[str, str]:
    """The innermost line of the user's own, and the library that it called unless that is torch; empty for none."""
    names = NamedSources()
    library = ""
    for frame in frames:
        name = names.name(frame.file)
        if name.startswith("<Cell") or not name.startswith(_LIBRARIES):
            shown = name.strip("<>") if name.startswith("<Cell") else Path(name).name
            return f"{shown}, line {frame.line}", "" if library == "torch" else library
        library = _package(name) or library
    return "", ""


def _package(file: str) -> str:
    """``bitsandbytes`` for a file of it among the installed packages; empty for others."""
    for site in (str(Path(_OWN).parent), *_SITES) if file.startswith(f"{_OWN}/") else _SITES:
        if file.startswith(f"{site}/"):
            return Path(file).relative_to(site).parts[0].removesuffix(".py")
    return ""


WATCH = CudaWatch()
"""One per process. It looks only where a face has started it."""
