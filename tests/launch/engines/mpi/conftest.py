"""Each MPI of this machine as the one that comes first on PATH."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from accel_nb.launch.engines.on_mpi.programs import find_program

_PROGRAMS = {"openmpi": "mpirun.openmpi", "mpich": "mpirun.mpich"}
"""Names under which Debian has both at once."""


def put_first(family: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips where this machine does not have it."""
    program = shutil.which(_PROGRAMS[family])
    if program is None:
        pytest.skip(f"needs {_PROGRAMS[family]}: apt-get install openmpi-bin mpich")
    folder.mkdir()
    script = folder / "mpirun"
    script.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.fixture(params=list(_PROGRAMS))
def family(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Open MPI, then MPICH."""
    put_first(request.param, tmp_path / "bin", monkeypatch)
    return str(request.param)


@pytest.fixture
def open_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_first("openmpi", tmp_path / "bin", monkeypatch)
    assert find_program(dict(os.environ)).family == "Open MPI"
