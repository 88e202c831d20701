"""Several hosts on one machine, each with a network, a name and, if wanted, an ssh server of its own.

    host-0  10.77.0.1 ══eth0══╗
    host-1  10.77.0.2 ══eth0══╬══ a bridge in a namespace of its own     (nothing of it reaches the machine's network)
    host-2  10.77.0.3 ══eth0══╝

Files and process ids are the machine's: what is simulated is the network. It takes root and iproute2.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).parents[3]
INTERFACE = "eth0"
"""Of each host, beside its own loopback."""
SESSION_MARK = "ACCEL_NB_TEST_SESSION"
_NAMESPACE_FILES = Path("/etc/netns")
"""``ip netns exec`` shows a process the files in ``/etc/netns/<name>`` as those of ``/etc`` (ip-netns(8))."""
_NAMED = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
_ENDS_S = 10.0


def reason_against(*, ssh: bool = False) -> str:
    """Why hosts cannot be simulated here; empty: they can."""
    wanted = ["ip", "unshare", *(("sshd", "ssh", "ssh-keygen") if ssh else ())]
    missing = [name for name in wanted if _program(name) is None]
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    if missing:
        return f"needs {', '.join(missing)}: apt-get install iproute2 openssh-server"
    probe = f"nbprobe{secrets.token_hex(3)}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"needs network namespaces: {made.stderr.strip()}"
    _ip("netns", "delete", probe)
    return ""


class Host:
    """One of them."""

    def __init__(self, namespace: str, name: str, address: str, folder: Path) -> None:
        self.namespace = namespace
        self.name = name
        """Its host name, which all of them can resolve."""
        self.address = address
        self.folder = folder
        """For files of its own, such as its ``authorized_keys``."""

    def command(self, *words: object) -> list[str]:
        """`words` as a command on this host. It becomes the very process that is started: its pid is the command's."""
        named = ["unshare", "--uts", "sh", "-c", _NAMED, self.name]
        return ["ip", "netns", "exec", self.namespace, *named, *map(str, words)]

    def start(self, *words: object, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[Any]:  # noqa: ANN401  of Popen
        """A process on this host, with this process's environment and `env` on top."""
        return subprocess.Popen(self.command(*words), env={**os.environ, **(env or {})}, **options)

    def run(self, *words: object, timeout_s: float = 60.0, **options: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401  of subprocess.run
        """What the command gave: exit status and text."""
        return subprocess.run(
            self.command(*words), capture_output=True, text=True, check=False, timeout=timeout_s, **options
        )

    def processes(self) -> list[psutil.Process]:
        """All that runs on this host, its ssh server left out."""
        found = []
        for pid in _ip("netns", "pids", self.namespace).split():
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(int(pid))
                if not process.name().startswith("sshd"):
                    found.append(process)
        return found

    def kill_all(self) -> None:
        """SIGKILL to all of them at once: as far as processes see, the host has lost its power."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()  # none may see another die and say so
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def cut(self) -> None:
        """Unplug its network: nobody is told, packets are lost."""
        _ip("-n", self.namespace, "link", "set", INTERFACE, "down")

    def plug_in(self) -> None:
        """Undo `cut`."""
        _ip("-n", self.namespace, "link", "set", INTERFACE, "up")

    def refuse_keys(self) -> None:
        """Its ssh server takes nobody's key any more."""
        (self.folder / "authorized_keys").write_text("")


class Hosts:
    """All of them, and how to reach one from another."""

    def __init__(self, hosts: Sequence[Host], ssh: Path | None) -> None:
        self._hosts = tuple(hosts)
        self._ssh = ssh

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts)

    def __len__(self) -> int:
        return len(self._hosts)

    def __getitem__(self, index: int) -> Host:
        return self._hosts[index]

    @property
    def ssh(self) -> Path:
        """A program that does what ``ssh`` does, with the key that the hosts' servers accept and without questions."""
        assert self._ssh is not None, "simulated_hosts(..., ssh=True)"
        return self._ssh


@contextlib.contextmanager
def simulated_hosts(folder: Path, num: int = 2, *, ssh: bool = False) -> Iterator[Hosts]:
    """`num` hosts that reach each other; nothing of them is left afterwards. `folder` is for keys and logs.

    Whoever cannot have them (`reason_against`) must not ask.
    """
    mark = f"nb{secrets.token_hex(3)}"
    switch = f"{mark}s"
    names = [f"host-{index}" for index in range(num)]
    with contextlib.ExitStack() as undo:
        _namespace(undo, switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        hosts = []
        for index, name in enumerate(names):
            own = folder / name
            own.mkdir(parents=True, exist_ok=True)
            host = Host(f"{mark}h{index}", name, f"10.77.0.{index + 1}", own)
            _namespace(undo, host.namespace)
            _files(undo, host, names)
            _plug(host, switch, f"port{index}")
            hosts.append(host)
        program = None
        if ssh:
            program = _key_and_program(folder)
            for host in hosts:
                _serve_ssh(undo, host, folder)
        yield Hosts(hosts, program)


def _namespace(undo: contextlib.ExitStack, name: str) -> None:
    _ip("netns", "add", name)
    undo.callback(_ip, "netns", "delete", name)
    undo.callback(_end_all, name)


def _end_all(namespace: str) -> None:
    """Whatever still runs there: the namespace is ours alone, and so is all that is in it."""

    def none_left() -> bool:
        for pid in _ip("netns", "pids", namespace).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        return not _ip("netns", "pids", namespace).split()

    _wait_until(none_left, f"processes in {namespace} do not end")


def _files(undo: contextlib.ExitStack, host: Host, names: Sequence[str]) -> None:
    """So that names of hosts resolve on them."""
    folder = _NAMESPACE_FILES / host.namespace
    folder.mkdir(parents=True)
    undo.callback(shutil.rmtree, folder)
    lines = [f"10.77.0.{index + 1} {name}" for index, name in enumerate(names)]
    (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", "::1 localhost", *lines, ""]))
    (folder / "resolv.conf").write_text("options timeout:1 attempts:1\n")


def _plug(host: Host, switch: str, port: str) -> None:
    own = ("-n", host.namespace)
    _ip(*own, "link", "add", INTERFACE, "type", "veth", "peer", "name", port, "netns", switch)
    _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
    _ip(*own, "addr", "add", f"{host.address}/24", "dev", INTERFACE)
    for interface in ("lo", INTERFACE):
        _ip(*own, "link", "set", interface, "up")


def _key_and_program(folder: Path) -> Path:
    """Keys of servers and user, and the ssh that uses them."""
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    options = (
        "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "BatchMode=yes",
        "ConnectTimeout=5",
    )  # fmt: skip
    told = " ".join(f"-o {option}" for option in options)
    program = folder / "ssh"
    program.write_text(f'#!/bin/sh\nexec ssh -F none -i {folder / "user_key"} {told} "$@"\n')
    program.chmod(0o755)
    return program


def _serve_ssh(undo: contextlib.ExitStack, host: Host, folder: Path) -> None:
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd confines itself; the system's own service makes it, too
    shutil.copy(folder / "user_key.pub", host.folder / "authorized_keys")
    variables = {"PYTHONPATH": str(REPOSITORY), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if SESSION_MARK in os.environ:
        variables[SESSION_MARK] = os.environ[SESSION_MARK]
    options = {
        "AuthorizedKeysFile": host.folder / "authorized_keys",
        "ListenAddress": host.address,
        "PasswordAuthentication": "no",
        "PermitRootLogin": "yes",
        "PidFile": "none",
        "SetEnv": " ".join(f"{name}={value}" for name, value in variables.items()),
        "StrictModes": "no",
        "UsePAM": "no",
    }
    told = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    program = _program("sshd")
    with (host.folder / "sshd.log").open("wb") as log:
        server = host.start(program, "-D", "-e", "-h", folder / "host_key", "-f", "/dev/null", *told, stderr=log)
    undo.callback(_end, server)
    _wait_until(lambda: _listens(host, 22), f"sshd of {host.name}: {(host.folder / 'sshd.log').read_text()}")


def _listens(host: Host, port: int) -> bool:
    return host.run("bash", "-c", f": < /dev/tcp/{host.address}/{port}").returncode == 0


def _end(server: subprocess.Popen[Any]) -> None:
    server.kill()
    server.wait()


def _wait_until(is_so: Callable[[], bool], complaint: str) -> None:
    end = time.monotonic() + _ENDS_S
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(complaint)
        time.sleep(0.05)


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
