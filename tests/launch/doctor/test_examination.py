"""The whole look, on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_nb.errors import InvalidArgument
from accel_nb.launch.doctor.examination import examine
from accel_nb.launch.servers.warm_client import POOL


def test_this_machine_is_looked_at_from_all_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("ACCELERATE_SECRET_TOKEN", "hush")

    found = examine(device="cpu")

    assert list(found.groups) == ["software", "machine", "devices", "this process", "settings", "self-test"]
    text = str(found)
    assert "ACCELERATE_MIXED_PRECISION" in text
    assert "hush" not in text
    assert "2 ranks on cpu met over gloo" in text


def test_without_a_self_test_no_server_is_started() -> None:
    before = POOL.pids()
    POOL.stop_all()

    found = examine(with_self_test=False)

    assert "self-test" not in found.groups
    assert POOL.pids() == [], before


def test_k13_a_machine_on_which_ranks_cannot_meet_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")

    found = examine(device="cpu")

    assert not found.healthy
    assert found.findings[0].severity == "problem"
    assert "It works with GLOO_SOCKET_IFNAME=lo" in found.findings[0].remedy


def test_a_device_that_is_not_there_is_a_problem() -> None:
    found = examine(device="quantum")

    assert any(one.what.startswith("device='quantum' is not known; allowed: ") for one in found.findings)
    assert not found.healthy


@pytest.mark.parametrize("with_self_test", [True, False])
def test_a_folder_of_logs_that_cannot_be_written_is_the_problem(
    monkeypatch: pytest.MonkeyPatch, *, with_self_test: bool
) -> None:
    monkeypatch.setenv("ACCEL_NB_LOG_DIR", "/proc/nowhere")

    found = examine(device="cpu", with_self_test=with_self_test)

    assert [one.what.split(":")[0] for one in found.findings if one.severity == "problem"] == [
        "Logs cannot be written to /proc/nowhere"
    ]


def test_a_working_directory_that_is_gone_is_no_end_of_the_look(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setenv("ACCEL_NB_LOG_DIR", "runs")

    found = examine(device="cpu")

    (problem,) = (one for one in found.findings if one.severity == "problem")
    assert problem.what.startswith("ACCEL_NB_LOG_DIR is relative to this kernel's working directory, which has been")


def test_an_argument_that_is_never_right_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="num_processes=0: give a whole number of at least 1"):
        examine(num_processes=0)
