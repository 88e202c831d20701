"""What every test is held to: it leaves no process, thread, file descriptor or environment variable behind.

The test session plays the part of a notebook kernel. So a warm server that accel_nb starts on behalf of a test may stay
for the next one, and so may the keeper and the ranks that it has forked ahead; whatever else a test started has to be
gone when it ends.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.notebook_kernel import NotebookKernel

SESSION_MARK = "ACCEL_NB_TEST_SESSION"
"""A variable that descendants inherit, so that orphans are found whatever their parent is."""

WARM_SERVER_MODULE = "accel_nb.launch.servers.warm_server"
NURSERY_MODULE = "accel_nb.launch.engines.on_ray.nursery"
BROWSERS_OWN = "--type=utility"
"""In the command line of what Chromium starts for itself, when it pleases; it goes with the browser."""
KERNEL_MODULE = "ipykernel_launcher"
RECORD = "/run.jsonl"
"""A keeper that has a run writes this file."""
BECOMES_S = 0.5
"""A process gets this long from the beginning of a program until its variables can be read."""
GRACE_S = 20.0
"""Ends that are on their way when a test returns get this long."""
DESCRIPTORS_ALLOWED = 5
"""For libraries that keep a descriptor once they were used."""
DESCRIPTORS_PER_SERVER = 2
"""The socket and the pidfd by which the session knows a warm server."""
LASTING_THREADS = ("tqdm", "IPythonHistorySavingThread")
"""Started once by a library, for the life of the process."""

ProcessId = tuple[int, float]
"""Process id and start time: ids are used again."""


@pytest.fixture(scope="session", autouse=True)
def _session_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the runs of the tests out of the user's folder, and the user's settings out of the tests; mark what the
    session starts.
    """
    added = {
        SESSION_MARK: uuid.uuid4().hex,
        "ACCEL_NB_CONFIG": os.devnull,
        "ACCEL_NB_LOG_DIR": str(tmp_path_factory.mktemp("runs")),
    }
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    yield
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(_session_environment: None) -> Iterator[None]:
    processes, pids, num_runs, threads = _known_processes(), _pids(), _num_runs(), set(threading.enumerate())
    variables, num_descriptors = dict(os.environ), _num_descriptors()

    yield

    # A run may have been given to processes that were there before, forked ahead.
    if _num_runs() != num_runs or _has_started(_pids() - pids):
        _known.clear()
        _expect_none("processes", lambda: [_described(*new) for new in _started_processes() - processes])
    _expect_none("threads", lambda: [repr(new) for new in set(threading.enumerate()) - threads if _is_a_leak(new)])
    _expect_none("file descriptors", lambda: _new_descriptors(num_descriptors))
    changed = {name for name, _ in variables.items() ^ dict(os.environ).items()} - {"PYTEST_CURRENT_TEST"}
    if changed:
        pytest.fail(f"the test changed environment variables: {', '.join(sorted(changed))}")


@pytest.fixture
def kernel() -> Iterator[NotebookKernel]:
    """A fresh notebook kernel with a folder of its own, shut down as a front end does."""
    started = NotebookKernel()
    yield started
    started.shutdown()


def _expect_none(what: str, leaked: Callable[[], list[str]]) -> None:
    deadline = time.monotonic() + GRACE_S
    while (left := leaked()) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left:
        pytest.fail(f"the test left {what} behind:\n" + "\n".join(left))


_known: dict[str, tuple[set[int], set[ProcessId]]] = {}
"""By the session's mark: all processes of the system when it was looked, and what the session had started."""


def _known_processes() -> set[ProcessId]:
    """What this session has started and may still be alive. Most tests start nothing, and looking takes long."""
    mark, pids = os.environ[SESSION_MARK], _pids()
    before, started = _known.get(mark, (set(), set()))
    if not before or _has_started(pids - before):
        started = _started_processes()
    _known[mark] = pids, started
    return started


def _pids() -> set[int]:
    """Of all processes of the system."""
    return {int(name) for name in os.listdir("/proc") if name.isdecimal()}  # noqa: PTH208  a third of the time


def _num_runs() -> int:
    """Of this session and of the kernels that it has started."""
    return sum(1 for _ in Path(os.environ["ACCEL_NB_LOG_DIR"]).iterdir())


def _has_started(new_pids: set[int]) -> bool:
    """Whether a process of this session may be among them."""
    return any(_may_be_ours(pid) for pid in new_pids)


def _may_be_ours(pid: int) -> bool:
    """Whether the process descends from the session, or has its mark, as far as can be seen."""
    ancestor = pid
    with contextlib.suppress(OSError):  # one of them has just ended
        while ancestor not in (0, 1, os.getpid()):
            ancestor = int(Path(f"/proc/{ancestor}/stat").read_text().rpartition(")")[2].split()[1])
    if ancestor == os.getpid():
        return True
    try:
        return os.environ[SESSION_MARK].encode() in _variables(pid)
    except PermissionError:
        return True
    except OSError:
        return False  # it has ended


def _variables(pid: int) -> bytes:
    """Of the process. One that becomes another program at this moment has none yet, and is waited for."""
    deadline = time.monotonic() + BECOMES_S
    while not (found := Path(f"/proc/{pid}/environ").read_bytes()) and time.monotonic() < deadline:
        Path(f"/proc/{pid}/exe").readlink()  # OSError for one that has ended, and for the system's own
        time.sleep(0.001)
    return found


def _started_processes() -> set[ProcessId]:
    """What this session started and is still alive, its warm servers left out."""
    own = psutil.Process()
    mark = os.environ[SESSION_MARK]
    found = set(own.children(recursive=True))
    found |= {process for process in psutil.process_iter() if process != own and _has_mark(process, mark)}
    may_stay = {process for server in _warm_servers() for process in (server, *_forked_ahead(server))}
    may_stay |= {process for process in found if BROWSERS_OWN in _cmdline(process) or _is_rays(process)}
    return {(process.pid, process.create_time()) for process in found - may_stay if _is_alive(process)}


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(SESSION_MARK) == mark
    except psutil.Error:
        return False


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _warm_servers() -> list[psutil.Process]:
    """The servers of this session, which are its own children, and those of notebook kernels that still run."""
    started = psutil.Process().children(recursive=True)
    kernels = [child for child in started if KERNEL_MODULE in " ".join(_cmdline(child))]
    parents = (psutil.Process(), *kernels)
    return [child for one in parents for child in one.children() if WARM_SERVER_MODULE in " ".join(_cmdline(child))]


def _forked_ahead(server: psutil.Process) -> set[psutil.Process]:
    """The keepers of `server` that wait for a run, and their ranks.

    They are told by what they have not done: become another program, or opened the files of a run. Both lead a process
    group, which a fork that user code made and left behind does not.
    """
    found: set[psutil.Process] = set()
    for keeper in _led_forks(server):
        if not _has_run_files(keeper):
            found |= {keeper, *_led_forks(keeper)}
    return found


def _led_forks(parent: psutil.Process) -> list[psutil.Process]:
    """Children of `parent` that run its program and lead a process group."""
    try:
        children = parent.children()
    except psutil.NoSuchProcess:
        return []
    return [child for child in children if _cmdline(child) == _cmdline(parent) and _leads_a_group(child)]


def _is_rays(process: psutil.Process) -> bool:
    """Of a Ray cluster, which the fixture that started it ends, or what an actor there keeps for the next launch."""
    command = " ".join(_cmdline(process))
    if NURSERY_MODULE in command:
        parent = process.parent()
        return parent is not None and _is_rays_own(" ".join(_cmdline(parent)))
    return _is_rays_own(command)


def _is_rays_own(command: str) -> bool:
    return command.startswith("ray::") or "/ray/" in command.partition(" --")[0]


def _leads_a_group(process: psutil.Process) -> bool:
    try:
        return os.getpgid(process.pid) == process.pid
    except ProcessLookupError:
        return False


def _has_run_files(process: psutil.Process) -> bool:
    try:
        return any(file.path.endswith(RECORD) for file in process.open_files())
    except psutil.Error:
        return False


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _described(pid: int, start_time: float) -> str:
    try:
        process = psutil.Process(pid)
        return f"{pid} (parent {process.ppid()}, started {start_time:.0f}): {' '.join(process.cmdline())}"
    except psutil.Error:
        return f"{pid}: has just ended"


def _is_a_leak(thread: threading.Thread) -> bool:
    return thread.is_alive() and not any(name in f"{type(thread)} {thread.name}" for name in LASTING_THREADS)


def _num_descriptors() -> int:
    """Open in this process, what belongs to warm servers left out."""
    client = sys.modules.get("accel_nb.launch.servers.warm_client")
    num_servers = 0 if client is None else len(client.POOL._servers)
    return psutil.Process().num_fds() - DESCRIPTORS_PER_SERVER * num_servers


def _new_descriptors(num_before: int) -> list[str]:
    if _num_descriptors() - num_before <= DESCRIPTORS_ALLOWED:
        return []
    return [f"{link.name} -> {_target(link)}" for link in Path("/proc/self/fd").iterdir()]


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return "closed"
