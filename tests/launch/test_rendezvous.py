"""How ranks find each other: no fixed port, no port lost, nobody waited for in silence."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from accel_nb.errors import PortInUse
from accel_nb.protocol.plan import Timeouts

from . import rank_code
from .launching import launch, on_ranks, start

UPSTREAMS_PORTS = range(29500, 29511)
"""29500 is the default of torchrun and of Accelerate."""


@pytest.fixture
def _upstreams_ports_taken() -> Iterator[None]:
    with contextlib.ExitStack() as held:
        for port in UPSTREAMS_PORTS:
            sock = held.enter_context(socket.socket())
            # Taken by us or by somebody else: they are taken.
            with contextlib.suppress(OSError):
                sock.bind(("127.0.0.1", port))
                sock.listen()
        yield


@pytest.mark.usefixtures("_upstreams_ports_taken")
def test_r01_two_launches_at_a_time_find_ports_of_their_own() -> None:
    def repeat(results: list[object]) -> None:
        for _ in range(10):
            try:
                results.append(on_ranks(rank_code.gloo_sum_and_address))
            except Exception as error:  # noqa: BLE001  whatever it is, the test shows it
                results.append(error)

    both: tuple[list[object], list[object]] = ([], [])
    threads = [threading.Thread(target=repeat, args=(results,)) for results in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for result in (*both[0], *both[1]):
        assert isinstance(result, list), result
        (first_sum, address, first_port), second = result
        assert second == (first_sum, address, first_port)
        assert (first_sum, address) == (3.0, "127.0.0.1")
        assert int(first_port) not in {0, *UPSTREAMS_PORTS}
    assert [len(results) for results in both] == [10, 10]


def test_r02_the_deadline_names_who_did_not_come() -> None:
    def only_some(num_ranks: int) -> None:
        from torch import distributed

        if int(os.environ["RANK"]) in (1, 3):
            time.sleep(60)
        distributed.init_process_group("gloo", world_size=num_ranks)

    started = time.monotonic()
    failure = launch(only_some, 4, num_processes=4, timeouts=Timeouts(rendezvous_s=2.0)).failure

    assert time.monotonic() - started < 30
    assert failure.rank in (0, 2)
    assert failure.exc_type == "accel_nb.errors.RendezvousTimeout"
    assert failure.ranks == (0, 2)
    assert failure.cause.message.startswith("2 of 4 ranks came to init_process_group at 127.0.0.1:")
    assert " within 2 s, missing: 1, 3. Every rank must call it" in failure.cause.message
    assert "timeouts=Timeouts(rendezvous_s=...)" in failure.cause.message
    assert failure.cause.location.startswith("test_rendezvous.py, line ")


def test_r02_nobody_waits_longer_than_two_minutes_unless_told() -> None:
    assert Timeouts().rendezvous_s <= 120


@pytest.mark.parametrize("port", [None, 0])
def test_r02_every_rank_is_told_the_port_that_was_bound(port: int | None) -> None:
    (_, _, first), (_, _, second) = on_ranks(rank_code.gloo_sum_and_address, use_port=port)

    assert first == second
    assert int(first) > 0


def test_a_given_port_is_used() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    for _ in range(2):
        assert on_ranks(rank_code.gloo_sum_and_address, use_port=port) == [(3.0, "127.0.0.1", str(port))] * 2


def test_r03_a_given_port_that_is_taken_is_named_with_its_owner() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse) as raised:
            start(rank_code.gloo_sum_and_address, use_port=port)

    text = str(raised.value)
    assert f"use_port={port}" in text
    assert f"127.0.0.1:{port} is taken by pid {os.getpid()} ({psutil.Process().cmdline()[0]}" in text
    assert "leave use_port out and a free port is chosen" in text


BIND_AT_RANDOM = """
import random, socket, sys, time
held = []
print("binding", flush=True)
while True:
    sock = socket.socket()
    try:
        sock.bind(("127.0.0.1", random.choice([0, random.randrange(32768, 61000)])))
        sock.listen()
        held.append(sock)
    except OSError:
        sock.close()
    if len(held) > 300:
        held.pop(random.randrange(len(held))).close()
    time.sleep(0.0005)
"""


@pytest.fixture
def _ephemeral_ports_in_motion() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", BIND_AT_RANDOM], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.usefixtures("_ephemeral_ports_in_motion")
@pytest.mark.parametrize("launches", [30, pytest.param(200, marks=pytest.mark.slow)])
def test_r04_no_port_is_lost_between_its_choice_and_its_use(launches: int) -> None:
    for _ in range(launches):
        assert on_ranks(lambda: None) == [None, None]
    assert on_ranks(rank_code.gloo_sum_and_address)[0][0] == 3.0


LAUNCHES_ON_A_NAMELESS_HOST = """
import time
from accel_nb import notebook_launcher
from tests.launch import rank_code

for _ in range(3):
    # Time for the next ranks to be made ahead.
    time.sleep(0.7)
    print(list(notebook_launcher(rank_code.gloo_sum, num_processes=2, device="cpu")))
"""


def test_a_host_whose_name_cannot_be_looked_up_is_no_news() -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "--uts", "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs the right to give the host another name")
    renamed = 'hostname nosuchhost.invalid && exec "$0" -c "$1"'

    done = subprocess.run(
        [unshare, "--uts", "sh", "-c", renamed, sys.executable, LAUNCHES_ON_A_NAMELESS_HOST],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip

    told = "accel_nb: gloo_sum: 2 ranks on cpu (asked: 2), gloo, "
    lines = done.stdout.splitlines()
    assert [line.partition("gloo, ")[0] + "gloo, " if line.startswith("accel") else line for line in lines] == [
        told, "[('gloo', 2, 3.0), ('gloo', 2, 3.0)]",
    ] * 3, done.stderr  # fmt: skip


def test_an_init_that_names_its_own_store_is_left_alone(tmp_path: Path) -> None:
    def own_store(path: str) -> float:
        import torch
        from torch import distributed

        rank = int(os.environ["RANK"])
        distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
        value = torch.tensor([rank + 1.0])
        distributed.all_reduce(value)
        distributed.destroy_process_group()
        distributed.init_process_group("gloo")
        distributed.all_reduce(value)
        return value.item()

    assert on_ranks(own_store, str(tmp_path / "store")) == [6.0, 6.0]
