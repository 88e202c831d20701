"""What the tests of hangs run on ranks. Imports nothing beyond the standard library at its top."""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path


def gathers_on_rank_0_while_1_computes(seconds: float) -> None:
    """K02, first variant."""
    import torch

    from accel_nb import Accelerator

    accelerator = Accelerator()
    if accelerator.is_main_process:
        accelerator.gather(torch.ones(2))  # on rank 0
        return
    end = time.monotonic() + seconds
    all(time.monotonic() < end for _ in itertools.repeat(None))  # stuck
    accelerator.gather(torch.ones(2))
    time.sleep(1)


def gathers_on_rank_0_only() -> str:
    """K02, second variant."""
    import torch

    from accel_nb import Accelerator

    accelerator = Accelerator()
    if accelerator.is_main_process:
        accelerator.gather(torch.ones(2))
    return "returned"


def prepares_first(seconds: float) -> str:
    """K04: longer than the time-out of the ranks' operations."""
    from datetime import timedelta

    from accel_nb import PartialState

    state = PartialState(timeout=timedelta(seconds=1))
    with state.main_process_first():
        if state.is_main_process:
            time.sleep(seconds)  # prepares
    return "prepared"


def trains(batches: Sequence[int], *, after_s: float = 0.0) -> None:
    """Plain torch: rank r makes ``batches[r]`` steps of a DistributedDataParallel, then is busy for `after_s`."""
    import torch
    from torch import distributed, nn

    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(batches[distributed.get_rank()]):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    time.sleep(after_s)


def waits_natively_for_a_rank_that_returned() -> None:
    """As a rank blocked in native code that no exception reaches: it has noted the call that it is in."""
    from accel_nb.protocol import ledger

    own = ledger.own()
    assert own is not None
    own.end(own.begin("accel_nb.utils.gather", "[4] float32", "<Cell In[3]>", 7))
    if os.environ["RANK"] == "0":
        own.begin("accel_nb.utils.gather", "[4] float32", "<Cell In[3]>", 7)
        _deaf()


def waits_natively_in_operations_that_differ() -> None:
    from accel_nb.protocol import ledger

    own = ledger.own()
    assert own is not None
    own.begin("accel_nb.utils.gather", f"[{os.environ['RANK']}] float32", "<Cell In[3]>", 7)
    _deaf()


def another_thread_waits(seconds: float) -> None:
    """On rank 0, while rank 1 is busy."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")

    def gather() -> None:
        distributed.all_reduce(torch.ones(2))  # in the other thread

    if distributed.get_rank() == 0:
        thread = threading.Thread(target=gather)
        thread.start()
        thread.join()  # of the other thread
    else:
        time.sleep(seconds)  # beside it
        gather()


def loops_in_a_hook(seconds: float) -> None:
    """On rank 1, within the backward that all ranks are in."""
    import torch
    from torch import distributed, nn

    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))

    def hook(gradient: torch.Tensor) -> None:
        del gradient
        end = time.monotonic() + seconds
        all(time.monotonic() < end for _ in itertools.repeat(None))  # in the hook

    outputs = model(torch.ones(2, 4))
    if distributed.get_rank() == 1:
        outputs.register_hook(hook)
    torch.autograd.backward([outputs.sum()])  # calls the hook


def waits_in_a_group(seconds: float) -> None:
    """Rank 0, for rank 1."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    pair = distributed.new_group([0, 1])
    if distributed.get_rank() == 1:
        time.sleep(seconds)
    distributed.all_reduce(torch.ones(2), group=pair)  # in the group


def waits_for_a_message(seconds: float) -> None:
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    if distributed.get_rank() == 0:
        distributed.recv(torch.empty(2), 1)  # the message
    else:
        time.sleep(seconds)
        distributed.send(torch.ones(2), dst=0)


def one_is_stopped() -> None:
    """As by Ctrl-Z, or a debugger."""
    from accel_nb.protocol import ledger

    own = ledger.own()
    assert own is not None
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
    own.begin("accel_nb.utils.gather", "[4] float32", "<Cell In[3]>", 7)
    time.sleep(90)


def all_wait_in_their_first_operation(seconds: float) -> None:
    from accel_nb.protocol import ledger

    own = ledger.own()
    assert own is not None
    number = own.begin("accel_nb.utils.gather", "[4] float32", "<Cell In[3]>", 7)
    time.sleep(seconds)
    own.end(number)


def _deaf() -> None:
    """Native code that holds the interpreter, and looks at no signal."""
    for _ in itertools.repeat(None, 1):
        sum(itertools.repeat(1))


def an_exit_handler_waits(go_on: str) -> str:
    @atexit.register
    def wait() -> None:
        while not Path(go_on).exists():
            time.sleep(0.05)  # on the way out

    return "done"


def starts_programs(seconds: float) -> set[int]:
    """Their exit codes, of one after another for so long."""
    codes = set()
    end = time.monotonic() + seconds
    print("up", flush=True)
    while time.monotonic() < end:
        codes.add(subprocess.run(["true"], check=False).returncode)
    return codes


def becomes_another_program(seconds: float) -> None:
    print("up", flush=True)
    os.execvp("sleep", ["sleep", str(seconds)])


def holds_the_interpreter() -> None:
    print("up", flush=True)
    sum(itertools.repeat(1))


def reads(num_workers: int, method: str | None, stuck_s: float) -> int:
    """The number of batches. Sample 12 takes `stuck_s`; the ranks gather each batch."""
    import torch
    from torch.utils.data import DataLoader

    from accel_nb import Accelerator

    class Samples(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 12:
                time.sleep(stuck_s)  # the sample that hangs
            return torch.ones(2)

    accelerator = Accelerator()
    loader = DataLoader(Samples(), batch_size=4, num_workers=num_workers, multiprocessing_context=method)
    num_batches = 0
    for batch in accelerator.prepare(loader):
        accelerator.gather(batch)
        num_batches += 1
    return num_batches


def steps(num_steps: int, own_s: Sequence[float], input_s: Sequence[float]) -> None:
    """Rank r computes for ``own_s[r]`` and waits for its batch for ``input_s[r]`` in each step."""
    from accel_nb.protocol import ledger

    own = ledger.own()
    assert own is not None
    rank = int(os.environ["RANK"])
    for _ in range(num_steps):
        with own.activity("next batch", counts_as_own=True):
            time.sleep(input_s[rank])
        time.sleep(own_s[rank])
        # Where the others wait for the slowest.
        with own.activity("backward"):
            time.sleep(max(map(sum, zip(own_s, input_s, strict=True))) - own_s[rank] - input_s[rank])
        own.step()


def keepers_use(seconds: float) -> tuple[float, int]:
    """CPU seconds and wake-ups of this rank's keeper while the rank waits in an operation for `seconds`."""
    from accel_nb.protocol import ledger

    def used() -> tuple[float, int]:
        keeper = os.getppid()
        with open(f"/proc/{keeper}/stat") as file:  # noqa: PTH123
            fields = file.read().rpartition(")")[2].split()
        with open(f"/proc/{keeper}/status") as file:  # noqa: PTH123
            switches = [line for line in file if line.startswith("voluntary_ctxt_switches")]
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(switches[0].split()[1])

    own = ledger.own()
    assert own is not None
    number = own.begin("accel_nb.utils.gather", "[4] float32", "<Cell In[3]>", 7)
    time.sleep(1.0)
    before = used()
    time.sleep(seconds)
    after = used()
    own.end(number)
    return after[0] - before[0], after[1] - before[1]
