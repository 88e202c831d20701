"""Ranks whose process group is ready before their launch comes: who takes them, and that nothing else differs.

Launches that do not fit to them are tested with the faults.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_nb.errors import InvalidArgument
from accel_nb.launch.run import plan_for
from accel_nb.launch.servers.standby import STANDBY
from accel_nb.protocol import environment
from accel_nb.protocol.plan import LaunchRequest
from tests.launch import standby_code as code
from tests.launch.census import expect_gone
from tests.launch.launching import launch, on_ranks
from tests.launch.standby_sets import ADOPTED, FRESH, GONE_S, READY_S, ready_set, settle_servers, wait_for_set

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("standby_on"), pytest.mark.timeout(300)]

TWO = LaunchRequest(num_processes=2, device="cpu")


def test_a_launch_is_taken_by_ranks_in_standby_and_each_set_serves_once() -> None:
    settle_servers()
    assert on_ranks(code.opens_group) == FRESH
    for _ in range(2):
        waiting = ready_set()

        values = on_ranks(code.pid_and_group)

        assert [value for _, value in values] == ADOPTED
        assert sorted(pid for pid, _ in values) == sorted(pid for pid, _ in waiting)
        expect_gone(waiting, GONE_S)


def test_a_function_finds_and_computes_the_same_fresh_and_from_standby() -> None:
    # The first launches teach the server what the function imports.
    for _ in range(2):
        on_ranks(code.everything)
    settle_servers()
    STANDBY.let_go()
    fresh = launch(code.everything)
    assert STANDBY.is_ready(READY_S)

    standby = launch(code.everything)

    assert [seen["hidden"] for seen in (*fresh.values, *standby.values)] == [False, False, True, True]
    assert list(map(code.without_ids, standby.values)) == list(map(code.without_ids, fresh.values))
    assert [standby.run.logs(rank) for rank in range(2)] == [fresh.run.logs(rank) for rank in range(2)] == ["", ""]


@pytest.mark.faults
def test_launches_that_follow_at_once_get_the_same_on_ranks_that_are_ready_or_fresh() -> None:
    for _ in range(4):
        values = on_ranks(code.opens_group)

        assert values in (FRESH, ADOPTED)


def test_r02_init_destroy_init_again_begins_with_the_adopted_group() -> None:
    wait_for_set()

    assert on_ranks(code.again_and_again) == [(True, [0.0, 2.0, 4.0, 6.0])] * 2


@pytest.mark.faults
@pytest.mark.parametrize("way", ["timeout", "options of one rank", "own store", "own interface", "several backends"])
def test_another_way_to_open_a_group_works_as_ever(way: str, tmp_path: Path) -> None:
    wait_for_set()

    assert on_ranks(code.opens_otherwise, way, str(tmp_path)) == [(True, way == "timeout", 2.0)] * 2


def test_a_function_that_opens_no_group_ends_as_ever() -> None:
    wait_for_set()

    assert on_ranks(code.has_hidden) == [True, True]


@pytest.mark.faults
def test_what_the_kernel_changes_in_its_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = wait_for_set()
    monkeypatch.setenv("NCCL_DEBUG", "WARN")

    assert on_ranks(code.opens_group) == FRESH
    expect_gone(waiting, GONE_S)


def test_what_a_launch_brings_of_its_own_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_set()
    monkeypatch.chdir(tmp_path)

    assert on_ranks(code.where, mixed_precision="bf16") == [(True, str(tmp_path), "bf16")] * 2


def test_a_module_that_changes_while_they_wait_is_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "changing_module.py").write_text("VALUE = 'old'\n")
    settle_servers()
    before = on_ranks(code.value_of_module, "changing_module")
    ready_set()
    (tmp_path / "changing_module.py").write_text("VALUE = 'new one'\n")

    assert before == [(False, "old")] * 2
    assert on_ranks(code.value_of_module, "changing_module") == [(True, "new one")] * 2


@pytest.mark.faults
def test_a_launch_of_other_ranks_is_fresh() -> None:
    waiting = wait_for_set()

    assert on_ranks(code.has_hidden, num_processes=3) == [False] * 3
    expect_gone(waiting, GONE_S)


@pytest.mark.faults
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

    assert not STANDBY.is_ready(READY_S)
    assert not any("stand" in reason for reason in plan_for(TWO).reasons)


def test_cpus_which_somebody_else_always_uses_have_none_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.STANDBY, "auto")

    on_ranks(code.opens_group)

    assert not STANDBY.is_ready(READY_S)
    assert (
        "No ranks stand by for the next launch: somebody else always uses the CPUs, so that it takes "
        "ACCEL_NB_STANDBY=on." in plan_for(TWO).reasons
    )


def test_they_follow_runs_that_open_a_group() -> None:
    on_ranks(code.opens_none)
    after_none = STANDBY.is_ready(READY_S)
    on_ranks(code.opens_group)

    assert not after_none
    assert STANDBY.is_ready(READY_S)


def test_let_go_ends_them_at_once() -> None:
    waiting = wait_for_set()

    assert STANDBY.let_go() == "2 ranks on cpu (gloo)"

    expect_gone(waiting, GONE_S)
    assert STANDBY.let_go() == ""


@pytest.mark.faults
def test_they_are_let_go_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STANDBY, "idle_s", 8.0)
    waiting = wait_for_set()

    expect_gone(waiting, GONE_S)

    assert "no launch came within 8 s" in "".join(plan_for(TWO).reasons)
    assert on_ranks(code.opens_group) == FRESH


def test_the_plan_tells_what_waits_and_how_to_prevent_it(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_set()

    told = plan_for(TWO).reasons
    monkeypatch.setenv(environment.STANDBY, "off")
    told_off = plan_for(TWO).reasons

    assert "In standby, for a launch like the last one: 2 ranks on cpu (gloo); %accel_stop ends them." in told
    assert any("wait for it 300 s; ACCEL_NB_STANDBY=off prevents that." in reason for reason in told)
    assert not any("stand" in reason for reason in told_off)
