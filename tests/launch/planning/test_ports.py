from __future__ import annotations

import os
import socket
import subprocess
import sys

import psutil
import pytest

from accel_nb.errors import PlanError, PortInUse
from accel_nb.launch.planning.ports import bind_loopback


def test_r04_a_free_port_is_held_and_listens_on_loopback_only() -> None:
    with bind_loopback(None) as listener:
        host, port = listener.getsockname()
        with socket.create_connection((host, port), timeout=5):
            pass

        assert host == "127.0.0.1"
        assert port > 0
        with pytest.raises(PortInUse):
            bind_loopback(port)


def test_a_given_port_is_taken() -> None:
    with bind_loopback(None) as first:
        port = first.getsockname()[1]

    with bind_loopback(port) as listener:
        assert listener.getsockname() == ("127.0.0.1", port)


def test_a_port_in_time_wait_is_taken_again_at_once() -> None:
    with bind_loopback(None) as listener:
        port = listener.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = listener.accept()
        accepted.close()  # the side that closes first lingers
        client.close()

    with bind_loopback(port) as again:
        assert again.getsockname()[1] == port


def test_the_socket_is_not_inherited_by_programs() -> None:
    with bind_loopback(None) as listener:
        assert not listener.get_inheritable()


def test_r03_a_busy_port_is_explained_with_its_owner() -> None:
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        port = int(owner.stdout.readline())

        with pytest.raises(PortInUse) as caught:
            bind_loopback(port)

        owner.communicate("\n")
    text = str(caught.value)
    assert text.startswith(f"use_port={port} cannot be used: 127.0.0.1:{port} is taken by pid {owner.pid} (")
    assert "import socket; s = socket.create_server" in text
    assert text.endswith("End that process or give another port; leave use_port out and a free port is chosen.")
    assert text.count("\n") == 0


def test_r03_an_owner_that_cannot_be_known_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(kind: str) -> list[object]:
        raise PermissionError(kind)

    monkeypatch.setattr(psutil, "net_connections", refuse)
    with bind_loopback(None) as listener:
        port = listener.getsockname()[1]

        with pytest.raises(PortInUse, match="is taken by a process that cannot be named here"):
            bind_loopback(port)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may bind any port")
def test_a_privileged_port_is_refused() -> None:
    with pytest.raises(PlanError, match="use_port=80 cannot be used: ports below 1024 need privileges"):
        bind_loopback(80)
