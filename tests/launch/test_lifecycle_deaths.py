"""A process of the launcher that is killed from outside: server, keeper, rank, busy or waiting."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from accel_nb import RunFailed
from accel_nb.launch.processes import is_readable
from accel_nb.launch.run import Run
from accel_nb.launch.run_files import server_log
from accel_nb.launch.servers.warm_client import POOL

from .census import ProcessId, children, expect_gone, id_of, until_up, wait_until, written_pids
from .launching import on_ranks, start
from .lifecycle_code import goes_on_when, own_pid, sleeps_with_children

pytestmark = pytest.mark.faults


def with_children(tmp_path: Path) -> tuple[Run, set[ProcessId]]:
    """A run under way and all its processes but the keeper: two ranks, each with a child and a daemon."""
    run = until_up(start(sleeps_with_children, str(tmp_path)))
    started = {id_of(pid) for pid in written_pids(tmp_path)}
    assert len(started) == 6
    return run, started


def keeper_of(run: Run) -> int:
    return psutil.Process(run.state.ranks[0].pid).ppid()


def servers() -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in POOL.pids()]


def test_a_run_survives_the_death_of_its_server(tmp_path: Path) -> None:
    """The keeper holds all that a run needs, its rendezvous included."""
    go = tmp_path / "go"
    run = until_up(start(goes_on_when, str(go)))
    kill_all(servers())

    go.touch()

    assert list(run.result(60)) == ["1.0", "1.0"]
    assert run.logs(0) == "up\non\n"
    assert len(on_ranks(own_pid)) == 2, "the next launch starts another server"


def test_what_a_run_leaves_behind_is_ended_without_its_server(tmp_path: Path) -> None:
    run, started = with_children(tmp_path)
    kill_all(servers())

    run.stop()

    assert run.wait(10)
    assert run.status == "stopped"
    expect_gone(started)


def test_a_killed_keeper_fails_the_run_and_leaves_nothing(tmp_path: Path) -> None:
    run, started = with_children(tmp_path)
    keeper = id_of(keeper_of(run))

    os.kill(keeper[0], signal.SIGKILL)

    assert run.wait(10)
    assert run.status == "failed"
    expect_gone({*started, keeper})
    with pytest.raises(RunFailed, match=rf"its keeper \(pid {keeper[0]}\), .* was killed from outside"):
        run.result()
    assert len(on_ranks(own_pid)) == 2


def test_a_killed_keeper_is_told_when_there_is_no_place_for_logs_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, started = with_children(tmp_path)
    log = server_log()
    (tmp_path / "file").touch()
    monkeypatch.setenv("ACCEL_NB_LOG_DIR", str(tmp_path / "file" / "below"))

    os.kill(keeper_of(run), signal.SIGKILL)

    assert run.wait(10)
    with pytest.raises(RunFailed, match=f"was killed from outside or crashed; in that case {log} says why"):
        run.result()
    expect_gone(started)


@pytest.mark.parametrize("stops", [(0.0,), (0.0, 600.0)], ids=["once", "and_again_with_more_patience"])
def test_a_stopped_keeper_is_killed_when_the_run_is_stopped(stops: tuple[float, ...], tmp_path: Path) -> None:
    """A process that is stuck, as in a dead network file system, must not hold the cell."""
    run, started = with_children(tmp_path)
    keeper = id_of(keeper_of(run))
    os.kill(keeper[0], signal.SIGSTOP)

    for grace_s in stops:
        run.stop(grace_s)

    assert run.wait(20)
    assert run.status == "stopped"
    expect_gone({*started, keeper})


def test_a_killed_rank_takes_all_of_the_run_along(tmp_path: Path) -> None:
    run, started = with_children(tmp_path)

    os.kill(run.state.ranks[1].pid, signal.SIGKILL)

    assert run.wait(10)
    assert run.status == "failed"
    expect_gone(started)
    with pytest.raises(RunFailed, match=r"rank 1 of 2 \(cpu\) died: killed by SIGKILL \(signal 9\)"):
        run.result()


def test_a_stopped_rank_is_ended_by_a_stop(tmp_path: Path) -> None:
    run, started = with_children(tmp_path)
    os.kill(run.state.ranks[1].pid, signal.SIGSTOP)

    run.stop(0.2)

    assert run.wait(10)
    expect_gone(started)


def idle_ranks() -> list[psutil.Process]:
    return [rank for keeper in idle_keepers() for rank in children(keeper)]


def idle_keepers() -> list[psutil.Process]:
    return [keeper for server in servers() for keeper in children(server) if children(keeper)]


def kill_all(processes: list[psutil.Process]) -> None:
    """And wait until they are dead, which on a busy machine takes a while, but not until that is noticed."""
    for victim in processes:
        with contextlib.suppress(ProcessLookupError):
            # A pidfd says when the last thread is gone. The first one may be a zombie long before.
            fd = os.pidfd_open(victim.pid)
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            assert is_readable(fd, 10), f"{victim} does not die"
            os.close(fd)


@pytest.mark.parametrize("waiting", [servers, idle_keepers, idle_ranks])
def test_a_launch_after_the_death_of_what_waits_for_it(waiting: Callable[[], list[psutil.Process]]) -> None:
    """Killed an instant before, so that nobody has noticed it yet."""
    on_ranks(own_pid)
    for _ in range(2 if waiting is servers else 4):
        wait_until(lambda: len(waiting()) > 0, 60, lambda: "nothing forked ahead")

        kill_all(waiting())

        assert len(on_ranks(own_pid)) == 2


def test_a_launch_while_what_waits_for_it_dies(tmp_path: Path) -> None:
    on_ranks(own_pid)
    for _ in range(4):
        wait_until(lambda: len(idle_ranks()) > 0, 60, lambda: "nothing forked ahead")
        victims = idle_ranks()
        run = start(sleeps_with_children, str(tmp_path))

        kill_all(victims)

        run.stop(0.0)
        assert run.wait(10)
        assert run.status in ("stopped", "failed"), (run.log_dir / "run.jsonl").read_text()
