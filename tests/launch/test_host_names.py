"""Launches where the name server does not answer."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from accel_nb.launch.host_names import configured
from accel_nb.launch.planning.ports import bind_loopback

NAME_SERVER = "127.53.0.1"
"""One that no resolver of the machine listens on."""


@pytest.fixture
def questions() -> Iterator[socket.socket]:
    """Those that came wait in the socket of a name server that never answers."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here, which gives a process name servers of its own")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        try:
            server.bind((NAME_SERVER, 53))
        except OSError as error:
            pytest.skip(f"no name server of one's own here: {error}")
        server.setblocking(False)
        yield server


def come(server: socket.socket) -> list[bytes]:
    found = []
    with contextlib.suppress(BlockingIOError):
        while True:
            found.append(server.recv(1 << 12))
    return found


def run(what: str, tmp_path: Path, *arguments: str) -> str:
    """In a mount namespace of its own, where `/etc/resolv.conf` names that server."""
    resolver = tmp_path / "resolv.conf"
    resolver.write_text(f"nameserver {NAME_SERVER}\noptions timeout:1 attempts:1\n")
    names = tmp_path / "nsswitch.conf"
    names.write_text("hosts: files dns\n")
    command = shlex.join([sys.executable, "-m", "tests.launch.host_name_code", what, *arguments])
    mounts = [f"mount --bind {shlex.quote(str(file))} /etc/{file.name}" for file in (resolver, names)]
    script = " && ".join([*mounts, f"exec {command}"])
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        env=os.environ | {"ACCEL_NB_VIEW": "text"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if done.returncode and ("unshare:" in done.stderr or "mount:" in done.stderr):
        pytest.skip(f"no mount namespace of one's own here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("port_given", [False, True])
def test_a_launch_does_not_wait_for_a_name_server(port_given: bool, questions: socket.socket, tmp_path: Path) -> None:
    with bind_loopback(None) as free:
        port = str(free.getsockname()[1])
    output = run("sums", tmp_path, *([port] if port_given else []))

    assert output.splitlines()[-1] == "[2.0, 2.0]"
    assert come(questions) == []


def test_torch_alone_asks_it(questions: socket.socket, tmp_path: Path) -> None:
    """Once this fails torch has ceased to, and `accel_nb.launch.host_names` can go."""
    run("by_torch_alone", tmp_path)

    assert any(b"in-addr" in question for question in come(questions))


def test_the_functions_of_users_ask_it(questions: socket.socket, tmp_path: Path) -> None:
    run("asks", tmp_path)

    asked = come(questions)
    assert sum(b"node7" in question for question in asked) >= 4
    assert sum(b"7\x012\x010\x03192" in question for question in asked) >= 4


@pytest.mark.parametrize(
    ("text", "services"),
    [
        ("passwd: files\nhosts:  files dns # all\n", "files dns"),
        ("# hosts: nis\n hosts : db files", "db files"),
        ("hosts: files\nhosts: files dns myhostname\n", "files dns myhostname"),
        ("hosts:\n", "files dns"),
        ("", "files dns"),
    ],
)
def test_what_the_machine_has_configured(text: str, services: str, tmp_path: Path) -> None:
    file = tmp_path / "nsswitch.conf"
    file.write_text(text)
    assert configured(file) == services


def test_a_machine_without_a_configuration(tmp_path: Path) -> None:
    assert configured(tmp_path / "missing") == "files dns"
