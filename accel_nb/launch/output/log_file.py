"""Files of a run whose failure costs lines, never the run: a full disk, a folder that was removed."""

from __future__ import annotations

import os
from pathlib import Path


class LogFile:
    """Appends; every byte of it or none is lost on the way to the system. One thread."""

    def __init__(self, path: Path) -> None:
        """Open `path`. Does not raise: the first failure is what `trouble` tells."""
        self._path = path
        self._fd = -1
        self._error: OSError | None = None
        self._told = False
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._error = error

    def write(self, data: bytes) -> None:
        """All of `data`, or what fits. Later calls try again: room may have been made."""
        rest = memoryview(data)
        try:
            while rest and self._fd >= 0:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            self._error = error

    def trouble(self) -> str | None:
        """One sentence, once, after the first failure."""
        if self._error is None or self._told:
            return None
        self._told = True
        return f"{self._path} cannot be written, lines will be missing there: {self._error.strerror}. The run goes on."

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
