"""What the kernel tells server and keeper: however long it is, and when it cannot be read."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from accel_nb.launch.channel import Channel
from accel_nb.launch.engines.engine import Attempt
from accel_nb.launch.engines.local import ENGINE
from accel_nb.launch.processes import is_readable
from accel_nb.launch.run_files import server_log
from accel_nb.launch.servers.warm_client import POOL, ServerKey, ServerPool
from accel_nb.launch.supervisor import Supervisor
from accel_nb.protocol import environment
from accel_nb.protocol.commands import KeeperHello, KeeperMessage, RunOrder
from accel_nb.protocol.plan import Timeouts
from tests.launch.census import expect_gone, ids
from tests.launch.keeper.orders import attempt_of
from tests.launch.launching import launch, on_ranks
from tests.launch.lifecycle_code import own_pid

VARIABLE_CHARS = 100_000
"""Linux takes 128 KiB for one variable."""


def test_an_order_of_300_kb_arrives_whole() -> None:
    env = {f"LONG_{letter}": letter * VARIABLE_CHARS for letter in "abc"}

    def lengths() -> dict[str, int]:
        return {name: len(value) for name, value in os.environ.items() if name.startswith("LONG_")}

    assert on_ranks(lengths, env=env) == [dict.fromkeys(env, VARIABLE_CHARS)] * 2


def test_a_server_is_told_of_200_kb_of_modules() -> None:
    names = tuple(f"no_such_module_{number:05}_{'x' * 80}" for number in range(2500))
    pool = ServerPool()
    variables = environment.current()
    log_bytes = server_log().stat().st_size if server_log().exists() else 0

    server = pool.get(ServerKey.for_run(variables, preload=names), variables)
    end = time.monotonic() + 90
    while (ready := server.poll_ready(1.0)) is None:
        assert time.monotonic() < end

    with server_log().open() as log:
        log.seek(log_bytes)
        left_out = log.read()
    pool.stop_all()
    assert sum(map(len, names)) > 200_000
    assert ready.struck == {}
    assert [name for name in names if f"{name} left out: ModuleNotFoundError" not in left_out] == []


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Attempt]:
    with attempt_of(own_pid, log_dir=tmp_path) as made:
        yield made


def test_an_order_that_cannot_be_read_fails_the_run_and_says_where_the_reason_is(attempt: Attempt) -> None:
    """As when two versions of this package meet."""
    of_another_version = replace(attempt.plan, timeouts=Timeouts(start_s="soon"))  # type: ignore[arg-type]
    supervisor = Supervisor(ENGINE, replace(attempt, plan=of_another_version), lambda _events, _state: None)

    supervisor.run()

    assert supervisor.error is None
    assert supervisor.state.status == "failed"
    assert [failure.rank for failure in supervisor.state.failures] == [0, 1]
    assert f"{server_log()} says why" in supervisor.state.failures[0].message
    assert "the run's order cannot be read: Expected `float`, got `str`" in server_log().read_text()
    assert len(on_ranks(own_pid)) == 2, "the server lives and serves"


def test_a_keeper_with_an_unreadable_order_is_gone_with_its_ranks(attempt: Attempt) -> None:
    on_ranks(own_pid)
    (server,) = (psutil.Process(pid) for pid in POOL.pids()[:1])
    kernel, keeper = socket.socketpair()
    with keeper:
        variables = environment.current()
        POOL.get(ServerKey.for_run(variables), variables).start_keeper(2, keeper)
    channel: Channel[KeeperMessage] = Channel(kernel, KeeperMessage)
    assert is_readable(channel.fileno(), 60)
    messages, _ = channel.receive()
    assert isinstance(messages[0], KeeperHello)
    keeper_fd = channel.take_fd()
    family = ids([psutil.Process(messages[0].pid), *psutil.Process(messages[0].pid).children()])
    assert len(family) == 3

    broken = replace(attempt.plan, ranks="none")
    order = RunOrder(plan=broken, surroundings=attempt.surroundings, log_dir=str(attempt.log_dir))
    channel.send(order, [attempt.payload_fd])

    assert is_readable(keeper_fd, 30), "it ends"
    os.close(keeper_fd)
    channel.close()
    expect_gone(family)
    assert server.is_running()
    assert launch(own_pid).run.status == "finished"
