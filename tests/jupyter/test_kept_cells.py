"""Cells on ranks that are kept, in a real kernel: W05."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.launch.census import Census, expect_gone
from tests.notebook_kernel import Executed, NotebookKernel

pytestmark = pytest.mark.kernels

KEEP = "%%accelerate --keep"
START = f"{KEEP} --num-processes 2 --device cpu"
GROUP = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\nrank = dist.get_rank()"
CLOSED = "accel_nb: the ranks were out of step, so their process group was closed: build a new Accelerator"


@pytest.fixture(scope="module")
def running(_session_environment: None) -> Iterator[NotebookKernel]:
    started = NotebookKernel()
    try:
        started.ok("%load_ext accel_nb\nimport os, time")
        yield started
    finally:
        started.shutdown()


@pytest.fixture
def kernel(running: NotebookKernel) -> Iterator[NotebookKernel]:
    """A kernel that keeps two ranks, which have `count`."""
    running.ok(f"{START}\ncount = 0")
    yield running
    running.ok("%accel_stop")
    Census(running).expect_only_servers()


def shown(executed: Executed) -> str:
    assert executed.ename is not None
    return "\n".join(executed.traceback)


def said(executed: Executed) -> dict[int, list[str]]:
    """The lines of each of two ranks, whether they were shown as one or not."""
    found: dict[int, list[str]] = {}
    for line in executed.stdout.splitlines():
        prefix, _, text = line.partition("] ")
        if prefix.startswith("[r"):
            for rank in {"[r0": (0,), "[r1": (1,), "[r0-r1": (0, 1)}[prefix]:
                found.setdefault(rank, []).append(text)
    return found


def both(text: str) -> dict[int, list[str]]:
    return {0: [text], 1: [text]}


def test_w05_cells_share_the_ranks_and_their_variables(kernel: NotebookKernel) -> None:
    first = kernel.ok(f"{KEEP}\ncount += 1\ndef doubled():\n    return 2 * count\npid = os.getpid()\nprint('first')")
    second = kernel.ok(f"{KEEP}\ncount += 1\nprint(count, doubled(), pid == os.getpid())\ncount")

    assert said(first) == both("first")
    assert said(second) == both("2 4 True"), "and none of the first cell's lines"
    assert [display.data["text/plain"] for display in second.displays] == ["2"]


def test_w05_the_notebooks_variables_are_pushed_for_each_cell_but_not_over_the_ranks_own(
    kernel: NotebookKernel,
) -> None:
    kernel.ok("count, here = 'the notebook has one, too', 1\ndef told(): return count, here")

    before = kernel.ok(f"{KEEP}\nprint(count, here, told())")
    kernel.ok("here = 2")
    after = kernel.ok(f"{KEEP}\nprint(count, here)")
    pushed = kernel.ok(f"{KEEP} --push count\nprint(count)")

    assert said(before) == both("0 1 (0, 1)")
    assert said(after) == both("0 2")
    assert said(pushed) == both("the notebook has one, too")


def test_w05_variables_of_rank_0_are_pulled(kernel: NotebookKernel) -> None:
    kernel.ok(f"{KEEP}\nmine = ['rank', os.environ['RANK']]")

    kernel.ok(f"{KEEP} --out mine,count\npass")

    assert kernel.value("[mine, count]") == [["rank", "0"], 0]


def test_w05_some_of_the_ranks_run_a_cell(kernel: NotebookKernel) -> None:
    only = kernel.ok(f"{KEEP} --ranks 1\ncount = 10\nprint('from', os.environ['RANK'])\ncount")
    all_ranks = kernel.ok(f"{KEEP}\nprint(count)")

    assert said(only) == {1: ["from 1"]}
    assert [display.data["text/plain"] for display in only.displays] == ["10"]
    assert said(all_ranks) == {0: ["0"], 1: ["10"]}


def test_w05_an_error_leaves_ranks_and_variables(kernel: NotebookKernel) -> None:
    kernel.ok(f"{KEEP}\npid = os.getpid()")

    failed = kernel.run(f"{KEEP}\ncount = 5\n\nraise ValueError('wrong')")
    after = kernel.ok(f"{KEEP}\nprint(count, pid == os.getpid())")

    assert re.search(
        r"Same error on ranks 0-1\.\n(?s:.*)Cell In\[\d+\], line 4, in <module>\n    raise V", shown(failed)
    )
    assert said(after) == both("5 True")


def test_w05_an_error_on_one_rank_frees_the_others_from_their_backward(kernel: NotebookKernel) -> None:
    kernel.ok(f"{KEEP}\n{GROUP}\nmodel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))")

    began = time.monotonic()
    failed = kernel.run(
        f"{KEEP}\nif rank == 0: raise ValueError('only here')\nmodel(torch.ones(2, 2)).sum().backward()"
    )
    took_s = time.monotonic() - began
    again = kernel.ok(
        f"{KEEP}\ndist.init_process_group('gloo')\nmodel = torch.nn.parallel.DistributedDataParallel(model.module)\n"
        "model(torch.ones(2, 2)).sum().backward()\nprint(count)"
    )

    assert "ValueError: only here" in shown(failed)
    assert CLOSED in failed.stdout
    assert took_s < 20, "and not a time-out of half an hour"
    assert said(again) == both("0")


def test_w05_ranks_out_of_step_meet_again_in_a_new_accelerator(kernel: NotebookKernel) -> None:
    kernel.ok(f"{KEEP}\nfrom accel_nb import Accelerator\nimport torch\naccelerator = Accelerator()")

    failed = kernel.run(
        f"{KEEP}\nif accelerator.process_index: raise ValueError('only here')\naccelerator.reduce(torch.ones(1))"
    )
    again = kernel.ok(f"{KEEP}\naccelerator = Accelerator()\nprint(accelerator.reduce(torch.ones(1)).item(), count)")

    assert CLOSED in failed.stdout
    assert said(again) == both("2.0 0")


def test_w05_an_error_on_all_ranks_alike_leaves_their_group(kernel: NotebookKernel) -> None:
    kernel.ok(f"{KEEP}\n{GROUP}")

    failed = kernel.run(f"{KEEP}\nt = torch.ones(1)\ndist.all_reduce(t)\nraise ValueError('alike')")
    again = kernel.ok(f"{KEEP}\ndist.all_reduce(t)\nprint(t.item())")

    assert CLOSED not in failed.stdout
    assert said(again) == both("4.0")


def test_w05_stop_interrupts_the_cell_and_not_the_ranks(kernel: NotebookKernel) -> None:
    cell = kernel.start(f"{KEEP}\ncount = 7\nprint('begun')\ntime.sleep(600)")
    kernel.wait_for(cell, "begun")

    began = time.monotonic()
    kernel.interrupt()
    stopped = kernel.collect(cell, 20)
    took_s = time.monotonic() - began
    after = kernel.ok(f"{KEEP}\nprint(count)")

    assert took_s < 5
    assert re.fullmatch(
        r"KeyboardInterrupt: Cell In\[\d+\] was interrupted after \d+\.\d s; the 2 ranks and their variables stay\.",
        shown(stopped),
    )
    assert said(after) == both("7")


def test_w05_a_search_meets_again_after_one_that_a_rank_did_not_come_to(kernel: NotebookKernel) -> None:
    search = "@find_executable_batch_size(starting_batch_size=8)\ndef fit(batch_size): return batch_size\n"
    kernel.ok(f"{KEEP}\nfrom accel_nb import find_executable_batch_size\nrank = int(os.environ['RANK'])")
    cell = kernel.start(f"{KEEP}\n{search}if rank: raise ValueError('only here')\nprint('searches')\nfit()")
    kernel.wait_for(cell, "searches")

    kernel.interrupt()
    stopped = kernel.collect(cell, 20)
    again = kernel.ok(f"{KEEP}\n{search}print(fit())")

    assert stopped.ename is not None
    assert {rank for rank, lines in said(again).items() if "8" in lines} == {0, 1}


TRAINS = """
import torch
from torch.utils.data import DataLoader
from accel_nb import Accelerator, set_seed
rank = int(os.environ["RANK"])
set_seed(0)
def begin(steps=1):
    global accelerator, model, loader
    accelerator = Accelerator(gradient_accumulation_steps=steps)
    net = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.BatchNorm1d(2))
    model, loader = accelerator.prepare(net, DataLoader(torch.arange(16.0).reshape(16, 1), batch_size=2))
"""


def test_w05_checkpoints_are_saved_after_one_that_a_rank_did_not_come_to(
    kernel: NotebookKernel, tmp_path: Path
) -> None:
    save = f"accelerator.save_state({str(tmp_path / 'saved')!r})\nprint('saved')"
    kernel.ok(f"{KEEP}\n{TRAINS}begin()")

    failed = kernel.run(f"{KEEP}\nif rank: raise ValueError(7)\n{save}")
    again = kernel.ok(f"{KEEP}\nbegin()\n{save}")

    assert "ValueError: 7" in shown(failed)
    assert CLOSED in failed.stdout
    assert {rank for rank, lines in said(again).items() if "saved" in lines} == {0, 1}


def test_w05_a_rank_that_trains_on_while_another_saves_is_known_in_any_cell(
    kernel: NotebookKernel, tmp_path: Path
) -> None:
    train = "for batch in loader:\n    accelerator.backward(model(batch).sum())"
    save_on_one = f"if rank == 0: accelerator.save_state({str(tmp_path / 'saved')!r})\nmodel(torch.ones(2, 1))"
    kernel.ok(f"{KEEP}\n{TRAINS}begin()\n{train}")

    first = kernel.run(f"{KEEP}\n{save_on_one}")
    second = kernel.run(f"{KEEP}\nbegin()\n{save_on_one}")

    for failed in (first, second):
        assert "it is in a forward that needs rank 0" in shown(failed)


@pytest.mark.parametrize(
    "cell",
    [
        "if rank: raise ValueError(7)\nwith accelerator.accumulate(model): pass",
        "if rank: raise ValueError(7)\nwith accelerator.main_process_first(): pass",
    ],
    ids=["a micro-batch", "a turn"],
)
def test_w05_ranks_that_a_failure_has_ended_apart_part_and_meet_anew(kernel: NotebookKernel, cell: str) -> None:
    kernel.ok(f"{KEEP}\n{TRAINS}begin(2)")

    failed = kernel.run(f"{KEEP}\n{cell}")
    again = kernel.ok(
        f"{KEEP}\nbegin(2)\nwith accelerator.main_process_first():\n    time.sleep(0 if rank else 1)\n"
        "    at_s = torch.tensor(time.time(), dtype=torch.float64)\n"
        "for _ in range(2):\n    with accelerator.accumulate(model): pass\n"
        "print(accelerator.sync_gradients, accelerator.gather(at_s).diff().item() > 0)"
    )

    assert "ValueError: 7" in shown(failed)
    assert CLOSED in failed.stdout
    assert said(again) == both("True True"), "in step, and rank 1 after rank 0"


def test_w05_what_one_rank_does_for_itself_parts_nobody(kernel: NotebookKernel) -> None:
    kernel.ok(f"{KEEP}\n{TRAINS}begin(2)")

    failed = kernel.run(
        f"{KEEP}\nif accelerator.is_main_process:\n    for batch in loader: pass\n"
        "with accelerator.join_uneven_inputs([model], even_batches=False):\n"
        "    for _ in range(2 + 2 * rank):\n        with accelerator.accumulate(model): pass\n"
        "raise ValueError('alike')"
    )
    again = kernel.ok(f"{KEEP}\nprint(accelerator.reduce(torch.ones(1)).item())")

    assert "ValueError: alike" in shown(failed)
    assert CLOSED not in failed.stdout
    assert said(again) == both("2.0")


def test_w05_all_ranks_read_the_same_pass_after_one_that_ended_on_some(kernel: NotebookKernel) -> None:
    prepare = (
        "from accel_nb.utils import DataLoaderConfiguration\n"
        "accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))\n"
        "loader = accelerator.prepare(DataLoader(list(range(16)), batch_size=2, shuffle=True))"
    )
    kernel.ok(f"{KEEP}\n{TRAINS}{prepare}")

    kernel.run(f"{KEEP}\nfor number, batch in enumerate(loader):\n    if rank and number == 2: raise ValueError(7)")
    again = kernel.ok(
        f"{KEEP}\nread = torch.cat([batch for batch in loader])\n"
        "print(sorted(accelerator.gather(read).tolist()) == list(range(16)), loader.iteration)"
    )

    assert said(again) == both("True 2")


def test_w05_a_value_of_a_cell_that_failed_elsewhere_is_not_the_next_ones(kernel: NotebookKernel) -> None:
    kernel.ok("mine = 'the notebook'")

    kernel.run(f"{KEEP} --out mine\nmine = 'a cell that failed'\nif os.environ['RANK'] == '1': raise ValueError(7)")
    kernel.ok(f"{KEEP}\nprint(1)")

    assert kernel.ok("print(mine)").stdout == "the notebook\n"


def test_w05_an_interrupt_that_ends_all_ranks_alike_leaves_their_group(kernel: NotebookKernel) -> None:
    kernel.ok(f"{KEEP}\n{TRAINS}begin(2)")
    cell = kernel.start(f"{KEEP}\nfor batch in loader:\n    break\nprint('begun')\ntime.sleep(600)")
    kernel.wait_for(cell, "begun")

    kernel.interrupt()
    stopped = kernel.collect(cell, 20)
    again = kernel.ok(f"{KEEP}\nprint(accelerator.reduce(torch.ones(1)).item())")

    assert CLOSED not in stopped.stdout
    assert said(again) == both("2.0")


@pytest.mark.slow
def test_m05_kept_ranks_that_cannot_leave_a_try_end_and_say_why(kernel: NotebookKernel) -> None:
    cell = kernel.start(
        f"{KEEP}\nfrom accel_nb import find_executable_batch_size\nimport torch, torch.distributed as dist\n"
        "@find_executable_batch_size(starting_batch_size=8)\ndef train(batch_size):\n"
        "    if os.environ['RANK'] == '1' and batch_size > 4: raise torch.OutOfMemoryError('CUDA out of memory.')\n"
        "    dist.init_process_group('gloo')\n    return batch_size\ntrain()"
    )

    failed = kernel.collect(cell, 60)

    assert "train: batch size 8 does not fit, and the ranks could not go on within 10 s" in shown(failed)
    assert "Kept ranks end then" in shown(failed)


def test_y04_a_second_interrupt_ends_the_ranks(kernel: NotebookKernel) -> None:
    cell = kernel.start(
        f"{KEEP}\nimport signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('deaf')\ntime.sleep(600)"
    )
    kernel.wait_for(cell, "deaf")

    kernel.interrupt()
    time.sleep(0.2)
    kernel.interrupt()
    stopped = kernel.collect(cell, 20)
    after = kernel.ok(f"{START}\nprint('count' in globals())")

    assert "and the kept ranks were ended. Logs: " in shown(stopped)
    assert "accel_nb: the kept ranks had ended, and with them their variables; these are new ones\n" in after.stdout
    assert said(after) == both("False")


STOPS_TWICE = """
import threading
from pathlib import Path
from accel_nb.jupyter.kept_cells import KEPT
def stops_twice(up):
    while not Path(up).exists():
        time.sleep(0.01)
    for by in ("panel", "view"):
        KEPT._run.stop(by=by)
        time.sleep(0.2)
threading.Thread(target=stops_twice, args=({up!r},)).start()
"""
ENDS_SLOWLY = """
from pathlib import Path
try:
    Path({up!r}).touch()
    time.sleep(600)
except KeyboardInterrupt:
    time.sleep(1)
    raise
"""


def test_u08_two_stops_that_know_nothing_of_each_other_end_the_cell_alone(
    kernel: NotebookKernel, tmp_path: Path
) -> None:
    up = str(tmp_path / "up")
    kernel.ok(STOPS_TWICE.format(up=up))

    stopped = kernel.run(f"{KEEP}\n{ENDS_SLOWLY.format(up=up)}", 60)
    after = kernel.ok(f"{KEEP}\nprint(count)")

    assert "the 2 ranks and their variables stay." in shown(stopped)
    assert said(after) == both("0")


def test_e02_a_rank_that_dies_takes_the_others_along_and_is_explained(kernel: NotebookKernel) -> None:
    died = kernel.run(f"{KEEP}\nif os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\ntime.sleep(600)", 30)

    assert "rank 1 of 2 (cpu) died: killed by SIGKILL" in shown(died)
    assert "cannot be interrupted" not in died.stdout


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--num-processes 3", "--num-processes 3: the kept ranks were started with 2. Leave it out, or end them with"),
        ("--mixed-precision bf16", "--mixed-precision 'bf16': the kept ranks were started without that option."),
        ("--ranks 0,2", "--ranks: there is no rank 2; the kept ranks are 0 to 1."),
        ("--ranks all", "%%accelerate: argument --ranks: 'all' is no list of ranks; write them as in 0,2."),
        ("--background", "%%accelerate: --background is not possible with --keep."),
        ("--dry-run", "%%accelerate: --dry-run is not possible with --keep."),
        ("--max-restarts 2", "%%accelerate: --max-restarts is not possible with --keep."),
        ("--push nothing", "--push: the notebook has no variable 'nothing'. Nothing was started."),
    ],
)
def test_options_that_kept_ranks_cannot_obey_are_refused(kernel: NotebookKernel, line: str, message: str) -> None:
    refused = shown(kernel.run(f"{KEEP} {line}\ncount"))

    assert refused.partition(": ")[2].startswith(message), refused


@pytest.mark.parametrize("option", ["--ranks 0", "--push time"])
def test_options_of_kept_ranks_need_keep(kernel: NotebookKernel, option: str) -> None:
    refused = shown(kernel.run(f"%%accelerate {option}\n1"))

    name = option.split(maxsplit=1)[0]
    assert refused == f"InvalidArgument: %%accelerate: {name} is for ranks that are kept: give --keep, too."


def test_w05_fifty_cells_keep_the_namespace_and_take_no_memory(kernel: NotebookKernel) -> None:
    kernel.ok("import numpy\ndata = numpy.ones(1 << 20)")  # 8 MiB, pushed each time
    kernel.ok(f"{KEEP} --out pid\nseen, pid = [], os.getpid()")
    rank = psutil.Process(int(str(kernel.value("pid"))))
    own = psutil.Process(kernel.pid)
    sizes = []
    for number in range(50):
        if number == 20:
            assert "ValueError: in between" in shown(kernel.run(f"{KEEP}\nraise ValueError('in between')"))
        elif number == 30:
            cell = kernel.start(f"{KEEP}\nprint('begun')\ntime.sleep(600)")
            kernel.wait_for(cell, "begun")
            kernel.interrupt()
            assert "was interrupted" in shown(kernel.collect(cell, 20))
        else:
            kernel.ok(f"{KEEP} --out got\nseen.append(float(data[0]))\ngot = data * 2\nprint(len(seen))")
        if number in (10, 49):
            sizes.append((rank.memory_info().rss, own.memory_info().rss, rank.num_fds(), own.num_fds()))

    last = kernel.ok(f"{KEEP}\nprint(len(seen), sum(seen))")

    assert said(last) == both("48 48.0")
    before, after = sizes
    assert after[0] - before[0] < 16 << 20, "the rank's memory: less than two of the 39 arrays"
    assert after[1] - before[1] < 24 << 20, "the kernel's"
    assert after[2] <= before[2] + 2, "the rank's file descriptors"
    assert after[3] <= before[3] + 2, "the kernel's"


def test_y02_kept_ranks_end_with_the_kernel() -> None:
    started = NotebookKernel()
    try:
        started.ok("%load_ext accel_nb")
        started.ok(f"{START}\nkept = 1")
        ranks = Census(started).of_runs()
        started.kill()
        assert ranks
        expect_gone(ranks, 15)
    finally:
        started.close()
