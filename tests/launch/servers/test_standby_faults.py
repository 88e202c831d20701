"""No launch is worse off for ranks in standby: whatever became of them, it starts; what fails is told as ever."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import psutil
import pytest

from accel_nb.launch.servers.standby import STANDBY
from accel_nb.launch.servers.warm_client import POOL
from accel_nb.protocol.plan import Timeouts
from tests.launch import standby_code as code
from tests.launch.census import ProcessId, expect_gone
from tests.launch.launching import launch, on_ranks
from tests.launch.standby_sets import ADOPTED, ENDINGS, FRESH, GONE_S, READY_S, ended, in_random_order, wait_for_set

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("standby_on"), pytest.mark.timeout(300)]


def victim_of(waiting: list[ProcessId], which: str) -> psutil.Process:
    rank = psutil.Process(waiting[1][0])
    return rank if which == "rank" else psutil.Process(rank.ppid())


@pytest.mark.parametrize("which", ["rank", "keeper"])
def test_a_launch_starts_fresh_when_they_were_killed(which: str) -> None:
    waiting = wait_for_set()

    victim_of(waiting, which).kill()
    launched = launch(code.opens_group)

    assert launched.values == FRESH
    assert [launched.run.logs(rank) for rank in range(2)] == ["", ""]
    expect_gone(waiting, GONE_S)


@pytest.mark.parametrize("which", ["rank", "keeper"])
def test_a_launch_starts_fresh_when_one_dies_while_it_is_asked(which: str) -> None:
    waiting = wait_for_set()
    victim = victim_of(waiting, which)
    # It does not answer while it is stopped, and dies when the run waits for that.
    victim.suspend()
    timer = threading.Timer(1.0, victim.kill)

    timer.start()
    values = on_ranks(code.opens_group)
    timer.join()

    assert values == FRESH
    expect_gone(waiting, GONE_S)


@pytest.mark.parametrize("which", ["rank", "keeper"])
def test_a_launch_starts_fresh_when_they_hang_and_nothing_begins_when_they_go_on(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(STANDBY, "takes_s", 0.2)
    waiting = wait_for_set()
    victim = victim_of(waiting, which)
    victim.suspend()

    values = on_ranks(code.counts_itself, str(tmp_path))
    victim.resume()

    assert values == [False, False]
    expect_gone(waiting, GONE_S)
    assert len(list(tmp_path.iterdir())) == 2


def test_they_end_with_their_server() -> None:
    waiting = wait_for_set()

    POOL.stop_all(timeout_s=60.0)

    expect_gone(waiting, GONE_S)
    assert on_ranks(code.opens_group) == FRESH


def test_they_end_with_a_killed_server() -> None:
    waiting = wait_for_set()

    for pid in POOL.pids():
        os.kill(pid, signal.SIGKILL)
    values = on_ranks(code.opens_group)

    # They may have taken the run before they were killed with it: then they do not need it any more.
    assert values in (FRESH, ADOPTED)
    expect_gone(waiting, GONE_S)


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


@pytest.mark.slow
@pytest.mark.parametrize("pause", ["ready", "at once"])
def test_launches_end_as_they_should_in_any_order(pause: str) -> None:
    order = in_random_order(5)

    found = []
    for ending in order:
        found.append((ending, ended(ending)))
        if pause == "ready":
            assert STANDBY.is_ready(READY_S)

    assert found == [(ending, ENDINGS[ending]) for ending in order]
