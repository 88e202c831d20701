"""Children that must not stay, and how they ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from accel_nb.launch.processes import (
    blocks_signal,
    children,
    decode_status,
    handles_signal,
    oom_kills,
    state_of,
    thread_names,
)


def run_python(code: str) -> str:
    """The output of `code` in a fresh process: subreapers and children are a process's own affair."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_children_include_zombies_until_they_are_waited_for() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert child.pid in children()

    child.wait()
    assert child.pid not in children()


def test_what_a_process_does_with_a_signal_whatever_its_name_is_cut_to() -> None:
    code = """
        import signal, sys
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        open("/proc/self/comm", "wb").write("rank 训练进程名".encode())
        print("up", flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()

        assert handles_signal(child.pid, signal.SIGUSR1)
        assert not handles_signal(child.pid, signal.SIGUSR2)
        assert blocks_signal(child.pid, signal.SIGUSR2)
        assert not blocks_signal(child.pid, signal.SIGUSR1)
        assert state_of(child.pid)


def test_y04_everything_below_a_subreaper_is_ended_daemonised_grandchildren_too() -> None:
    out = run_python("""
        import os, subprocess, sys, time
        from accel_nb.launch import processes

        processes.become_subreaper()
        daemon = "import os; os.setsid(); os.fork() and os._exit(0); os.write(1, b'd'); import time; time.sleep(600)"
        read, write = os.pipe()
        subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600"], start_new_session=True)
        subprocess.Popen([sys.executable, "-c", daemon], stdout=write)
        os.read(read, 1)

        ended = processes.end_children()
        print(ended >= 3, processes.children())
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            print("nobody left")
        """)

    assert out == "True []\nnobody left"


def test_a_spared_child_stays() -> None:
    out = run_python("""
        import subprocess
        from accel_nb.launch import processes

        processes.become_subreaper()
        spared = subprocess.Popen(["sleep", "600"])
        subprocess.Popen(["sleep", "600"])
        print(processes.end_children(spare=frozenset({spared.pid})), spared.poll())
        spared.kill()
        """)

    assert out == "1 None"


def test_a_gentle_end_lets_a_child_clean_up() -> None:
    out = run_python("""
        import subprocess, sys
        from accel_nb.launch import processes

        code = "import signal, sys, time; signal.signal(15, lambda *_: (print('clean'), sys.exit()))"
        child = subprocess.Popen([sys.executable, "-u", "-c", code + "; print('up'); time.sleep(600)"],
                                 stdout=subprocess.PIPE)
        child.stdout.readline()
        processes.end_children(gentle_s=10.0)
        print(child.stdout.read().decode().strip())
        """)

    assert out == "clean"


def test_y02_a_child_dies_with_the_parent_that_forked_it() -> None:
    out = run_python("""
        import os, select, signal, time
        from accel_nb.launch import processes

        read, write = os.pipe()
        middle = os.fork()
        if middle == 0:
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                processes.die_with_parent(parent)
                os.write(write, os.getpid().to_bytes(4, "little"))
                time.sleep(600)
            time.sleep(600)
        processes.become_subreaper()
        pid = int.from_bytes(os.read(read, 4), "little")
        fd = os.pidfd_open(pid)
        os.kill(middle, signal.SIGKILL)
        print(bool(select.select([fd], [], [], 10)[0]))
        """)

    assert out == "True"


@pytest.mark.parametrize(
    ("status", "decoded"),
    [(0, (0, None)), (3 << 8, (3, None)), (9, (None, "SIGKILL")), (signal.SIGSEGV | 0x80, (None, "SIGSEGV"))],
)
def test_a_wait_status_is_a_code_or_a_signal(status: int, decoded: tuple[int | None, str | None]) -> None:
    assert decode_status(status) == decoded


def test_a_signal_without_a_name_keeps_its_number() -> None:
    assert decode_status(signal.SIGRTMIN + 3) == (None, f"signal {signal.SIGRTMIN + 3}")


def test_threads_have_names_and_the_oom_counter_is_readable() -> None:
    assert len(thread_names()) >= 1
    assert oom_kills() >= 0
