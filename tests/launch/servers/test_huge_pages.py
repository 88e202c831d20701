"""The server's memory on huge pages."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil
import pytest

from accel_nb.launch.servers.huge_pages import HUGE_PAGE_BYTES, collapsing
from accel_nb.launch.servers.warm_client import POOL
from tests.launch.census import wait_until
from tests.launch.launching import on_ranks
from tests.launch.lifecycle_code import own_pid

LINUX_6_1 = (6, 1)
_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
has_huge_pages = (
    tuple(map(int, platform.release().split(".")[:2])) >= LINUX_6_1
    and _ENABLED.exists()
    and "[never]" not in _ENABLED.read_text()
)


def huge_bytes(pid: int) -> int:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("AnonHugePages:"))


@pytest.mark.skipif(not has_huge_pages, reason="this system gives no huge pages on demand")
def test_memory_keeps_its_content_on_huge_pages() -> None:
    data = bytearray(os.urandom(4096)) * (16 * HUGE_PAGE_BYTES // 4096)
    copy = bytes(data)
    before = huge_bytes(os.getpid())

    steps = sum(1 for _ in collapsing())

    assert data == copy
    assert steps >= 15
    assert huge_bytes(os.getpid()) - before >= 8 * HUGE_PAGE_BYTES


@pytest.mark.usefixtures("only_plain_servers")
@pytest.mark.skipif(not has_huge_pages, reason="this system gives no huge pages on demand")
def test_an_idle_server_moves_to_huge_pages_and_then_forks_the_next_ranks() -> None:
    on_ranks(own_pid)
    (server,) = POOL.pids()

    wait_until(lambda: len(psutil.Process(server).children(recursive=True)) == 3, 60, lambda: "nothing forked ahead")

    # Some of it lies in pieces too small for a huge page.
    anonymous = psutil.Process(server).memory_full_info().uss
    assert huge_bytes(server) > 0.25 * anonymous
    assert len(on_ranks(own_pid)) == 2
