"""A real ipykernel that a test drives as a front end does: cells in, outputs back, interrupts, death.

test ──cells──▶ NotebookKernel ══shell══▶ ipykernel      (a process and a session of its own)
                    reader thread ◀═iopub══
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.session import Session

REPOSITORY = Path(__file__).parents[1]
START_S = 60.0
SHUTDOWN_S = 10.0
_READ_S = 0.1


class KernelDied(Exception):
    """The kernel process ended while a cell was waited for."""


@dataclass(frozen=True)
class Stream:
    name: str
    """ "stdout" or "stderr"."""
    text: str
    time_s: float
    """Monotonic clock of the test process, on arrival."""


@dataclass(frozen=True)
class Display:
    data: Mapping[str, object]
    """mime type -> content."""
    display_id: str | None
    is_update: bool
    time_s: float


@dataclass(frozen=True)
class CommMessage:
    """One message of the kernel on a comm; all widgets have one."""

    kind: str
    """ "comm_open", "comm_msg" or "comm_close"."""
    comm_id: str
    data: Mapping[str, Any]
    time_s: float
    target: str = ""
    """What a comm_open names."""


@dataclass
class Executed:
    """What one cell has given so far. Output that comes after the cell is still appended."""

    streams: list[Stream] = field(default_factory=list)
    displays: list[Display] = field(default_factory=list)
    ename: str | None = None
    evalue: str = ""
    traceback: list[str] = field(default_factory=list)
    """As sent: with colour codes, one entry per part."""
    result: str | None = None
    """text/plain of the cell's value."""
    result_data: Mapping[str, object] = field(default_factory=dict)
    idle: bool = False
    """The cell is over."""

    @property
    def stdout(self) -> str:
        return "".join(stream.text for stream in self.streams if stream.name == "stdout")

    @property
    def stderr(self) -> str:
        return "".join(stream.text for stream in self.streams if stream.name == "stderr")

    @property
    def text(self) -> str:
        """Both streams in the order of their arrival."""
        return "".join(stream.text for stream in self.streams)

    def described(self) -> str:
        """Everything, for the message of a failed assertion."""
        return f"{self.text}\n{self.ename}: {self.evalue}\n" + "\n".join(self.traceback)


class NotebookKernel:
    """One kernel process, leader of its own session and process group. One thread of the test at a time may call."""

    def __init__(
        self, env: Mapping[str, str] | None = None, cwd: Path | None = None, prefix: Sequence[str] = ()
    ) -> None:
        """Start it and wait until it answers. `env` comes on top of this process's variables. `prefix`: words of a
        command that becomes the kernel, such as those that put it on another host.
        """
        self.dir = Path(tempfile.mkdtemp(prefix="nbk-"))
        self.log_dir = self.dir / "runs"
        self._outputs: dict[str, Executed] = {}
        self.comm_messages: list[CommMessage] = []
        """All of them, in order; the list grows."""
        self._news = threading.Condition()
        self._closing = threading.Event()
        self._leaving = threading.Event()
        """The kernel has been asked to shut down."""
        self._key = os.urandom(16).hex()
        connection_file = self._write_connection_file()
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH")))),
            "IPYTHONDIR": str(self.dir / "ipython"),
            "JPY_PARENT_PID": str(os.getpid()),
            "ACCEL_NB_LOG_DIR": str(self.log_dir),
            **(env or {}),
        }
        with (self.dir / "kernel.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "ipykernel_launcher", "-f", str(connection_file)],
                env=variables,
                cwd=cwd or self.dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._context = zmq.Context()
        self._session = Session(key=self._key.encode())
        self._published = Session(key=self._key.encode())
        """The reader's own."""
        # jupyter_client's own clients keep an event loop per thread, with three descriptors, for ever.
        self._shell, self._control = self._connected(zmq.DEALER, 1), self._connected(zmq.DEALER, 4)
        self._iopub = self._connected(zmq.SUB, 2)
        self._reader = threading.Thread(target=self._read, name="notebook kernel reader")
        self._reader.start()
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def _write_connection_file(self) -> Path:
        """Sockets in a folder of our own: no port can be taken by another kernel."""
        file = self.dir / "connection.json"
        ports = {f"{name}_port": i for i, name in enumerate(("shell", "iopub", "stdin", "control", "hb"), start=1)}
        file.write_text(
            json.dumps(
                {
                    **ports,
                    "transport": "ipc",
                    "ip": str(self.dir / "s"),
                    "key": self._key,
                    "signature_scheme": "hmac-sha256",
                    "kernel_name": "python3",
                }
            )
        )
        return file

    def _connected(self, kind: int, port: int) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        made.linger = 0
        if kind == zmq.SUB:
            made.rcvhwm = 0
            made.subscribe(b"")
        made.connect(f"ipc://{self.dir / 's'}-{port}")
        return made

    def _wait_until_ready(self) -> None:
        """It executes, and what it publishes arrives: a subscription takes effect some time after the connection."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                self.collect(self.start(""), 1.0)
                return
        raise TimeoutError(f"The kernel did not answer within {START_S:g} s. {(self.dir / 'kernel.log').read_text()}")

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    # ---- cells

    def run(self, code: str, timeout_s: float = 60.0) -> Executed:
        """Execute one cell and wait for its end. Raises TimeoutError, KernelDied; an error of the cell is a result."""
        return self.collect(self.start(code), timeout_s)

    def ok(self, code: str, timeout_s: float = 60.0) -> Executed:
        """`run` for a cell that must not fail."""
        executed = self.run(code, timeout_s)
        assert executed.ename is None, executed.described()
        return executed

    def value(self, expression: str, timeout_s: float = 60.0) -> object:
        """What a JSON-able expression is worth in the kernel, without leaving a trace in its output history."""
        executed = self.ok(f"import json as _json; print(_json.dumps({expression}))", timeout_s)
        return json.loads(executed.stdout.splitlines()[-1])

    def create_subshell(self) -> str:
        """Of ipykernel 7 and newer: a thread that runs cells beside the main shell. Gives what `start` takes."""
        self._send(self._control, "create_subshell_request", {})
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self._control.poll(int(_READ_S * 1000)):
                _, reply = self._session.recv(self._control, mode=0)
                assert reply is not None
                if reply["msg_type"] == "create_subshell_reply":
                    return str(reply["content"]["subshell_id"])
        raise TimeoutError("The kernel did not make a subshell.")

    def start(self, code: str, subshell: str | None = None, metadata: Mapping[str, object] | None = None) -> str:
        """Send a cell, to the main shell or to that of `create_subshell`; `collect` takes its message id. Front ends
        with a page put something into `metadata`.
        """
        content = {
            "code": code,
            "silent": False,
            "store_history": bool(code),
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        return self._send(self._shell, "execute_request", content, subshell, metadata)

    def ask(self, kind: str, content: Mapping[str, object], timeout_s: float = 60.0) -> Mapping[str, Any]:
        """Send a request of any kind on the control channel, as a page does, and give the content of its reply.

        Raises TimeoutError.
        """
        msg_id = self._send(self._control, kind, dict(content))
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if self._control.poll(int(_READ_S * 1000)):
                _, reply = self._session.recv(self._control, mode=0)
                assert reply is not None
                if reply["parent_header"].get("msg_id") == msg_id:
                    return dict(reply["content"])
        raise TimeoutError(f"The kernel did not answer {kind} within {timeout_s:g} s.")

    def send_comm(self, comm_id: str, data: Mapping[str, object], subshell: str | None = None) -> None:
        """Send a message to the kernel's end of a comm, as a page does."""
        self._send(self._shell, "comm_msg", {"comm_id": comm_id, "data": dict(data)}, subshell)

    def close_comm(self, comm_id: str) -> None:
        """Say that a page's end of a comm is closed, or that it knows no such target."""
        self._send(self._shell, "comm_close", {"comm_id": comm_id, "data": {}})

    def wait_for_comm(self, is_wanted: Callable[[CommMessage], bool], timeout_s: float = 30.0) -> CommMessage:
        """The first message on any comm that is wanted. Raises TimeoutError."""
        end = time.monotonic() + timeout_s
        with self._news:
            while True:
                for message in self.comm_messages:
                    if is_wanted(message):
                        return message
                if time.monotonic() >= end:
                    raise TimeoutError(f"No such message in {[one.kind for one in self.comm_messages]}")
                self._news.wait(_READ_S)

    def collect(self, msg_id: str, timeout_s: float = 60.0) -> Executed:
        """Wait until the cell is over. Raises TimeoutError with what it gave so far, KernelDied."""
        return self._wait(msg_id, timeout_s, lambda executed: executed.idle, "is still running")

    def wait_for(self, msg_id: str, text: str, timeout_s: float = 60.0) -> Executed:
        """Wait until a running cell has written `text` to one of its streams."""
        return self._wait(msg_id, timeout_s, lambda executed: text in executed.text, f"has not written {text!r}")

    def so_far(self, msg_id: str) -> Executed:
        """What the cell gave up to now; the object grows."""
        with self._news:
            return self._outputs.setdefault(msg_id, Executed())

    def _wait(self, msg_id: str, timeout_s: float, is_enough: Callable[[Executed], bool], what: str) -> Executed:
        end = time.monotonic() + timeout_s
        with self._news:
            executed = self._outputs.setdefault(msg_id, Executed())
            while not is_enough(executed):
                if not self.alive:
                    log = (self.dir / "kernel.log").read_text(errors="replace")[-2000:]
                    raise KernelDied(f"The kernel ended with {self.process.returncode}. {executed.described()}\n{log}")
                if time.monotonic() >= end:
                    raise TimeoutError(f"The cell {what} after {timeout_s:g} s. {executed.described()}")
                self._news.wait(_READ_S)
            return executed

    def _send(
        self,
        socket: zmq.Socket[bytes],
        kind: str,
        content: dict[str, object],
        subshell: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> str:
        header = self._session.msg_header(kind)
        if subshell is not None:
            header["subshell_id"] = subshell
        message = self._session.send(socket, kind, content, header=header, metadata=dict(metadata or {}))
        assert message is not None
        return str(message["header"]["msg_id"])

    def _read(self) -> None:
        while not self._closing.is_set():
            if self._iopub.poll(int(_READ_S * 1000)):
                try:
                    _, message = self._published.recv(self._iopub, mode=0)
                except ValueError:
                    # pyzmq's exit handler (27.3) lets a long message break off, and the next one is taken for its end.
                    if self._leaving.is_set():
                        continue
                    raise
                assert message is not None
                with self._news:
                    self._take(message)
                    self._news.notify_all()

    def _take(self, message: dict[str, Any]) -> None:
        content, now = message["content"], time.monotonic()
        executed = self._outputs.setdefault(message["parent_header"].get("msg_id", ""), Executed())
        match message["msg_type"]:
            case "stream":
                executed.streams.append(Stream(content["name"], content["text"], now))
            case "display_data" | "update_display_data" as kind:
                display_id = content.get("transient", {}).get("display_id")
                executed.displays.append(Display(content["data"], display_id, kind.startswith("update"), now))
            case "execute_result":
                executed.result_data = content["data"]
                executed.result = content["data"].get("text/plain")
            case "comm_open" | "comm_msg" | "comm_close" as kind:
                self.comm_messages.append(
                    CommMessage(kind, content["comm_id"], content["data"], now, content.get("target_name", ""))
                )
            case "error":
                executed.ename, executed.evalue = content["ename"], content["evalue"]
                executed.traceback = content["traceback"]
            case "status" if content["execution_state"] == "idle":
                executed.idle = True

    # ---- signals and ends

    def interrupt(self, *, group: bool = False) -> None:
        """SIGINT: to the kernel process alone, as JupyterLab's Stop does, or to its whole process group, as Ctrl-C."""
        if group:
            os.killpg(self.pid, signal.SIGINT)
        else:
            self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL to the kernel process alone; gives back when it is reaped."""
        self.process.kill()
        self.process.wait()

    def shutdown(self) -> None:
        """As a front end does it: by message, so that the kernel's exit handlers run. SIGKILL when it does not go."""
        if self.alive:
            self._leaving.set()
            self._send(self._control, "shutdown_request", {"restart": False})
            try:
                self.process.wait(SHUTDOWN_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self.close()

    def close(self) -> None:
        """Kill what still runs and give back threads, sockets and folder. May be called again."""
        self._closing.set()
        if self.alive:
            self.kill()
        self._reader.join()
        self._context.destroy(linger=0)
        shutil.rmtree(self.dir, ignore_errors=True)
