"""Host memory near its limit: told before the system kills a rank for it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from accel_nb.launch import cgroups
from accel_nb.launch.keeper.host_memory import HostMemoryWatch, Usage, low_memory, rank_bytes, read_usage

GIB = 1 << 30
LIMIT_BYTES = 2 * GIB


def usage(share: float) -> Usage:
    return Usage(math.ceil(share * 64 * GIB), 64 * GIB, "this container's limit")


def test_each_step_towards_the_limit_is_told_once() -> None:
    watch = HostMemoryWatch()

    told = [share for share in (0.5, 0.89, 0.9, 0.93, 0.91, 0.95, 0.96, 0.9, 0.99, 0.99) if watch.is_due(usage(share))]

    assert told == [0.9, 0.95, 0.99]


def test_it_is_told_again_once_there_was_room() -> None:
    watch = HostMemoryWatch()

    assert [watch.is_due(usage(share)) for share in (0.91, 0.85, 0.91, 0.7, 0.91)] == [True, False, False, False, True]


def test_the_warning_names_the_largest_rank_and_what_to_do() -> None:
    event = low_memory(usage(0.92), {0: 3 * GIB, 1: 40 * GIB})

    assert (event.largest_rank, event.rank_bytes, event.limit_bytes) == (1, 40 * GIB, 64 * GIB)
    assert event.text == (
        "host memory is nearly used up: 58.9 GiB of 64.0 GiB (this container's limit), 92%. Of the ranks, rank 1 holds "
        "most, 40.0 GiB with its DataLoader workers. When it is full, the system kills a process without a word: use "
        "smaller batches, fewer DataLoader workers or less prefetch_factor, or leave data on disk (np.memmap, the "
        "datasets package) instead of in every rank."
    )


def test_what_is_read_here_is_possible() -> None:
    read = read_usage()

    assert 0 < read.used_bytes <= read.limit_bytes
    assert rank_bytes(os.getpid()) > 1 << 20
    assert rank_bytes(2**22 + 1) == 0, "a process that is gone"


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group with a limit of 2 GiB, for a child of ours."""
    limit_names = ("memory.max", "memory.limit_in_bytes")
    for parent in cgroups._group_folders(Path("/proc/self")):
        group = parent / f"accel_nb_test_{os.getpid()}"
        if not any((parent / name).exists() for name in limit_names):
            continue
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            name = next((name for name in limit_names if (group / name).exists()), None)
            if name is not None:
                (group / name).write_text(str(LIMIT_BYTES))
                yield group
                return
        finally:
            group.rmdir()
    pytest.skip("this system lets us make no control group for memory")


@pytest.mark.faults
def test_a_rank_near_the_limit_of_its_container_is_told(memory_group: Path) -> None:
    """A kernel in a container of 2 GiB; rank 1 takes what is there, up to 93 percent."""
    source = """
        from accel_nb import notebook_launcher

        def takes_memory():
            import os, time
            from accel_nb.launch.keeper.host_memory import read_usage
            taken = []
            while os.environ["RANK"] == "1" and read_usage().share < 0.93:
                taken.append(b"x" * (16 << 20))
            time.sleep(5 if taken else 0)
            return len(taken)

        print(list(notebook_launcher(takes_memory, num_processes=2, device="cpu"))[1] > 5)
    """
    enter = f"import os; open({str(memory_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
    code = f"{enter}\n{textwrap.dedent(source)}"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("True\n"), done.stdout
    assert "host memory is nearly used up: 1.9 GiB of 2.0 GiB (this container's limit), 9" in done.stdout
    assert "Of the ranks, rank 1 holds most, " in done.stdout
