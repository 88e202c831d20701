"""How a process of a run says where it is: on a signal, faulthandler writes its stacks into a file.

Ranks do, and DataLoader workers that do not inherit it from them.
"""

from __future__ import annotations

import faulthandler
import signal
from pathlib import Path
from typing import TextIO

STACK_SIGNAL = signal.SIGRTMIN + 7
"""A real-time signal: frameworks and schedulers use the others."""

_files: list[tuple[Path, TextIO]] = []
"""Kept open: faulthandler knows the number of the descriptor only."""


def answer_stack_signal(file: Path) -> TextIO:
    """From now on write this process's stacks into `file` on request; it stays open until the process ends.

    Appending, since all processes of a rank write into one file.
    """
    stacks = file.open("a", encoding="utf-8")
    _files.append((file, stacks))
    faulthandler.register(STACK_SIGNAL, stacks, all_threads=True)
    return stacks


def answered_into() -> Path | None:
    """The file of this process, or of the one that it was forked from; None: it does not answer."""
    return _files[-1][0] if _files else None
