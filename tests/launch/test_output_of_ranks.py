"""Every byte that ranks and their children write: in the launching cell, tagged, in order, live, and in files."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from pathlib import Path

import pytest

from tests.notebook_kernel import Executed, NotebookKernel

from . import rank_code
from .launching import launch, lines_of, start

SET_UP = "from accel_nb import notebook_launcher\nfrom tests.launch import rank_code\nimport os, time"


def test_o01_o04_every_way_of_writing_arrives_in_the_cell_while_the_function_runs(kernel: NotebookKernel) -> None:
    kernel.ok(SET_UP)
    released = kernel.dir / "released"

    cell = kernel.start(f"notebook_launcher(rank_code.write_in_every_way, ({str(released)!r},), num_processes=2)")
    for rank in (0, 1):
        for way in rank_code.WAYS:
            kernel.wait_for(cell, f"[r{rank}] {way} of rank {rank}\n")
    assert not kernel.so_far(cell).idle
    released.touch()
    done = kernel.collect(cell)

    assert done.ename is None, done.described()
    shown = done.text.splitlines()
    (log_dir,) = kernel.log_dir.glob("run-*")
    for rank in (0, 1):
        expected = [f"{way} of rank {rank}" for way in rank_code.WAYS]
        assert [line.removeprefix(f"[r{rank}] ") for line in shown if line.startswith(f"[r{rank}]")] == expected
        assert (log_dir / f"rank_{rank}.log").read_text().splitlines() == expected


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_o01_a_line_is_in_the_cell_within_a_second(kernel: NotebookKernel, num_ranks: int) -> None:
    """The best of some: others may be late on a busy machine. None may wait for the end of the cell."""
    kernel.ok(SET_UP)

    cell = kernel.start(f"notebook_launcher(rank_code.tell_the_time, (10,), num_processes={num_ranks})")
    done = kernel.collect(cell)

    late_s = [
        stream.time_s - float(written)
        for stream in done.streams
        for written in re.findall(r"rank \d at ([0-9.]+)", stream.text)
    ]
    print(f"{num_ranks} ranks: written to shown in {min(late_s):.2f} to {max(late_s):.2f} s")
    assert len(late_s) == 10 * num_ranks, done.described()
    assert min(late_s) < 1.0
    assert max(late_s) < 4.0, "while the function still runs, which takes 5 s"


def test_o01_a_plain_terminal_gets_the_same(tmp_path: Path) -> None:
    released = tmp_path / "released"
    released.touch()

    launched = launch(rank_code.write_in_every_way, str(released))

    for rank in (0, 1):
        expected = [f"{way} of rank {rank}" for way in rank_code.WAYS]
        assert lines_of(launched, rank) == expected
        assert launched.run.logs(rank).splitlines() == expected


def test_o04_o05_a_background_run_streams_into_its_own_cell_while_others_run(kernel: NotebookKernel) -> None:
    kernel.ok(SET_UP)

    launching = kernel.start("handle = notebook_launcher(rank_code.a_line_per_second, num_processes=2, block=False)")
    kernel.collect(launching)
    others = []
    while "[r1] line 5" not in kernel.so_far(launching).text:
        others.append(kernel.ok("print('another cell'); time.sleep(0.2)"))
        assert len(others) < 200
    assert kernel.value("list(handle.result(30))") == [0, 1]

    streams = [stream for stream in kernel.so_far(launching).streams if "] line " in stream.text]
    assert streams[-1].time_s - streams[0].time_s >= 4, "streamed, not delivered at the end"
    lines = [line for line in kernel.so_far(launching).text.splitlines() if line.startswith("[r1]")]
    assert lines == [f"[r1] line {number} of rank 1" for number in range(6)]
    assert {cell.text for cell in others} == {"another cell\n"}


FLOOD = """
from pathlib import Path
Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from now on

def memory_kb(what):
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith(what)))

before = memory_kb("VmRSS")
longest = notebook_launcher(rank_code.flood, num_processes=2)
grown_mb = (memory_kb("VmHWM") - before) / 1024
"""


def test_o03_a_flood_neither_blocks_the_rank_nor_fills_the_kernel_and_its_file_is_exact(kernel: NotebookKernel) -> None:
    kernel.ok(SET_UP + "\nnotebook_launcher(rank_code.place, num_processes=2)")

    earlier = set(kernel.log_dir.glob("run-*"))

    done = kernel.ok(FLOOD, timeout_s=100)

    (log_dir,) = set(kernel.log_dir.glob("run-*")) - earlier
    for rank in (0, 1):
        written = hashlib.sha256(b"".join(rank_code.flood_blocks(rank)))
        assert hashlib.sha256((log_dir / f"rank_{rank}.log").read_bytes()).digest() == written.digest()
    longest = kernel.value("list(longest)")
    assert isinstance(longest, list)
    assert max(longest) < 1.0, "seconds in one write"
    grown_mb = kernel.value("grown_mb")
    assert isinstance(grown_mb, float)
    assert grown_mb < 20
    assert len(done.text) < 1_500_000
    assert "lines not shown: " in done.text
    assert f"{log_dir}/rank_1.log" in done.text


TQDM = """
from tqdm import tqdm, trange
import tqdm.auto, tqdm.notebook

def plain():
    for _ in tqdm.tqdm(range(100), desc="plain"):
        time.sleep(0.002)

def auto():
    for _ in tqdm.auto.tqdm(range(100), desc="auto"):
        time.sleep(0.002)

def notebook():
    for _ in tqdm.notebook.tqdm(range(100), desc="notebook"):
        time.sleep(0.002)

def ranged():
    for _ in tqdm.trange(100, desc="ranged"):
        time.sleep(0.002)

def nested():
    for _ in tqdm.tqdm(range(3), desc="outer"):
        for _ in tqdm.tqdm(range(20), desc="inner", leave=False):
            time.sleep(0.002)

def several():
    print("before the bars")
    plain(); auto(); notebook(); ranged(); nested()
    print("after the bars")
"""


def test_o06_unchanged_tqdm_leaves_one_finished_row_per_bar(kernel: NotebookKernel) -> None:
    kernel.ok(SET_UP)
    kernel.ok(TQDM)

    done = kernel.ok("notebook_launcher(several, num_processes=2)")

    rows = final_display(done).splitlines()
    for rank in (0, 1):
        own = [row for row in rows if row.startswith(f"[r{rank}]")]
        for name, total in {"plain": 100, "auto": 100, "notebook": 100, "ranged": 100, "outer": 3}.items():
            (row,) = [row for row in own if f" {name}: " in row]
            assert re.search(rf"100%\|█+\| {total}/{total} \[", row)
        assert len(own) == 5, own
    assert "\r" not in done.text
    assert "it/s" not in done.text
    words = [re.sub(r"^\[r0-r1\]|^\[r[01]\]", "", line) for line in done.text.splitlines() if "the bars" in line]
    assert set(words) == {" before the bars", " after the bars"}
    assert words[0] == " before the bars"
    # At most ten drawings a second, however often tqdm moves.
    displays = done.displays
    assert len(displays) <= 10 * (displays[-1].time_s - displays[0].time_s) + 2
    assert len({display.display_id for display in displays}) == 1


def final_display(executed: Executed) -> str:
    return str(executed.displays[-1].data["text/plain"])


class TestO09WhoSaysWhat:
    def test_o09_lines_of_one_rank_have_its_prefix(self) -> None:
        launched = launch(lambda: print("I am rank", os.environ["RANK"]), num_processes=3)

        assert sorted(launched.text.splitlines()[1:]) == [f"[r{rank}] I am rank {rank}" for rank in range(3)]

    def test_o09_the_same_line_of_several_ranks_is_one(self) -> None:
        def talk() -> None:
            print("all say this")
            if os.environ["RANK"] != "1":
                print("two say this")

        launched = launch(talk, num_processes=3)

        assert launched.text.splitlines()[1:] == ["[r0-r2] all say this", "[r0,r2] two say this"]
        assert launched.run.logs(1) == "all say this\n"
        assert launched.run.logs(2) == "all say this\ntwo say this\n"

    def test_o09_loggers_of_ranks_other_than_0_are_shown_from_warning_on_and_files_hold_all(self) -> None:
        def talk() -> None:
            import logging

            rank = os.environ["RANK"]
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
            log = logging.getLogger("train")
            log.info("step of %s", rank)
            print("print of", rank)
            log.warning("trouble of %s", rank)

        launched = launch(talk)

        shown = [re.sub(r"\d{4}-.*?,\d+", "TIME", line) for line in launched.text.splitlines()[1:]]
        assert [line for line in shown if line.startswith("[r0]")] == [
            "[r0] TIME INFO step of 0", "[r0] print of 0", "[r0] TIME WARNING trouble of 0",
        ]  # fmt: skip
        assert [line for line in shown if line.startswith("[r1]")] == [
            "[r1] print of 1",
            "[r1] TIME WARNING trouble of 1",
        ]
        (told,) = (line for line in shown if line.startswith("accel_nb"))
        assert f"{launched.run.log_dir}/rank_*.log" in told
        assert "INFO step of 1\n" in launched.run.logs(1)

    def test_o09_each_ranks_own_order_is_kept(self) -> None:
        def talk() -> None:
            for number in range(50):
                print("same" if number % 3 else f"{number} of {os.environ['RANK']}")

        launched = launch(talk)

        for rank in (0, 1):
            expected = ["same" if number % 3 else f"{number} of {rank}" for number in range(50)]
            shown = [line for line in launched.text.splitlines() if line.startswith((f"[r{rank}]", "[r0-r1]"))]
            assert [line.partition("] ")[2] for line in shown] == expected

    def test_a_single_rank_needs_no_prefix(self) -> None:
        launched = launch(lambda: print("alone"), num_processes=1)

        assert launched.text.splitlines()[1:] == ["alone"]

    def test_the_prefix_can_be_chosen_as_with_torchrun(self) -> None:
        launched = launch(lambda: print("hello"), log_line_prefix_template="<${role_name} ${rank}/${local_rank}> ")

        assert sorted(launched.text.splitlines()[1:]) == ["<default 0/0> hello", "<default 1/1> hello"]


class TestStreams:
    def test_text_that_is_no_utf8_and_no_text_at_all(self) -> None:
        def write() -> None:
            print("ünïcödé \udcff ✓")
            os.write(1, b"bytes \xff\xfe end\n")

        launched = launch(write, num_processes=1)

        assert launched.text.splitlines()[1:] == ["ünïcödé \\udcff ✓", "bytes �� end"]
        log = (launched.run.log_dir / "rank_0.log").read_bytes()
        assert log == "ünïcödé \\udcff ✓\n".encode() + b"bytes \xff\xfe end\n"

    def test_they_behave_as_streams_do(self) -> None:
        def describe() -> tuple[object, ...]:
            out, err = sys.stdout, sys.stderr
            out.buffer.write(b"raw\n")
            out.flush()
            return out.fileno(), err.fileno(), out.isatty(), out.encoding, sys.__stdout__ is out, sys.stdin.read()

        launched = launch(describe, num_processes=1)

        assert launched.values == [(1, 2, False, "utf-8", True, "")]
        assert launched.run.logs(0) == "raw\n"

    def test_lines_of_threads_do_not_mix(self) -> None:
        launched = launch(rank_code.print_from_threads, num_processes=1)

        assert sorted(launched.run.logs(0).splitlines()) == sorted(
            f"{letter * 200}{number}" for letter in "abcd" for number in range(200)
        )

    def test_a_question_is_shown_before_its_answer_could_come(self) -> None:
        launched = launch(rank_code.ask, num_processes=1)

        assert launched.values == ["EOFError"]
        assert launched.text.splitlines()[1:] == ["your name? "]

    def test_what_a_child_wrote_that_was_left_behind_is_not_lost(self, tmp_path: Path) -> None:
        def leave_a_child(written: str) -> None:
            import subprocess

            subprocess.Popen(["sh", "-c", f"echo from the child; touch {written}; exec sleep 60"])
            while not Path(written).exists():
                time.sleep(0.01)

        launched = launch(leave_a_child, str(tmp_path / "written"), num_processes=1)

        line, told = launched.text.splitlines()[1:]
        assert line == "from the child"
        assert re.match(r"accel_nb: 1 process(es)? that the ranks had left behind ", told)


def test_o16_a_stopped_run_has_its_logs() -> None:
    def train() -> None:
        print("rank", os.environ["RANK"], flush=True)
        time.sleep(60)

    run = start(train)
    for rank in (0, 1):
        while f"rank {rank}" not in run.logs(rank):
            time.sleep(0.02)
    run.stop()
    run.draw()

    assert run.status == "stopped"
    for rank in (0, 1):
        assert (run.log_dir / f"rank_{rank}.log").read_text().splitlines()[0] == f"rank {rank}"
