"""``backend="mpi"`` over two hosts, which are simulated: each has a network and an ssh server of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ...census import wait_until
from ..hosts import Host, Hosts, reason_against, simulated_hosts

_REASON = reason_against(ssh=True)
pytestmark = [
    pytest.mark.engines,
    pytest.mark.faults,
    pytest.mark.skipif(bool(_REASON), reason=f"simulated hosts: {_REASON}"),
]
TIMEOUT_S = 110


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[Hosts]:
    with simulated_hosts(tmp_path / "hosts", 2, ssh=True) as hosts:
        (tmp_path / "hostfile").write_text("".join(f"{host.name}\n" for host in hosts))
        yield hosts


def started(hosts: Hosts, tmp_path: Path, function: str, num_processes: int = 2) -> subprocess.Popen[str]:
    """A kernel on the first host that launches `function` over both."""
    variables = {"OMPI_MCA_plm_rsh_agent": str(hosts.ssh), "HYDRA_LAUNCHER_EXEC": str(hosts.ssh)}
    words = [sys.executable, "-m", "tests.launch.engines.mpi.on_hosts", tmp_path / "hostfile", function, num_processes]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return hosts[0].start(*words, env=variables, cwd=Path(__file__).parents[4], **pipes)


def said(kernel: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = kernel.communicate(timeout=TIMEOUT_S)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    assert lines, err
    return dict(json.loads(lines[-1]))


def expect_nothing_left(host: Host) -> None:
    wait_until(lambda: not host.processes(), 30, lambda: f"left on {host.name}: {host.processes()}")


def test_n05_ranks_on_two_hosts_meet_at_an_address_that_both_reach(
    family: str,  # noqa: ARG001  which MPI
    two_hosts: Hosts,
    tmp_path: Path,
) -> None:
    told = said(started(two_hosts, tmp_path, "who"))

    assert [rank["GROUP_RANK"] for rank in told["values"]] == ["0", "1"]
    assert [rank["LOCAL_RANK"] for rank in told["values"]] == ["0", "0"]
    assert {rank["MASTER_ADDR"] for rank in told["values"]} == {two_hosts[0].address}
    assert {rank["GLOO_SOCKET_IFNAME"] for rank in told["values"]} == {"eth0"}


def test_ranks_on_two_hosts_train_together(
    family: str,  # noqa: ARG001  which MPI
    two_hosts: Hosts,
    tmp_path: Path,
) -> None:
    told = said(started(two_hosts, tmp_path, "trained", 4))

    assert len(told["values"]) == 4
    assert all(losses == told["values"][0] for losses in told["values"])
    assert told["logs"][3].endswith("rank 3 of 4 has trained\n")
    for host in two_hosts:
        expect_nothing_left(host)


@pytest.mark.usefixtures("open_mpi")
def test_a_host_that_refuses_to_let_in_is_named(two_hosts: Hosts, tmp_path: Path) -> None:
    two_hosts[1].refuse_keys()

    told = said(started(two_hosts, tmp_path, "who"))

    assert told["error"] == "EngineUnavailable"
    assert "mpirun cannot start ranks on host-1: ssh does not get there" in told["text"]
    assert "Permission denied" in told["text"]


@pytest.mark.usefixtures("open_mpi")
def test_a_host_that_is_down_is_named(two_hosts: Hosts, tmp_path: Path) -> None:
    two_hosts[1].cut()

    told = said(started(two_hosts, tmp_path, "who"))

    assert told["error"] == "EngineUnavailable"
    assert "mpirun cannot start ranks on host-1" in told["text"]


def test_an_interrupt_leaves_nothing_on_either_host(
    family: str,  # noqa: ARG001  which MPI
    two_hosts: Hosts,
    tmp_path: Path,
) -> None:
    kernel = started(two_hosts, tmp_path, "sleeps")
    assert kernel.stderr is not None
    while "[r1] rank 1 is up" not in (line := kernel.stderr.readline()):
        assert line, "the ranks have not come up"

    kernel.send_signal(signal.SIGINT)

    assert said(kernel) == {"interrupted": True}
    for host in two_hosts:
        expect_nothing_left(host)
