"""The pool of servers: reuse, replacement, and what their end does not do."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from accel_nb import notebook_launcher
from accel_nb.errors import ServerFailed
from accel_nb.launch.servers.warm_client import MAX_SERVERS, POOL, ServerKey, ServerPool
from accel_nb.launch.servers.warmup import warm_up
from accel_nb.protocol import environment


def variables(**more: str) -> dict[str, str]:
    return environment.current() | more


def test_the_same_variables_share_a_server_and_another_value_gets_its_own() -> None:
    pool = ServerPool()
    plain = pool.get(ServerKey.for_run(variables()), variables())
    other = variables(TORCH_LOGS="dynamo")

    assert pool.get(ServerKey.for_run(variables(SOMETHING="else")), variables()) is plain
    assert pool.get(ServerKey.for_run(other), other) is not plain

    pool.stop_all()
    assert pool.pids() == []


def test_a_dead_server_is_replaced() -> None:
    pool = ServerPool()
    key = ServerKey.for_run(variables())
    first = pool.get(key, variables())
    os.kill(first.pid, signal.SIGKILL)
    while first.alive:
        time.sleep(0.01)

    second = pool.get(key, variables())

    assert second.pid != first.pid
    pool.stop_all()


def test_the_number_of_servers_is_bounded() -> None:
    pool = ServerPool()
    for number in range(MAX_SERVERS + 2):
        own = variables(TORCH_TEST=str(number))
        pool.get(ServerKey.for_run(own), own)

    end = time.monotonic() + 10
    while len(pool.pids()) > MAX_SERVERS and time.monotonic() < end:
        time.sleep(0.05)

    assert len(pool.pids()) == MAX_SERVERS
    pool.stop_all()


def test_a_server_that_dies_on_import_says_what_its_log_says(tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('this torch is broken')")
    own = variables(PYTHONPATH=str(tmp_path))
    pool = ServerPool()
    server = pool.get(ServerKey.for_run(own), own)

    with pytest.raises(ServerFailed, match="this torch is broken"):
        server.count_devices({}, 30.0)
    pool.stop_all()


def test_a_server_whose_log_was_removed_is_told_dead_all_the_same() -> None:
    pool = ServerPool()
    own = variables(TORCH_TEST="no log")
    server = pool.get(ServerKey.for_run(own), own)
    log = server.log_file.rename(server.log_file.with_suffix(".kept"))
    os.kill(server.pid, signal.SIGKILL)

    with pytest.raises(ServerFailed, match=r"(?s)\. The end of .*cannot be read: No such file or directory"):
        server.count_devices({}, 30.0)
    log.rename(server.log_file)
    pool.stop_all()


def broken_group(folder: Path) -> dict[str, str]:
    """Variables of servers that can preload `broken_group`, after which ranks forked ahead fail at their rehearsal."""
    (folder / "broken_group.py").write_text(
        "import torch.distributed\n"
        "def fails(*args, **kwargs):\n"
        "    raise RuntimeError('no group today')\n"
        "torch.distributed.init_process_group = fails\n"
    )
    return variables(PYTHONPATH=str(folder))


def test_the_last_words_of_a_rank_that_dies_while_it_waits_are_in_the_servers_log(tmp_path: Path) -> None:
    own = broken_group(tmp_path)
    pool = ServerPool()
    server = pool.get(ServerKey.for_run(own, preload=("broken_group",)), own)
    server.fork_ahead(2)
    told_before = server.log_file.read_text().count("no group today")

    end = time.monotonic() + 60
    while server.log_file.read_text().count("no group today") == told_before:
        assert time.monotonic() < end, server.log_file.read_text()[-2000:]
        time.sleep(0.05)

    log = server.log_file.read_text()
    assert "forked ahead, exited with status 70 without returning; its memory peaked at " in log
    assert "RuntimeError: no group today" in log
    assert server.alive
    pool.stop_all()


def test_a_run_under_way_goes_on_when_its_server_is_let_go() -> None:
    def outlast(seconds: float) -> int:
        time.sleep(seconds)
        return 7

    run = notebook_launcher(outlast, (3.0,), num_processes=2, device="cpu", block=False)
    while run.status == "starting":
        time.sleep(0.01)

    POOL.stop_all(timeout_s=0.1)

    assert list(run.result(60.0)) == [7, 7]


def test_warming_up_starts_what_the_first_launch_uses() -> None:
    POOL.stop_all(timeout_s=60.0)
    warm_up()
    # One server, and one more where earlier tests have taught what to preload.
    pids = POOL.pids()

    def parent_of_keeper() -> int:
        keeper = os.getppid()
        for line in Path(f"/proc/{keeper}/status").read_text().splitlines():
            if line.startswith("PPid:"):
                return int(line.split()[1])
        return 0

    [server] = notebook_launcher(parent_of_keeper, num_processes=1, device="cpu")
    assert server in pids
