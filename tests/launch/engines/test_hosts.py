from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.launch.engines.hosts import reason_against, simulated_hosts

pytestmark = [pytest.mark.engines, pytest.mark.skipif(bool(reason_against(ssh=True)), reason=reason_against(ssh=True))]


def test_simulated_hosts_reach_each_other_by_name_and_by_ssh(tmp_path: Path) -> None:
    with simulated_hosts(tmp_path, 3, ssh=True) as hosts:
        done = hosts[0].run(hosts.ssh, "host-2", "hostname; echo $PYTHONPATH")

        assert done.stdout.split() == ["host-2", str(Path(__file__).parents[3])], done.stderr


def test_a_simulated_host_can_be_unplugged_and_can_refuse_keys(tmp_path: Path) -> None:
    with simulated_hosts(tmp_path, 2, ssh=True) as hosts:
        hosts[1].refuse_keys()
        refused = hosts[0].run(hosts.ssh, "host-1", "true")
        hosts[1].cut()
        down = hosts[0].run(hosts.ssh, "host-1", "true")
        hosts[1].plug_in()
        up = hosts[0].run("bash", "-c", ": < /dev/tcp/host-1/22")

    assert "Permission denied" in refused.stderr
    assert "connect to host" in down.stderr
    assert up.returncode == 0, up.stderr


def test_nothing_is_left_of_simulated_hosts(tmp_path: Path) -> None:
    with simulated_hosts(tmp_path, 2) as hosts:
        namespaces = [host.namespace for host in hosts]
        left_behind = hosts[1].start("sleep", "1000")
        assert [process.pid for process in hosts[1].processes()] == [left_behind.pid]

    known = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert left_behind.wait(10) == -9
    assert not any(name in known or (Path("/etc/netns") / name).exists() for name in namespaces)
