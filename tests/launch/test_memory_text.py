"""What a failure tells about a GPU's memory."""

from __future__ import annotations

from msgspec.structs import replace

from accel_nb.launch.memory_text import memory_lines
from accel_nb.launch.run_failed import MAX_LINES, RunFailed
from accel_nb.protocol.failure import LineAllocations, MemorySnapshot

from .test_run_failed import plan, raised

GIB = 1 << 30
SNAPSHOT = MemorySnapshot(
    file="/logs/rank_1.memory_snapshot.pickle",
    total_bytes=70 * GIB,
    largest=(
        LineAllocations(location="Cell In[7], line 12", num_bytes=64 * GIB, count=1200),
        LineAllocations(location="", num_bytes=3 << 20, count=1),
    ),
)


def test_the_largest_lines_and_the_file_are_told() -> None:
    assert memory_lines(SNAPSHOT) == [
        "Tensors on the GPU held 70.0 GiB, most of it allocated at:",
        "    64.0 GiB in 1,200 by Cell In[7], line 12",
        "     3.0 MiB in 1 by no line of yours: backward, or a library's own thread",
        "Memory snapshot, to be opened at https://docs.pytorch.org/memory_viz: /logs/rank_1.memory_snapshot.pickle",
    ]


def test_a_snapshot_that_was_not_written_says_why() -> None:
    without_file = replace(SNAPSHOT, file="", largest=(), problem="the snapshot was not written: OSError: disk full")

    assert memory_lines(without_file) == ["Memory snapshot: the snapshot was not written: OSError: disk full"]


def test_that_nothing_was_on_the_gpu_is_told_where_it_is_known() -> None:
    assert memory_lines(replace(SNAPSHOT, largest=(), total_bytes=0))[0] == "No tensor was on the GPU."


def test_it_stands_between_the_head_and_the_traceback_of_a_failure() -> None:
    text = str(RunFailed([raised(1, memory=SNAPSHOT)], plan(2), "/logs")).splitlines()

    assert text[1] == "Log: /logs/rank_1.log"
    assert text[3:7] == memory_lines(SNAPSHOT)
    assert text[-1] == "ValueError: boom"


def test_with_a_long_traceback_it_stays_on_one_screen() -> None:
    most = replace(SNAPSHOT, largest=SNAPSHOT.largest[:1] * 10)

    text = str(RunFailed([raised(1, traceback="line\n" * 300, memory=most)], plan(2), "/logs"))

    assert len(text.splitlines()) <= MAX_LINES
    assert text.count("Cell In[7], line 12") == 11
