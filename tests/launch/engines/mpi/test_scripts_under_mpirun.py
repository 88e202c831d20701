"""``mpirun python script.py``: the training layer finds out by itself which rank it is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.devices.test_new_device import installed_in

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
state.destroy_process_group()  # torch aborts a process now and then that ends with a group open (pytorch#190489)
"""


@pytest.mark.parametrize("between", [[], ["sh", "-c", '"$@"; exit $?', "sh"]], ids=["alone", "in a shell"])
def test_a_script_trains_as_under_our_own_launcher(family: str, between: list[str], tmp_path: Path) -> None:
    """Without having been told where the ranks meet."""
    (tmp_path / "script.py").write_text(SCRIPT)
    folder = tmp_path / "folder"
    folder.mkdir()

    done = mpirun(
        family, 2, *between, sys.executable, tmp_path / "script.py", tmp_path / "said",
        folder=tmp_path, PYTHONPATH=str(PROJECT), TMPDIR=str(folder),
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    said = [json.loads((tmp_path / f"said.{rank}").read_text()) for rank in range(2)]
    losses = on_ranks(trained)
    assert said == [[rank, rank, 2, losses[rank]] for rank in range(2)]
    assert not list(folder.glob("accel_nb_*"))


def test_more_ranks_than_a_host_has_devices_for_are_refused_before_they_train(family: str, tmp_path: Path) -> None:
    """On three devices of a stand-in's."""
    (tmp_path / "script.py").write_text(SCRIPT)
    paths = os.pathsep.join([str(installed_in(tmp_path)), str(PROJECT)])

    done = mpirun(
        family, 4, sys.executable, tmp_path / "script.py", tmp_path / "said",
        folder=tmp_path, PYTHONPATH=paths, ACCEL_NB_DEVICE="abacus",
    )  # fmt: skip

    assert done.returncode != 0
    assert (
        f"TrainingError: {socket.gethostname()} runs 4 ranks, and this process sees 3 ABACUS devices; each rank "
        "takes the one of its own number there: start at most 3 there, let each rank see all devices, or compute on "
        "the CPU with Accelerator(cpu=True)."
    ) in done.stderr
    assert not list(tmp_path.glob("said.*"))


def mpirun(
    family: str, num_ranks: int, *program: str | Path, folder: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """What becomes of `num_ranks` times `program`, run in `folder` with `variables` as well."""
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    options = [*root, "--oversubscribe", "--bind-to", "none"] if family == "openmpi" else []
    return subprocess.run(
        ["mpirun", *options, "-n", str(num_ranks), *program],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        cwd=folder, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
