"""Where runs leave their logs, and whether they can."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

from ...errors import PlanError
from ...protocol.diagnosis import Fact, Finding
from ..run_files import log_folder


def problem() -> str:
    """Why nothing can be written there; empty when something can. Makes the folder if need be, as a launch would."""
    try:
        folder = log_folder()
    except PlanError as error:
        return str(error)
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"Logs cannot be written to {folder}: {error.strerror}."


def facts(trouble: str) -> Iterator[Fact]:
    """`trouble`: see `problem`."""
    yield Fact(group="settings", name="logs of runs", value="none, see below" if trouble else str(log_folder()))


def findings(trouble: str) -> Iterator[Finding]:
    if trouble:
        yield Finding(
            severity="problem",
            what=trouble,
            why="Every run, and the process that forks ranks, writes a log: without one nothing is launched.",
            remedy="Before launching, set os.environ['ACCEL_NB_LOG_DIR'] to a folder of yours; also look whether the "
            "disk is full.",
        )
