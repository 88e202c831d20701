"""Servers that make room for others, and launches that are given up before their server could begin them."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path

import psutil
import pytest

from accel_nb import notebook_launcher
from accel_nb.launch.channel import Channel
from accel_nb.launch.engines.local import LocalGroup, base_variables
from accel_nb.launch.run import Run
from accel_nb.launch.servers.preload import Preload
from accel_nb.launch.servers.warm_client import MAX_SERVERS, POOL, ServerKey, WarmServer
from accel_nb.protocol import environment
from accel_nb.protocol.commands import KeeperMessage, RunOrder
from tests.launch.census import children, expect_gone, ids, until_up, wait_until
from tests.launch.keeper.orders import attempt_of
from tests.launch.launching import on_ranks, start
from tests.launch.lifecycle_code import goes_on_when, marks, server_of_this_rank

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("only_plain_servers")]


def servers() -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in POOL.pids()]


def other_server(number: int) -> WarmServer:
    variables = environment.current() | {"TORCH_TEST": str(number)}
    return POOL.get(ServerKey.for_run(variables), variables)


def test_a_run_goes_on_when_its_server_makes_room_and_then_the_server_goes(tmp_path: Path) -> None:
    run = until_up(start(goes_on_when, str(tmp_path / "go")))
    (server,) = servers()
    for number in range(MAX_SERVERS):
        other_server(number)
    # Long enough for one that was killed to be gone.
    time.sleep(0.5)
    stays = server.pid in POOL.pids()

    (tmp_path / "go").touch()

    assert list(run.result(60)) == ["1.0", "1.0"]
    assert stays, "it stays until its run is over"
    expect_gone(ids([server]))
    wait_until(lambda: len(POOL.pids()) == MAX_SERVERS, 10, lambda: str(POOL.pids()))


def test_a_server_that_makes_room_while_it_imports_still_does_what_it_was_asked() -> None:
    run = start(server_of_this_rank)
    wait_until(lambda: len(POOL.pids()) == 1, 10, lambda: str(run))
    (server,) = servers()
    assert run.state.status == "starting"
    for number in range(MAX_SERVERS):
        other_server(number)

    assert list(run.result(90)) == [server.pid] * 2
    expect_gone(ids([server]))


def test_a_server_that_makes_room_unasked_does_not_import_to_the_end() -> None:
    first = other_server(0)
    process = psutil.Process(first.pid)
    gone = ids([process])
    for number in range(1, MAX_SERVERS + 1):
        other_server(number)

    expect_gone(gone, within_s=2.0)


def test_a_launch_finds_its_way_when_all_servers_were_killed_an_instant_before(
    tmp_path: Path, only_plain_servers: Preload
) -> None:
    """The template and the plain server, both dying, none of it noticed."""
    for number in range(3):
        on_ranks(server_of_this_rank)
        with attempt_of(marks, str(tmp_path / "mark"), log_dir=tmp_path) as attempt:
            variables = base_variables(attempt)
        only_plain_servers.learn("marks", [f"wave{number}", "hypothesis"], variables, num_ranks=2)
        wait_until(lambda: len(POOL.pids()) >= 2, 10, lambda: str(POOL.pids()))
        for server in servers():
            server.kill()

        assert len(on_ranks(server_of_this_rank)) == 2


def test_a_launch_that_is_stopped_while_its_server_imports_never_runs(tmp_path: Path) -> None:
    run = notebook_launcher(marks, (str(tmp_path / "mark"),), num_processes=3, device="cpu", block=False)
    assert isinstance(run, Run)
    wait_until(lambda: len(POOL.pids()) == 1, 10, lambda: str(run))
    (server,) = servers()

    began = time.monotonic()
    run.stop()
    assert run.wait(5)
    stopped_s = time.monotonic() - began
    forked = children(server)
    POOL.get(ServerKey.for_run(environment.current()), environment.current()).poll_ready(90.0)
    end = time.monotonic() + 1.0
    while not forked and time.monotonic() < end:
        forked = children(server)
        time.sleep(0.005)

    assert forked == [], "nothing is begun that nobody waits for"
    assert stopped_s < 2.0
    assert run.status == "stopped"
    assert not (tmp_path / "mark").exists()
    assert on_ranks(server_of_this_rank) == [server.pid] * 2


def test_a_keeper_whose_kernel_has_left_begins_nothing(tmp_path: Path) -> None:
    """The order and the end of the connection arrive together."""
    with attempt_of(marks, str(tmp_path / "mark"), log_dir=tmp_path) as attempt:
        kernel, keeper = socket.socketpair()
        with keeper:
            variables = base_variables(attempt)
            server = POOL.get(ServerKey.for_run(variables), variables)
            assert server.poll_ready(90.0) is not None
            process = psutil.Process(server.pid)
            channel: Channel[KeeperMessage] = Channel(kernel, KeeperMessage)
            order = RunOrder(plan=attempt.plan, surroundings=attempt.surroundings, log_dir=str(tmp_path))
            channel.send(order, [attempt.payload_fd])
            # Half of it: the server does not take it for closed.
            kernel.shutdown(socket.SHUT_WR)
            server.start_keeper(2, keeper)
        end = time.monotonic() + 60
        closed = False
        while not closed:
            assert time.monotonic() < end
            _, closed = channel.receive()
            time.sleep(0.01)
        channel.close()

    wait_until(lambda: not [k for k in children(process) if has_files_in(k, tmp_path)], 10, lambda: "the keeper stays")
    assert not (tmp_path / "mark").exists()
    assert not (tmp_path / "run.jsonl").exists()


def has_files_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return any(file.path.startswith(str(folder)) for file in process.open_files())
    except psutil.Error:
        return False


def test_y12_a_run_channel_that_a_dying_server_closed_first_is_lost_only_when_the_server_is_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = other_server(0)
    # As the system leaves a process that was killed, for a moment: its descriptors are closed, it is not dead yet.
    requests, its_end = socket.socketpair()
    its_end.close()
    open_all_along = vars(server)["_requests"]
    monkeypatch.setattr(server, "_requests", requests)
    run, its_end = socket.socketpair()
    its_end.close()
    group = LocalGroup(run, os.dup(server.pidfd), server.log_file, "run", server)
    group.receive()
    killer = threading.Timer(0.3, os.kill, (server.pid, signal.SIGKILL))
    killer.start()
    try:
        reason = group.lost()

        assert not server.alive
        assert reason is not None
        assert "could not start the ranks (status -9)" in reason
        assert other_server(0) is not server
    finally:
        killer.join()
        group.close()
        open_all_along.close()


def test_a_run_channel_that_a_living_server_closed_is_lost_at_once() -> None:
    server = other_server(0)
    run, its_end = socket.socketpair()
    its_end.close()
    group = LocalGroup(run, os.dup(server.pidfd), server.log_file, "run", server)
    group.receive()

    reason = group.lost()

    assert server.alive
    assert reason is not None
    assert "could not start the ranks. The end of" in reason
    group.close()
