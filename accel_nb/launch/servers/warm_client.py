"""The kernel's side of warm servers: which one a run needs, starting it, replacing it when it died."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import msgspec

from ...errors import ServerFailed
from ...protocol import environment
from ...protocol.commands import CountDevices, ForkAhead, ServerReady, ServerRequest, StandBy, StartKeeper
from ...protocol.version import __version__
from ..channel import receive_packet, send_packet
from ..interpreter import start_interpreter
from ..processes import is_readable
from ..run_files import server_log

MAX_SERVERS = 3
"""Each holds about 300 MB; the one unused for longest makes room."""
SERVER_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""A server must have one thread when it forks: OpenBLAS starts its pool when NumPy loads. Ranks set their own."""
REQUEST_TIMEOUT_S = 10.0
"""A server that is busy forking for others takes the next request within milliseconds."""
_LOG_TAIL_LINES = 15
_DYING_S = 2.0
"""The system takes milliseconds to give back the memory of a server."""
_CLOSING_S = 0.05
"""The sockets of a process that ends close one after the other, within microseconds."""


class ServerKey(msgspec.Struct, frozen=True):
    """What a server has read once and for all: another value means another server."""

    variables: tuple[tuple[str, str], ...]
    torch_file: str
    torch_time_ns: int
    sites_time_ns: int = 0
    """When packages were last installed or removed; matters to a server that holds more than torch."""
    preload: tuple[str, ...] = ()

    @classmethod
    def for_run(cls, variables: Mapping[str, str], preload: tuple[str, ...] = ()) -> ServerKey:
        """The key for ranks that start from `variables`. Looks torch up without importing it."""
        read_at_load = {
            name: value
            for name, value in variables.items()
            if environment.is_server_key_variable(name) and name not in SERVER_THREADS
        }
        spec = find_spec("torch")
        file = spec.origin if spec is not None and spec.origin else ""
        changed_ns = Path(file).stat().st_mtime_ns if file else 0
        return cls(tuple(sorted(read_at_load.items())), file, changed_ns, preload=preload)


class WarmServer:
    """One server process of this kernel. Any thread may call; requests are serialised."""

    def __init__(self, key: ServerKey, variables: Mapping[str, str]) -> None:
        """Start the process; returns before it has imported anything. Raises ServerFailed when it cannot be started."""
        self.key = key
        self.used_s = time.monotonic()
        self._lock = threading.Lock()
        self._ready: ServerReady | None = None
        self._asked = False
        """Something was asked of it that somebody waits for."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests = ours
        self.log_file = server_log()
        with theirs, self.log_file.open("ab") as log, tempfile.TemporaryFile() as preload:
            # A file: thousands of module names do not fit into an argument.
            preload.write(msgspec.json.encode(key.preload))
            preload.seek(0)
            try:
                self._process = start_interpreter(
                    "accel_nb.launch.servers.warm_server",
                    "serve",
                    [os.getpid(), theirs.fileno(), preload.fileno(), __version__],
                    variables={**variables, **SERVER_THREADS},
                    pass_fds=[theirs.fileno(), preload.fileno()],
                    output=log.fileno(),
                )
            except OSError as error:
                ours.close()
                raise ServerFailed(f"The process that forks ranks cannot be started: {error}.") from error
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def poll_ready(self, timeout_s: float) -> ServerReady | None:
        """The server's word that it has imported everything, waiting for it that long; None when it is not there yet.

        Raises ServerFailed when the process has died.
        """
        with self._lock:
            if self._ready is None and is_readable(self._requests.fileno(), timeout_s):
                packet, _ = receive_packet(self._requests)
                if packet:
                    self._ready = msgspec.msgpack.decode(packet, type=ServerReady)
            if self._ready is None and not self.alive:
                raise ServerFailed(self.obituary())
            return self._ready

    def start_keeper(self, num_ranks: int, run_socket: socket.socket) -> None:
        """Ask for a keeper and hand it `run_socket`. Does not wait. Raises ServerFailed when the server is gone."""
        self._request(StartKeeper(num_ranks=num_ranks), (run_socket.fileno(),))

    def fork_ahead(self, num_ranks: int) -> None:
        """Have it fork so many ranks as soon as it is idle. Does not wait; a server that has died does not matter."""
        with contextlib.suppress(ServerFailed):
            self._request(ForkAhead(num_ranks=num_ranks), ())

    def stand_by(self, num_ranks: int, order_fd: int, kernel_socket: socket.socket) -> None:
        """Have so many ranks get ready as the memory file of a `StandbyOrder` says, and their keeper answer to
        `kernel_socket`. Does not wait. Raises ServerFailed when the server is gone.
        """
        self._request(StandBy(num_ranks=num_ranks), (order_fd, kernel_socket.fileno()))

    def count_devices(self, visibility: Mapping[str, str | None], timeout_s: float) -> dict[str, int]:
        """torch's own count by device kind under these visibility variables (None: unset), taken in a child of the
        server. Raises ServerFailed on death or timeout.
        """
        variables = {name: value for name, value in visibility.items() if value is not None}
        unset = tuple(name for name, value in visibility.items() if value is None)
        answer, write_end = os.pipe()
        try:
            try:
                self._request(CountDevices(variables=variables, unset=unset), (write_end,))
            finally:
                os.close(write_end)
            poll = select.poll()
            poll.register(answer, select.POLLIN)
            poll.register(self.pidfd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(timeout_s * 1000)}
            text = os.read(answer, 1 << 16) if answer in ready else b""
        finally:
            os.close(answer)
        if not text:
            raise ServerFailed(self.obituary("did not count the devices"))
        return msgspec.json.decode(text, type=dict[str, int])

    @property
    def is_idle_import(self) -> bool:
        """Whether it is still importing and nobody waits for it."""
        with contextlib.suppress(ServerFailed):
            return not self._asked and self.poll_ready(0.0) is None
        return False

    def stop(self) -> None:
        """Let the process end. It carries out what it was asked, and runs under way go on to their end."""
        with contextlib.suppress(ProcessLookupError):
            if self.is_idle_import:
                # It would read our going only after its imports.
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self._requests.close()

    def close(self) -> None:
        """Reap the process after `stop` or its death."""
        self._process.wait()
        self._requests.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def wait_if_dying(self) -> None:
        """Return once it is dead, when it has begun to die: its sockets close a moment before, and whoever tries again
        must find it dead.
        """
        poll = select.poll()
        poll.register(self._requests, 0)
        if poll.poll(_CLOSING_S * 1000):
            is_readable(self.pidfd, _DYING_S)

    def obituary(self, what: str = "died") -> str:
        """What happened, with the end of the server's log."""
        code = self._process.poll()
        status = "" if code is None else f" (status {code})"
        try:
            lines = self.log_file.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        except OSError as error:
            # Somebody tidied up: what is told here must not hide what happened.
            lines = [f"cannot be read: {error.strerror}"]
        tail = "\n".join(f"  {line}" for line in lines)
        return f"The process that forks ranks (pid {self.pid}) {what}{status}. The end of {self.log_file}:\n{tail}"

    def _request(self, request: ServerRequest, fds: tuple[int, ...]) -> None:
        self.used_s = time.monotonic()
        with self._lock:
            self._asked = self._asked or not isinstance(request, ForkAhead | StandBy)
            poll = select.poll()
            poll.register(self._requests, select.POLLOUT)
            if not poll.poll(REQUEST_TIMEOUT_S * 1000):
                raise ServerFailed(self.obituary(f"has not taken a request for {REQUEST_TIMEOUT_S:g} s"))
            try:
                send_packet(self._requests, request, fds)
            except OSError as error:
                self.wait_if_dying()
                raise ServerFailed(self.obituary()) from error


class ServerPool:
    """The warm servers of this process. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: dict[ServerKey, WarmServer] = {}
        self._leaving: list[WarmServer] = []
        self._owner = os.getpid()
        # A server with a run under way stays until this process is gone: there is no use in waiting for it.
        atexit.register(self.stop_all, timeout_s=1.0)

    def get(self, key: ServerKey, variables: Mapping[str, str]) -> WarmServer:
        """The server for `key`, started when there is none that lives."""
        with self._lock:
            self._reap()
            server = self._servers.get(key)
            if server is None:
                self._make_room()
                server = self._servers[key] = WarmServer(key, variables)
            return server

    def pids(self) -> list[int]:
        """Of the servers that live: the only processes that may outlast a run."""
        with self._lock:
            self._reap()
            return [server.pid for server in (*self._servers.values(), *self._leaving) if server.alive]

    def num_servers(self) -> int:
        """Of those that runs may start from."""
        with self._lock:
            return len(self._servers)

    def stop(self, key: ServerKey) -> None:
        with self._lock:
            server = self._servers.pop(key, None)
            if server is not None:
                server.stop()
                self._leaving.append(server)

    def stop_all(self, timeout_s: float = 5.0) -> None:
        """End every server and wait for them. A forked child of this process leaves them alone."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            for server in self._servers.values():
                server.stop()
            self._leaving += self._servers.values()
            self._servers.clear()
            end = time.monotonic() + timeout_s
            while self._leaving and time.monotonic() < end:
                self._reap()
                time.sleep(0.01)

    def _make_room(self) -> None:
        """Let the servers go that were unused for longest. They still do what they were asked."""
        while len(self._servers) >= MAX_SERVERS:
            oldest = min(self._servers.values(), key=lambda server: server.used_s)
            del self._servers[oldest.key]
            oldest.stop()
            self._leaving.append(oldest)

    def reap(self) -> None:
        """Bury the servers that have died: a zombie and two descriptors each."""
        with self._lock:
            self._reap()

    def _reap(self) -> None:
        for server in [server for server in self._leaving if not server.alive]:
            server.close()
            self._leaving.remove(server)
        for key, server in list(self._servers.items()):
            if not server.alive:
                server.close()
                del self._servers[key]


POOL = ServerPool()
"""One per process: servers outlive runs and are shared by all of them."""
