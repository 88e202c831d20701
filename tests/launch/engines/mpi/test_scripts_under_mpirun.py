"""``mpirun python script.py``: the training layer finds out by itself which rank it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ...launching import on_ranks
from .mpi_code import trained

pytestmark = pytest.mark.engines
PROJECT = Path(__file__).parents[4]
SCRIPT = """
import json, sys
from accel_nb import PartialState
from tests.launch.engines.mpi.mpi_code import trained
losses = trained()
state = PartialState()
with open(f"{sys.argv[1]}.{state.process_index}", "w") as file:
    json.dump([state.process_index, state.local_process_index, state.num_processes, losses], file)
"""


@pytest.mark.parametrize("between", [[], ["sh", "-c", '"$@"; exit $?', "sh"]], ids=["alone", "in a shell"])
def test_a_script_trains_as_under_our_own_launcher(family: str, between: list[str], tmp_path: Path) -> None:
    """Without having been told where the ranks meet."""
    (tmp_path / "script.py").write_text(SCRIPT)
    folder = tmp_path / "folder"
    folder.mkdir()
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    options = [*root, "--oversubscribe", "--bind-to", "none"] if family == "openmpi" else []
    more = {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    program = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "said")]

    done = subprocess.run(
        ["mpirun", *options, "-n", "2", *between, *program],
        env={**os.environ, **more}, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    said = [json.loads((tmp_path / f"said.{rank}").read_text()) for rank in range(2)]
    losses = on_ranks(trained)
    assert said == [[rank, rank, 2, losses[rank]] for rank in range(2)]
    assert not list(folder.glob("accel_nb_*"))
