"""Copies of a run's files, bytes as they come: out of the folder of a keeper, and into the kernel's."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path

from ....protocol.remote import FilePart

PART_BYTES = 256 << 10
_LOG = re.compile(r"rank_(\d+)\.log")
_OF_RANK = re.compile(r"rank_(\d+)\.\w[\w.]*")
"""All that a keeper or a rank writes there, but for the keeper's own record of events."""


class FileCopies:
    """Beside a keeper: sends what its files have grown by. One thread."""

    def __init__(self, folder: Path, send: Callable[[FilePart], None]) -> None:
        self._folder = folder
        self._send = send
        self._sent: dict[str, int] = {}

    def send_logs(self) -> None:
        """What the ranks have written since; at most one part of each."""
        for file in self._folder.glob("rank_*.log"):
            self._send_part(file)

    def send_rest(self, is_sent: Callable[[], bool]) -> None:
        """Everything; nobody writes any more. `is_sent` is asked after each part, so that files that are larger than
        memory are not all under way at once; False: go no further.
        """
        for file in sorted(self._folder.iterdir()):
            if _OF_RANK.fullmatch(file.name):
                while self._send_part(file):
                    if not is_sent():
                        return

    def _send_part(self, file: Path) -> bool:
        offset = self._sent.get(file.name, 0)
        with file.open("rb") as opened:
            opened.seek(offset)
            data = opened.read(PART_BYTES)
        if data:
            self._sent[file.name] = offset + len(data)
            self._send(FilePart(name=file.name, offset=offset, data=data))
        return bool(data)


def write_part(folder: Path, part: FilePart, ranks: Collection[int]) -> str:
    """Into the kernel's `folder`, as far as it belongs to one of `ranks`. Logs of several attempts follow each other,
    other files are the newest attempt's. Gives a sentence the first time that a file cannot be written.
    """
    found = _OF_RANK.fullmatch(part.name)
    if found is None or int(found[1]) not in ranks:
        return ""
    begins_anew = part.offset == 0 and not _LOG.fullmatch(part.name)
    file = folder / part.name
    try:
        with file.open("wb" if begins_anew else "ab") as opened:
            opened.write(part.data)
    except OSError as error:
        return "" if part.offset else f"{file} cannot be written, lines will be missing there: {error.strerror}."
    return ""
