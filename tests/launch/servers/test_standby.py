"""Ranks whose process group is ready before their launch comes: who takes them, and that nothing else differs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from accel_nb.errors import InvalidArgument
from accel_nb.launch.run import plan_for
from accel_nb.launch.servers.standby import IDLE_S, STANDBY
from accel_nb.launch.servers.warm_client import POOL
from accel_nb.protocol import environment
from accel_nb.protocol.plan import LaunchRequest, Timeouts
from tests.launch import standby_code as code
from tests.launch.census import ProcessId, children, expect_gone, id_of
from tests.launch.launching import launch, on_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each launches several times

READY_S = 60.0
GONE_S = 40.0
TAKES_S = 60.0
"""On a busy machine a set may take its time; what is tested is whether it is taken."""


@pytest.fixture(autouse=True)
def _on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Asked for, so that other tests' use of memory does not matter; each test begins and ends without a set."""
    STANDBY.let_go()
    monkeypatch.setenv(environment.STANDBY, "on")
    monkeypatch.setattr(STANDBY, "idle_s", IDLE_S)
    monkeypatch.setattr(STANDBY, "takes_s", TAKES_S)
    yield
    STANDBY.let_go()


FRESH = [(False, False, False, 3.0)] * 2
ADOPTED = [(True, False, True, 3.0)] * 2


def wait_for_set() -> list[ProcessId]:
    """Have one made, as a run with a group does, and give its ranks once they are ready."""
    on_ranks(code.opens_group)
    return ready_set()


def ready_set() -> list[ProcessId]:
    """The ranks in standby, once they are ready."""
    keeper = STANDBY.keeper(READY_S)
    assert keeper
    return [id_of(rank.pid) for rank in children(psutil.Process(keeper))]


def from_standby(function: Callable[..., Any], *args: object) -> list[Any]:
    """What `function` returns on ranks that were in standby for it. Earlier launches teach a server what it imports."""
    for _ in range(2):
        on_ranks(function, *args)
        assert STANDBY.is_ready(READY_S)
    return on_ranks(function, *args)


def test_a_launch_is_taken_by_ranks_in_standby_and_each_set_serves_once() -> None:
    assert on_ranks(code.opens_group) == FRESH
    for _ in range(3):
        waiting = ready_set()

        values = on_ranks(code.pid_and_group)

        assert [value for _, value in values] == ADOPTED
        assert sorted(pid for pid, _ in values) == sorted(pid for pid, _ in waiting)
        expect_gone(waiting, GONE_S)


def test_a_launch_that_comes_before_the_set_is_ready_gets_the_same() -> None:
    for _ in range(6):
        values = on_ranks(code.opens_group)

        assert [value[3] for value in values] == [3.0, 3.0]


def test_a_function_finds_and_computes_the_same_fresh_and_from_standby() -> None:
    # The first launches teach the server what the function imports.
    for _ in range(2):
        on_ranks(code.everything)
    STANDBY.let_go()
    fresh = on_ranks(code.everything)
    assert STANDBY.is_ready(READY_S)

    standby = on_ranks(code.everything)

    assert [seen["hidden"] for seen in (*fresh, *standby)] == [False, False, True, True]
    assert list(map(code.without_ids, standby)) == list(map(code.without_ids, fresh))


@pytest.mark.parametrize("function", [code.our_states, code.accelerates_states])
def test_the_group_is_adopted_by_states(function: Callable[[], object]) -> None:
    assert from_standby(function) == [(True, [0, 1])] * 2


def test_the_group_is_adopted_by_transformers_trainer(tmp_path: Path) -> None:
    pytest.importorskip("transformers")

    assert from_standby(code.trainer, str(tmp_path)) == [(True, 2)] * 2


def test_the_group_is_adopted_by_lightning() -> None:
    pytest.importorskip("lightning")

    assert from_standby(code.lightning_fabric) == [(True, [0, 1])] * 2


def test_r02_init_destroy_init_again_begins_with_the_adopted_group() -> None:
    assert from_standby(code.again_and_again) == [(True, [0.0, 2.0, 4.0, 6.0])] * 2


@pytest.mark.parametrize("way", ["timeout", "options of one rank", "own store", "own interface", "several backends"])
def test_another_way_to_open_a_group_works_as_ever(way: str, tmp_path: Path) -> None:
    wait_for_set()

    assert on_ranks(code.opens_otherwise, way, str(tmp_path)) == [(True, way == "timeout", 2.0)] * 2


def test_a_function_that_opens_no_group_ends_as_ever() -> None:
    wait_for_set()

    assert on_ranks(code.has_hidden) == [True, True]


def test_r03_a_rank_that_never_comes_is_named_as_ever() -> None:
    timeouts = Timeouts(rendezvous_s=1.5)
    fresh = launch(code.half_of_them_open, timeouts=timeouts).failure.failures[0]
    wait_for_set()

    standby = launch(code.half_of_them_open, timeouts=timeouts).failure.failures[0]

    assert (standby.kind, standby.type_name) == (fresh.kind, fresh.type_name)


@pytest.mark.parametrize("ending", ["raise", "exit", "kill"])
def test_a_failure_is_told_the_same(ending: str) -> None:
    fresh = launch(code.fails, ending).failure.failures[0]
    wait_for_set()

    standby = launch(code.fails, ending).failure.failures[0]

    assert (standby.rank, standby.kind, standby.type_name) == (fresh.rank, fresh.kind, fresh.type_name) != (0, "", "")


def test_what_the_kernel_changes_in_its_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_set()
    monkeypatch.setenv("NCCL_DEBUG", "WARN")

    assert on_ranks(code.opens_group) == FRESH


def test_what_a_launch_brings_of_its_own_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_set()
    monkeypatch.chdir(tmp_path)

    assert on_ranks(code.where, mixed_precision="bf16") == [(True, str(tmp_path), "bf16")] * 2


def test_a_launch_of_other_ranks_is_fresh() -> None:
    waiting = wait_for_set()

    assert on_ranks(code.has_hidden, num_processes=3) == [False] * 3
    expect_gone(waiting, GONE_S)


@pytest.mark.parametrize("off", ["off", "0", "no"])
def test_off_means_that_none_get_ready_and_none_stay(off: str) -> None:
    waiting = wait_for_set()

    assert on_ranks(code.opens_group, env={environment.STANDBY: off}) == FRESH

    assert not STANDBY.is_ready()
    expect_gone(waiting, GONE_S)


def test_a_wish_that_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.STANDBY, "sometimes")

    with pytest.raises(InvalidArgument, match="ACCEL_NB_STANDBY is 'sometimes'; give 'auto', 'on' or 'off'"):
        on_ranks(code.has_hidden)


def test_there_are_none_unless_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.STANDBY)

    on_ranks(code.opens_group)

    assert STANDBY._set is None
    assert not any("stand" in reason for reason in plan_for(LaunchRequest(num_processes=2, device="cpu")).reasons)


def test_on_request_they_follow_runs_that_open_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.STANDBY, "auto")

    on_ranks(code.opens_none)
    asked_after_none = STANDBY._set is not None
    on_ranks(code.opens_group)

    assert not asked_after_none
    # Whether there is room for them is the machine's business.
    assert STANDBY._set is not None


def test_they_are_let_go_after_a_while() -> None:
    STANDBY.idle_s = 8.0
    waiting = wait_for_set()

    expect_gone(waiting, GONE_S)

    assert "no launch came within 8 s" in "".join(plan_for(LaunchRequest(num_processes=2, device="cpu")).reasons)
    assert on_ranks(code.opens_group) == FRESH


def test_let_go_ends_them_at_once() -> None:
    waiting = wait_for_set()

    assert STANDBY.let_go() == "2 ranks on cpu (gloo)"

    expect_gone(waiting, GONE_S)
    assert STANDBY.let_go() == ""


def test_they_end_with_their_server() -> None:
    waiting = wait_for_set()

    POOL.stop_all(timeout_s=60.0)

    expect_gone(waiting, GONE_S)
    assert on_ranks(code.opens_group) == FRESH


@pytest.mark.parametrize("victim", ["rank", "keeper"])
def test_a_launch_works_when_they_were_killed(victim: str) -> None:
    waiting = wait_for_set()
    rank = psutil.Process(waiting[0][0])

    os.kill(rank.pid if victim == "rank" else rank.ppid(), signal.SIGKILL)

    values = on_ranks(code.opens_group)
    expect_gone(waiting, GONE_S)
    assert [value[3] for value in values] == [3.0, 3.0]


def test_a_launch_works_when_they_hang_and_are_killed_while_they_are_handed_over() -> None:
    keeper = psutil.Process(wait_for_set()[0][0]).parent()
    assert keeper is not None
    # It does not take the run that it is given ...
    keeper.suspend()

    # ... and dies with the run's channel unread.
    timer = threading.Timer(1.0, keeper.kill)
    timer.start()
    values = on_ranks(code.opens_group)
    timer.join()

    assert values == FRESH


def test_the_plan_tells_what_waits_and_how_to_prevent_it(monkeypatch: pytest.MonkeyPatch) -> None:
    request = LaunchRequest(num_processes=2, device="cpu")
    wait_for_set()

    told = plan_for(request).reasons
    monkeypatch.setenv(environment.STANDBY, "off")
    told_off = plan_for(request).reasons

    assert "In standby, for a launch like the last one: 2 ranks on cpu (gloo); %accel_stop ends them." in told
    assert any("wait for it 300 s; ACCEL_NB_STANDBY=off prevents that." in reason for reason in told)
    assert not any("stand" in reason for reason in told_off)
