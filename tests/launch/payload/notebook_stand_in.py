"""A notebook and its ranks, reduced to what packing sees of them: cells in a ``__main__``, and one real child process.

As a program (``python -m tests.launch.payload.notebook_stand_in PAYLOAD_FD SOCKET_FD``) it is the rank.
"""

from __future__ import annotations

import linecache
import socket
import subprocess
import sys
import textwrap
import traceback
import types
from typing import Any, Self

from accel_nb.launch.payload.packing import Packed, pack, pack_value, unpack, unpack_value

CHILD_TIMEOUT_S = 60


class RankError(Exception):
    """The child's traceback."""


class Notebook:
    """Runs cells in a ``__main__`` of its own, which is this process's while the `with` block lasts."""

    def __init__(self) -> None:
        self._main = types.ModuleType("__main__")
        self._real_main = sys.modules["__main__"]
        self._num_cells = 0

    def __enter__(self) -> Self:
        sys.modules["__main__"] = self._main
        return self

    def __exit__(self, *_: object) -> None:
        sys.modules["__main__"] = self._real_main

    def run(self, cell: str) -> None:
        self._num_cells += 1
        name, text = f"<cell {self._num_cells}>", textwrap.dedent(cell)
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), vars(self._main))

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401  whatever the cell made
        return vars(self._main)[name]

    def launch(self, expression: str, *args: object, **kwargs: object) -> Any:  # noqa: ANN401  what the function returns
        """What the function that `expression` gives returns in a rank."""
        function = eval(expression, vars(self._main))
        with pack(function, args, kwargs) as packed:
            return in_rank(packed)


def in_rank(packed: Packed) -> Any:  # noqa: ANN401  what the function returns
    """The value of the packed function, called in a child process. Raises `RankError`."""
    with call_in_rank(packed) as result:
        return unpack_value(result.fd)


def call_in_rank(packed: Packed) -> Packed:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = subprocess.run(
            [sys.executable, "-m", "tests.launch.payload.notebook_stand_in", str(packed.fd), str(theirs.fileno())],
            pass_fds=(packed.fd, theirs.fileno()),
            capture_output=True,
            text=True,
            timeout=CHILD_TIMEOUT_S,
            check=False,
        )
        if child.returncode:
            raise RankError(child.stderr)
        _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
    return Packed(fd, 0)


def _be_a_rank(payload_fd: int, socket_fd: int) -> None:
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        function, args, kwargs = unpack(payload_fd)
        value = function(*args, **kwargs)
    except Exception:  # noqa: BLE001  whatever the cell raises
        traceback.print_exc()  # the interpreter's own report, written in C, knows no source of cells
        sys.exit(1)
    with pack_value(value) as packed, socket.socket(fileno=socket_fd) as channel:
        socket.send_fds(channel, [b"v"], [packed.fd])


if __name__ == "__main__":
    _be_a_rank(int(sys.argv[1]), int(sys.argv[2]))
