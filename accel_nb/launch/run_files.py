"""Where runs leave their logs: one folder per run, the newest kept."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import PlanError
from ..protocol import environment

KEPT_RUNS = 50
_RUN_PREFIX = "run-"
_SERVER_PREFIX = "server-"
_RECORD = "run.jsonl"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What flock(2) fails with on file systems, or emulations of Linux, without locks."""


def new_run_id() -> str:
    """Sorts by time, unique among kernels: ``20261127-234105-9f3a71c2``."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"


@contextlib.contextmanager
def run_dir(run_id: str) -> Iterator[Path]:
    """A new folder for `run_id`, readable by this user only, that no `prune` of any kernel removes in the meantime.

    Raises PlanError when the place cannot be written.
    """
    root = log_folder()
    directory = folder_of(run_id)
    try:
        directory.mkdir(mode=0o700)
        record = (directory / _RECORD).open("ab")
    except OSError as error:
        raise _not_writable(root, str(error.strerror)) from error
    with record:
        _lock(record)
        yield directory


def folder_of(run_id: str) -> Path:
    """Where that run's files are, or would be. Raises PlanError, as `log_folder`."""
    return log_folder() / f"{_RUN_PREFIX}{run_id}"


def _lock(record: BinaryIO) -> None:
    """Against `prune`. Locks of this kind go with the process, however it ends."""
    try:
        fcntl.flock(record, fcntl.LOCK_SH)
    except OSError as error:
        # Some network file systems have no locks. There `prune` takes all for in use.
        if error.errno not in _NO_LOCKS:
            raise


def log_folder() -> Path:
    """The folder of all runs, made if need be. Raises PlanError."""
    try:
        root = environment.log_root()
    except FileNotFoundError as error:
        raise PlanError(
            "ACCEL_NB_LOG_DIR is relative to this kernel's working directory, which has been deleted. Set it to an "
            "absolute path, or change to a folder that exists with os.chdir(...)."
        ) from error
    try:
        str(root).encode()
    except UnicodeEncodeError as error:
        # Events and messages, which are text, name it.
        raise PlanError(
            f"Logs cannot be written to {str(root)!r}: its name is not UTF-8. Set the variable ACCEL_NB_LOG_DIR to a "
            "folder whose name is."
        ) from error
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
    except FileExistsError as error:
        raise _not_writable(root, os.strerror(errno.ENOTDIR)) from error
    except OSError as error:
        raise _not_writable(root, str(error.strerror)) from error
    return root


def _not_writable(root: Path, reason: str) -> PlanError:
    return PlanError(
        f"Logs cannot be written to {root}: {reason}. Set the variable ACCEL_NB_LOG_DIR to a folder that can "
        "be written."
    )


def prune() -> None:
    """Remove the logs of runs beyond the newest `KEPT_RUNS`, and of servers whose kernel is gone beyond as many."""
    base = environment.log_root()
    runs = sorted(entry for entry in base.iterdir() if entry.name.startswith(_RUN_PREFIX))
    for old in runs[:-KEPT_RUNS]:
        if not _in_use(old):
            shutil.rmtree(old, ignore_errors=True)
    logs = sorted(base.glob(f"{_SERVER_PREFIX}*.log"), key=lambda log: log.stat().st_mtime)
    for log in logs[:-KEPT_RUNS]:
        if not Path(f"/proc/{log.stem.removeprefix(_SERVER_PREFIX)}").exists():
            log.unlink(missing_ok=True)


def _in_use(directory: Path) -> bool:
    try:
        with (directory / _RECORD).open("r+b") as record:
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def server_log() -> Path:
    """The log of this process's warm servers. Raises PlanError when the place cannot be written."""
    return log_folder() / f"{_SERVER_PREFIX}{os.getpid()}.log"
