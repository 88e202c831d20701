"""A rank that is told to get ready before it has rehearsed to the end."""

from __future__ import annotations

import json
import subprocess
import sys

ALONE = """
import json, os, socket, sys, threading
import torch
from torch import distributed
from accel_nb.launch.channel import BlockingReader, send_with_fds
from accel_nb.launch.keeper.orders import rank_order
from accel_nb.launch.keeper.rehearsal import rank_rehearsal
from accel_nb.launch.keeper.run_store import RunStore
from accel_nb.launch.rank.group_shim import SHIM, ShimContext
from accel_nb.launch.rank.main import wait_for_order
from accel_nb.protocol.commands import GetReady, RankMessage, RankReady, RankReport, RunOrder, Surroundings
from accel_nb.protocol.plan import LaunchPlan, RankPlan
from accel_nb.protocol.wire import frame

SHIM.install()
store = RunStore()
plan = LaunchPlan(
    run_id="alone", function_name="alone", engine="local", device_kind="cpu", process_group="gloo",
    ranks=(RankPlan(rank=0, local_rank=0),),
)
variables = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
around = Surroundings(variables=variables, cwd=b"/", sys_path=(), argv=(), umask=0o022, locale="C")
order = rank_order(RunOrder(plan=plan, surroundings=around, log_dir="/"), 0, store_port=store.port)
keepers, ranks = socket.socketpair()
steps = []

def rehearsal():
    for number, _ in enumerate(rank_rehearsal()):
        steps.append((number, SHIM._hidden is None))
        yield

def keep():
    reports = BlockingReader(keepers, RankReport)
    assert isinstance(reports.next(), RankReady)
    send_with_fds(keepers, frame(order), [os.memfd_create("payload")])

send_with_fds(keepers, frame(GetReady(order=order, device_kind="cpu")))
threading.Thread(target=keep).start()
taken, _ = wait_for_order(ranks, BlockingReader(ranks, RankMessage), rehearsal())
SHIM.activate(ShimContext.of(taken))
waiting = SHIM._hidden._group
distributed.init_process_group("gloo")
print(json.dumps([steps, distributed.group.WORLD is waiting, distributed.get_backend()]), flush=True)
os._exit(0)
"""


def test_the_rehearsal_comes_to_its_end_before_the_group_that_waits_is_opened() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=110, check=False)

    assert done.returncode == 0, done.stderr
    steps, adopted, backend = json.loads(done.stdout)
    assert steps == [[number, True] for number in range(4)]
    assert (adopted, backend) == (True, "gloo")
