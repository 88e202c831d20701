"""What Linux offers for processes that must never be left behind: prctl, pidfd, /proc.

Everything here acts on children of the calling process only. A child that has not been waited for keeps its pid, so
no signal of ours can hit a stranger.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Set as AbstractSet
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
"""``linux/prctl.h``."""

STDERR = 2
"""Its descriptor."""
_WAIT_STEP_S = 0.005
_ENDS_ITSELF_S = 0.2
"""multiprocessing's fork server and resource tracker end when the process that started them has."""


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def die_with_parent(parent_pid: int) -> None:
    """Be killed when the thread that forked this process ends. Exits at once if the parent is gone already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def outlive_parent() -> None:
    """Undo `die_with_parent`."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def become_subreaper() -> None:
    """From now on every orphaned descendant becomes a child of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reset_signals() -> None:
    """Undo what the kernel ignores, blocks or handles: it passes on to a new program or a fork.

    With SIGCHLD ignored nobody can be waited for; with SIGINT blocked nobody can be interrupted.
    """
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def is_readable(fd: int, within_s: float = 0.0) -> bool:
    """Whether there is something to read, a closed peer or a dead process within that time. Any number will do:
    ``select`` refuses those from 1024 on, which a busy kernel has.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


def reap_orphans(*, spare: set[int]) -> None:
    """Reap children that have ended, but those in `spare`. For a subreaper whose descendants leave theirs behind."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid not in spare:
            os.waitpid(ended.si_pid, 0)


def children() -> list[int]:
    """Pids of this process's children, zombies included."""
    found: list[int] = []
    for thread in Path("/proc/self/task").iterdir():
        # A thread may end between the listing and the read.
        with contextlib.suppress(OSError):
            found += map(int, (thread / "children").read_text().split())
    return found


def _listed(folder: str) -> list[Path]:
    """What is in a folder of a process; nothing when that is gone, or not ours to look into.

    Not by ``Path.glob``, which raises for a folder that goes between two of its own steps (Python 3.11).
    """
    try:
        return list(Path(folder).iterdir())
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    """Pids of what the process has started and what that has started, the nearest first."""
    found: list[int] = []
    parents = [pid]
    while parents:
        parent = parents.pop(0)
        for thread in _listed(f"/proc/{parent}/task"):
            # A thread may end between the listing and the read.
            with contextlib.suppress(OSError):
                parents += (started := [*map(int, (thread / "children").read_text().split())])
                found += started
    return found


def handles_signal(pid: int, number: int) -> bool:
    """Whether the process has a handler for that signal (``SigCgt`` of proc_pid_status(5)); False when it is gone."""
    return bool(_signals(pid, "SigCgt") >> (number - 1) & 1)


def blocks_signal(pid: int, number: int) -> bool:
    """Whether its first thread blocks that signal now (``SigBlk`` of proc_pid_status(5)); False when it is gone.

    A handler does while it runs. subprocess blocks all signals in a child that is to become another program, whose
    handlers are then still its parent's: what such a child is sent waits until it has none, and kills it.
    """
    return bool(_signals(pid, "SigBlk") >> (number - 1) & 1)


def _signals(pid: int, kind: str) -> int:
    """A mask, signal 1 in its lowest bit."""
    with contextlib.suppress(OSError):
        # A name is cut after 15 bytes, also within a character.
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            name, _, mask = line.partition(":")
            if name == kind:
                return int(mask, 16)
    return 0


def has_open(pid: int, file: Path) -> bool:
    """Whether the process has a descriptor of `file`; False when it is gone or is not ours to look into."""
    target = str(file.resolve())
    for entry in _listed(f"/proc/{pid}/fd"):
        # A descriptor may be closed between the listing and the look.
        with contextlib.suppress(OSError):
            if str(entry.readlink()) == target:
                return True
    return False


def open_fds() -> set[int]:
    """This process's descriptors, without the one that looking takes: its number is the next to be given out."""
    entries = list(Path("/proc/self/fd").iterdir())
    return {int(entry.name) for entry in entries if entry.is_symlink()}


def state_of(pid: int) -> str:
    """What the system says the threads of a process do: ``D (disk sleep)``. Empty when it is gone."""
    states: set[str] = set()
    for thread in _listed(f"/proc/{pid}/task"):
        # A thread may end between the listing and the read.
        with contextlib.suppress(OSError):
            lines = (thread / "status").read_text(errors="replace").splitlines()
            states |= {line.split("\t")[1] for line in lines if line.startswith("State:")}
    # The first thread of a process that ends waits for the others as a zombie.
    living = {state for state in states if not state.startswith("Z")}
    return ", ".join(sorted(living or states))


def held_text(pid: int) -> str:
    """What to say of a process that SIGKILL has not ended."""
    return (
        f"did not end when it was killed: the system holds it, in state {state_of(pid) or 'unknown'}. What it uses is "
        "taken until the system lets it go."
    )


def thread_names() -> list[str]:
    """Names of this process's threads as the kernel knows them."""
    return sorted((thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir())


def end_children(*, spare: AbstractSet[int] = frozenset(), gentle_s: float = 0.0, deadline_s: float = 5.0) -> int:
    """End and reap every child but those in `spare`, level by level, until none is left; gives how many there were.

    The caller must be a subreaper: when a child dies, its own children become ours and are ended next. With
    `gentle_s` those that end by themselves within a moment are not counted, and the first level gets SIGTERM and that
    long before SIGKILL. Gives up after `deadline_s` (a process in uninterruptible sleep).
    """
    end = time.monotonic() + deadline_s
    ended: set[int] = set()
    if gentle_s:
        _wait_for_none(spare, set(), time.monotonic() + _ENDS_ITSELF_S)
        _signal_all(set(children()) - spare, signal.SIGTERM)
        _wait_for_none(spare, ended, min(end, time.monotonic() + gentle_s))
    while time.monotonic() < end:
        _signal_all(set(children()) - spare, signal.SIGKILL)
        if _wait_for_none(spare, ended, time.monotonic() + _WAIT_STEP_S):
            break
    return len(ended)


def _signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _wait_for_none(spare: AbstractSet[int], ended: set[int], end: float) -> bool:
    while True:
        rest = set(children()) - spare
        for pid in rest:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    ended.add(pid)
        # The kernel's list may skip one child while another is exiting: empty counts when seen twice.
        if not rest and not set(children()) - spare:
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(_WAIT_STEP_S / 5)


def decode_status(status: int) -> tuple[int | None, str | None]:
    """A wait status as (exit code, signal name): exactly one of them is None."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code, None
    try:
        return None, signal.Signals(-code).name
    except ValueError:
        return None, f"signal {-code}"


def oom_kills() -> int:
    """How often this machine's out-of-memory killer has struck since boot, those inside control groups included."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0
