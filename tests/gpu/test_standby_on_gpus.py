"""Ranks in standby on two real GPUs: adopted by every framework, equal to fresh ones, and gone when memory is needed.

Skipped where there are fewer. The test process plays the kernel and does not touch CUDA.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pynvml
import pytest

from accel_nb.launch.servers.standby import STANDBY
from accel_nb.protocol import environment
from tests.launch import standby_code as code
from tests.launch.launching import launch, on_ranks
from tests.launch.standby_sets import ENDINGS, TAKES_S, ended, in_random_order, settle_servers


def used_bytes() -> list[int]:
    """By device, whoever uses it; [] without devices."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles]
    finally:
        pynvml.nvmlShutdown()


NUM_GPUS = 2
READY_S = 60.0
BACK_S = 2.0
SLACK_BYTES = 64 << 20
COST_BYTES = 2 << 30
pytestmark = [
    pytest.mark.skipif(len(used_bytes()) < NUM_GPUS, reason="needs two NVIDIA GPUs"),
    pytest.mark.timeout(300),
]
CUDA: dict[str, Any] = {"device": "cuda", "num_processes": NUM_GPUS}
FRESH = [(False, False, False, 3.0)] * NUM_GPUS
ADOPTED = [(True, False, True, 3.0)] * NUM_GPUS


@pytest.fixture(autouse=True)
def before(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Bytes in use by device when the test begins, without a set; there is none when it ends."""
    STANDBY.let_go()
    _until_stable()
    # As by default, whatever the tests were started with.
    monkeypatch.setenv(environment.STANDBY, "auto")
    monkeypatch.setattr(STANDBY, "takes_s", TAKES_S)
    yield used_bytes()
    STANDBY.let_go()


def _until_stable() -> None:
    """Until devices use no less than a moment before: somebody's memory may be on its way back."""
    last = used_bytes()
    for _ in range(40):
        time.sleep(0.25)
        last, was = used_bytes(), last
        if last >= was:
            return


def more_than(before: list[int]) -> int:
    """Of all devices the most that is in use above `before`."""
    return max(now - then for now, then in zip(used_bytes(), before, strict=True))


def back_after_s(before: list[int], allowed_bytes: int = SLACK_BYTES) -> float:
    """Seconds until no device uses more than that above `before`; fails after 10."""
    started = time.monotonic()
    while (more := more_than(before)) > allowed_bytes:
        assert time.monotonic() - started < 10, f"{more} bytes more than before"
        time.sleep(0.02)
    return time.monotonic() - started


def wait_for_set() -> None:
    settle_servers()
    on_ranks(code.opens_group, "nccl", **CUDA)
    assert STANDBY.is_ready(READY_S), STANDBY._last_over


def from_standby(function: Callable[..., Any], *args: object) -> list[Any]:
    """What `function` returns on ranks that were in standby for it. Earlier launches teach a server what it imports."""
    for _ in range(2):
        settle_servers()
        on_ranks(function, *args, **CUDA)
        assert STANDBY.is_ready(READY_S), STANDBY._last_over
    return on_ranks(function, *args, **CUDA)


def test_sets_are_adopted_one_after_another(before: list[int]) -> None:
    assert on_ranks(code.opens_group, "nccl", **CUDA) == FRESH
    for _ in range(3):
        assert STANDBY.is_ready(READY_S), STANDBY._last_over
        assert more_than(before) < COST_BYTES

        assert on_ranks(code.opens_group, "nccl", **CUDA) == ADOPTED


def test_a_function_finds_and_computes_the_same_fresh_and_from_standby() -> None:
    for _ in range(3):  # teaches the server what the function imports
        on_ranks(code.everything, "nccl", **CUDA)
    settle_servers()
    STANDBY.let_go()
    fresh = on_ranks(code.everything, "nccl", **CUDA)
    STANDBY.let_go()
    again = on_ranks(code.everything, "nccl", **CUDA)
    assert STANDBY.is_ready(READY_S), STANDBY._last_over

    standby = on_ranks(code.everything, "nccl", **CUDA)

    assert [seen["hidden"] for seen in (*fresh, *again, *standby)] == [*[False] * 4, True, True]
    # What differs between two fresh launches would say nothing.
    for one, other in zip(fresh, again, strict=True):
        assert code.without_ids(other) == code.without_ids(one)
    for one, other in zip(fresh, standby, strict=True):
        assert code.without_ids(other) == code.without_ids(one)


@pytest.mark.parametrize("function", [code.our_states, code.accelerates_states])
def test_the_group_is_adopted_by_states(function: Callable[[], object]) -> None:
    assert from_standby(function) == [(True, [0, 1])] * NUM_GPUS


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_the_group_is_adopted_by_transformers_trainer(tmp_path: Path) -> None:
    assert from_standby(code.trainer, str(tmp_path)) == [(True, NUM_GPUS)] * NUM_GPUS


@pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed")
def test_the_group_is_adopted_by_lightning() -> None:
    assert from_standby(code.lightning_fabric) == [(True, [0, 1])] * NUM_GPUS


def test_r02_init_destroy_init_again_begins_with_the_adopted_group() -> None:
    assert from_standby(code.again_and_again, "nccl") == [(True, [0.0, 2.0, 4.0, 6.0])] * NUM_GPUS


def test_a_gloo_group_is_opened_beside_a_waiting_one_of_nccl() -> None:
    wait_for_set()

    values = on_ranks(code.opens_group, **CUDA)

    assert values == [(True, False, False, 3.0)] * NUM_GPUS


def test_a_function_that_opens_no_group_ends_as_ever() -> None:
    wait_for_set()

    assert on_ranks(code.has_hidden, **CUDA) == [True] * NUM_GPUS


@pytest.mark.parametrize("ending", ["raise", "exit", "kill"])
def test_memory_is_back_after_failures_but_for_the_next_set(ending: str, before: list[int]) -> None:
    wait_for_set()

    launch(code.fails, ending, **CUDA)

    assert back_after_s(before, COST_BYTES) < BACK_S
    STANDBY.let_go()
    assert back_after_s(before) < BACK_S


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["off", "on"])
def test_memory_is_back_after_each_of_many_launches(
    mode: str, before: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.STANDBY, mode)
    allowed_bytes = SLACK_BYTES if mode == "off" else COST_BYTES
    wanted = {**ENDINGS, "memory": "failed, torch.OutOfMemoryError"}

    for ending in in_random_order(5):
        assert (ending, ended(ending, "nccl", **CUDA)) == (ending, wanted[ending])
        assert back_after_s(before, allowed_bytes) < BACK_S

    STANDBY.let_go()
    assert back_after_s(before) < BACK_S


def test_memory_is_back_after_the_idle_limit(before: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STANDBY, "idle_s", 3.0)
    wait_for_set()
    ready_s = time.monotonic()

    assert STANDBY.is_ready()
    took_s = back_after_s(before) + time.monotonic() - ready_s

    assert took_s < 2 * (STANDBY.idle_s + BACK_S)
    assert not STANDBY.is_ready()
    assert STANDBY._last_over == "no launch came within 3 s"


NEEDS = """
import sys, time, torch
held = torch.ones(1 << 28, device="cuda:1")
torch.cuda.synchronize("cuda:1")  # no more than that: without a device it would open the first one, too
print("up", flush=True)
sys.stdin.readline()
"""


def test_memory_is_back_when_another_process_needs_it(before: list[int]) -> None:
    wait_for_set()

    with subprocess.Popen(
        [sys.executable, "-c", NEEDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "up\n"
        up_s = time.monotonic()
        while STANDBY.is_ready() and time.monotonic() - up_s < 10:
            time.sleep(0.02)
        took_s = time.monotonic() - up_s
        # The other's device is cuda:1, so the first one shows what the set has given back.
        while used_bytes()[0] > before[0] + SLACK_BYTES and time.monotonic() - up_s < 10:
            time.sleep(0.02)
        back_s = time.monotonic() - up_s
        over = STANDBY._last_over
        used_meanwhile = on_ranks(code.opens_group, "nccl", **CUDA)
        prepared = STANDBY.is_ready(READY_S)
        other.communicate("\n")

    assert took_s < BACK_S
    assert back_s < BACK_S
    assert "somebody else has begun to use cuda:" in over
    assert used_meanwhile == FRESH
    assert not prepared
    assert "is in use" in STANDBY._last_over


def test_off_means_that_nothing_stays(before: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_set()
    monkeypatch.setenv(environment.STANDBY, "off")

    assert on_ranks(code.opens_group, "nccl", **CUDA) == FRESH
    assert back_after_s(before) < BACK_S
