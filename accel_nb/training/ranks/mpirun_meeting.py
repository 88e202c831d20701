"""Where ranks meet that mpirun has started on one machine without saying where: at a store of rank 0's, whose port
stands in a file that is named after the process that has started them all.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, not in __all__

from ...errors import TrainingError
from ...protocol import environment

DEADLINE_S = 120.0
"""For rank 0 to begin; as `Timeouts.rendezvous_s` of a launch."""
_HOST = "127.0.0.1"
_LOOK_S = 0.05
_STORES: list[TCPStore] = []
"""Rank 0's, for as long as it lives: groups are opened by them again and again."""


@contextlib.contextmanager
def met_under_mpirun(rank: int, rank_variable: str) -> Iterator[None]:
    """Inside, this rank's environment says where the ranks meet, as torchrun's would; it stays like that. Leave it when
    all have met. `rank_variable`: by which mpirun has told the rank. Raises TrainingError.
    """
    file = _meeting_file(rank_variable)
    if rank:
        environment.set_rendezvous(_HOST, _read(file, rank))
        yield
        return
    with socket.create_server((_HOST, 0)) as listener:
        port = listener.getsockname()[1]
        _STORES.append(
            TCPStore(
                _HOST,
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=os.dup(listener.fileno()),
                use_libuv=False,  # torch 2.6's libuv server takes no listening descriptor; the plain one always does
            )
        )
    _write(file, port)
    try:
        environment.set_rendezvous(_HOST, port)
        yield
    finally:
        file.unlink(missing_ok=True)


def _meeting_file(rank_variable: str) -> Path:
    """The same for all ranks of one mpirun, and for no others."""
    starter = _starter(rank_variable.encode())
    return Path(tempfile.gettempdir()) / f"accel_nb_meeting_{os.getuid()}_{starter}_{_begun(starter)}"


def _starter(rank_variable: bytes) -> int:
    """The nearest process above this one that is no part of a rank: mpirun, or its helper on this machine."""
    pid = os.getppid()
    while pid > 1:
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            break  # another user's
        if not any(one.startswith(rank_variable + b"=") for one in variables):
            break
        pid = int(_stat(pid)[1])
    return pid


def _stat(pid: int) -> list[str]:
    """Of proc(5), from the state on. Empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _begun(pid: int) -> str:
    """When it was started; empty when it has ended."""
    stat = _stat(pid)
    return stat[19] if stat else ""


def _write(file: Path, port: int) -> None:
    """All at once, and for this user's eyes only."""
    own = os.getpid()
    try:
        fd, made = tempfile.mkstemp(dir=file.parent, prefix=f"{file.name}_")
        with os.fdopen(fd, "w") as opened:
            json.dump([port, own, _begun(own)], opened)
        Path(made).replace(file)
    except OSError as error:
        raise TrainingError(
            f"rank 0 cannot tell the other ranks where to meet, in {file}: {error.strerror}. Set TMPDIR to a folder "
            "that can be written, or MASTER_ADDR and MASTER_PORT."
        ) from error


def _read(file: Path, rank: int) -> int:
    """Waits for rank 0. Raises TrainingError."""
    end_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < end_s:
        with contextlib.suppress(FileNotFoundError), file.open() as opened:
            if os.fstat(opened.fileno()).st_uid == os.getuid():
                port, writer, begun = json.load(opened)
                # What a program of the same mpirun's has left that ended before it had met is not meant.
                if begun == _begun(writer):
                    return int(port)
        time.sleep(_LOOK_S)
    raise TrainingError(
        f"rank {rank} has waited {DEADLINE_S:g} s for rank 0, which has not said where to meet, in {file}. Either "
        "rank 0 has ended, or does not train; all ranks must."
    )
