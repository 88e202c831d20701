"""A running mpirun, of which a shell plays the part."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accel_nb.errors import StartError
from accel_nb.launch.engines.mpi import _addresses
from accel_nb.launch.engines.on_mpi.hosts import HostShare
from accel_nb.launch.engines.on_mpi.mpirun import Mpirun

from ...census import wait_until

HERE = [HostShare("localhost", 2, is_here=True)]


def test_what_it_says_is_told_without_what_an_attempt_before_has_said(tmp_path: Path) -> None:
    log = tmp_path / "mpirun.log"
    log.write_text("of the first attempt\n")
    mpirun = Mpirun(["/bin/sh", "-c", "echo of the second; exit 3"], dict(os.environ), HERE, log)

    wait_until(lambda: bool(mpirun.gone()), 30, lambda: "it has not ended")

    told = "mpirun said: of the second mpirun ended with exit status 3."
    assert mpirun.gone() == {0: told, 1: told}
    assert (mpirun.evidence(1), mpirun.fd()) == (told, -1)
    mpirun.close()
    assert log.read_text() == "of the first attempt\nof the second\n"


def test_one_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="/no/such/mpirun cannot be started: No such file"):
        Mpirun(["/no/such/mpirun"], dict(os.environ), HERE, tmp_path / "mpirun.log")


def test_an_address_of_the_users_is_taken_also_on_one_machine() -> None:
    assert _addresses(HERE, "127.0.0.1") == ["127.0.0.1"]
    assert _addresses(HERE, "192.0.2.7") == ["192.0.2.7"]
    assert _addresses([*HERE, HostShare("far", 1)], "192.0.2.7") == ["192.0.2.7"]
