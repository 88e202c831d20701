"""A rank's pipe as its keeper holds it: narrow where the user may have no wide one, left alone once it has ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from accel_nb.launch.keeper.rank_process import PIPE_BYTES
from tests.launch.launching import on_ranks

WITHOUT_PIPES_TO_SPARE = """
import ctypes, fcntl, json, os, sys
if sys.argv[1:] != ["capable of less"]:
    # As another user than root: without CAP_SYS_ADMIN (21) and CAP_SYS_RESOURCE (24) from the next program on.
    for capability in (21, 24):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP, linux/prctl.h
    if os.geteuid() == 0:
        # Pipes count for the real user: one of this test's own, of whom no other process gives any back meanwhile.
        os.setresuid(100_000 + os.getpid(), 0, 0)
    os.execv(sys.executable, [sys.executable, "-c", sys.orig_argv[2], "capable of less"])

from accel_nb import notebook_launcher

held = []
def fill(size):
    try:
        while len(held) < 4000:
            held.append(os.pipe())
            fcntl.fcntl(held[-1][1], fcntl.F_SETPIPE_SZ, size)
    except PermissionError:
        return
    told(limited=False)
    sys.exit()

def told(**facts):
    print(json.dumps(facts), file=sys.stderr)

fill({wide})
def writes():
    import fcntl, os
    print("x" * 300_000)
    for number in range(2000):
        print(number)
    return fcntl.fcntl(1, fcntl.F_GETPIPE_SZ)

run = notebook_launcher(writes, num_processes=2, device="cpu", block=False)
sizes = list(run.result(100))
expected = "x" * 300_000 + "\\n" + "".join(f"{number}\\n" for number in range(2000))
told(limited=True, sizes=sizes, exact=[run.logs(rank) == expected for rank in range(2)])
"""


@pytest.mark.faults
def test_a_user_whose_pipe_budget_is_spent_gets_narrow_pipes_and_every_byte() -> None:
    source = WITHOUT_PIPES_TO_SPARE.replace("{wide}", str(PIPE_BYTES))
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=110, check=False)

    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stderr.splitlines()[-1])
    if not facts["limited"]:
        pytest.skip("this system does not limit the pipes of a user (pipe-user-pages-soft)")
    assert facts["exact"] == [True, True]
    assert max(facts["sizes"]) < PIPE_BYTES, "the budget was spent"


def test_a_user_with_a_budget_gets_pipes_as_wide_as_an_ordinary_user_may_have() -> None:
    def size() -> int:
        import fcntl

        return fcntl.fcntl(1, fcntl.F_GETPIPE_SZ)

    assert on_ranks(size) == [PIPE_BYTES, PIPE_BYTES]


def test_a_pipe_that_nobody_can_write_into_any_more_keeps_the_keeper_at_rest() -> None:
    """Its end is readable for ever: a keeper that went on watching it would never sleep again."""

    def closes_its_output() -> float:
        def keepers_cpu_s() -> float:
            with open(f"/proc/{os.getppid()}/stat") as file:  # noqa: PTH123  on a rank
                fields = file.read().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        time.sleep(0.2)
        before = keepers_cpu_s()
        time.sleep(2.0)
        return keepers_cpu_s() - before

    assert max(on_ranks(closes_its_output)) < 0.3, "of 2 s: on two shared processors a busy loop gets more"
