from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from accel_nb.errors import PlanError
from accel_nb.launch import run_files
from accel_nb.launch.run_files import KEPT_RUNS, new_run_id, prune, run_dir


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_NB_LOG_DIR", str(tmp_path))


def over(run_id: str) -> Path:
    with run_dir(run_id) as directory:
        return directory


def test_a_runs_folder_is_for_its_user_only() -> None:
    directory = over(new_run_id())

    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_the_newest_runs_are_kept() -> None:
    directories = [over(f"{number:03}") for number in range(KEPT_RUNS + 3)]

    prune()

    assert [directory.exists() for directory in directories] == [False] * 3 + [True] * KEPT_RUNS


def test_a_run_under_way_keeps_its_folder_whatever_is_launched_meanwhile() -> None:
    with run_dir("000") as running:
        for number in range(1, KEPT_RUNS + 3):
            over(f"{number:03}")
        prune()
        assert running.exists()

    prune()

    assert not running.exists()


def test_logs_of_servers_go_when_their_kernel_is_gone_and_there_are_many(tmp_path: Path) -> None:
    own = run_files.server_log()
    gone = [tmp_path / f"server-{(1 << 22) + number}.log" for number in range(KEPT_RUNS + 2)]
    for age, log in enumerate((own, *gone)):
        log.touch()
        os.utime(log, (age, age))

    prune()

    assert own.exists()
    assert [log.exists() for log in gone] == [False] * 2 + [True] * KEPT_RUNS


def test_run_ids_sort_by_time() -> None:
    first, later = "20261127-234105-ffffffff", new_run_id()

    assert first < later
    assert len(first) == len(later)


def test_a_folder_is_never_shared_by_two_runs(tmp_path: Path) -> None:
    over("000")

    with pytest.raises(PlanError, match=f"Logs cannot be written to {tmp_path}: File exists"):
        over("000")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_stops_no_run_and_loses_no_logs(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)

    directories = [over(f"{number:03}") for number in range(KEPT_RUNS + 1)]
    prune()

    assert all(directory.exists() for directory in directories)


def test_another_failure_to_lock_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", flock)

    with pytest.raises(OSError, match="Input/output error"):
        over("000")


@pytest.mark.parametrize("place", ["file", "file/runs"])
@pytest.mark.parametrize("make", [run_files.server_log, lambda: over("000")], ids=["server", "run"])
def test_a_refusal_names_the_folder_that_cannot_be_written(
    make: Callable[[], Path], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ACCEL_NB_LOG_DIR", str(tmp_path / place))

    with pytest.raises(PlanError) as caught:
        make()

    assert str(caught.value) == (
        f"Logs cannot be written to {tmp_path / place}: Not a directory. Set the variable ACCEL_NB_LOG_DIR "
        "to a folder that can be written."
    )


def test_a_folder_whose_name_is_no_utf8_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_NB_LOG_DIR", str(tmp_path / "caf\udce9"))

    with pytest.raises(PlanError, match=r"caf\\udce9': its name is not UTF-8\. Set the variable ACCEL_NB_LOG"):
        run_files.server_log()


def test_a_relative_folder_in_a_working_directory_that_is_gone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("ACCEL_NB_LOG_DIR", "runs")

    with pytest.raises(PlanError, match="ACCEL_NB_LOG_DIR is relative to this kernel's working directory, which has"):
        run_files.server_log()


def test_the_servers_log_is_made_where_the_runs_are(tmp_path: Path) -> None:
    assert run_files.server_log() == tmp_path / f"server-{os.getpid()}.log"
