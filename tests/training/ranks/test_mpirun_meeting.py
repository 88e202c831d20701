"""Ranks that were told no address: which mpirun counts, and whose file is believed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from accel_nb.errors import TrainingError
from accel_nb.protocol import environment
from accel_nb.training.ranks import mpirun_meeting
from accel_nb.training.ranks.mpirun_meeting import met_under_mpirun

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where rank 0 would say where to meet."""
    found = tmp_path / "meeting"
    monkeypatch.setattr(mpirun_meeting, "_meeting_file", lambda _: found)
    monkeypatch.setattr(mpirun_meeting, "DEADLINE_S", 0.2)
    return found


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (OPEN_MPI, "OMPI_COMM_WORLD_RANK"),
        (HYDRA, "PMI_RANK"),
        ({**HYDRA, "MPI_LOCALNRANKS": "1"}, ""),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, ""),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, ""),
        ({**OPEN_MPI, "RANK": "1", "WORLD_SIZE": "2"}, ""),
        ({}, ""),
    ],
)
def test_only_an_mpirun_with_all_ranks_on_this_machine_counts(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert environment.mpi_rank_variable() == expected


def test_a_rank_that_waits_in_vain_says_for_whom(file: Path) -> None:
    with (
        pytest.raises(TrainingError, match=f"rank 1 has waited 0.2 s for rank 0, which has not said .*{file}"),
        met_under_mpirun(1, "PMI_RANK"),
    ):
        pass


def test_what_a_program_has_left_that_has_ended_is_not_believed(file: Path) -> None:
    file.write_text(json.dumps([29500, os.getpid(), "another start"]))

    with pytest.raises(TrainingError, match="has not said where to meet"), met_under_mpirun(1, "PMI_RANK"):
        pass
