"""``backend="mpi"`` on this machine, by Open MPI and by MPICH: results, training, errors, ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from accel_nb import RunFailed, RunStopped
from accel_nb.launch.run import Run

from ...census import ProcessId, expect_gone, id_of, until_up
from ...launching import launch, lines_of, on_ranks, start
from .mpi_code import aborts_on_one, mpi_rank_and_size, opens_mpi_group, raises_on_one, sleeps, trained, who

pytestmark = pytest.mark.engines


def of_run(run: Run) -> Iterator[psutil.Process]:
    """Its ranks, and what is between them and this process: keepers, guards, agents, mpirun."""
    own = psutil.Process()
    for rank in run.state.ranks.values():
        process: psutil.Process | None = psutil.Process(rank.pid)
        while process is not None and process != own:
            yield process
            process = process.parent()


def under_way() -> tuple[Run, set[ProcessId]]:
    run = until_up(start(sleeps, backend="mpi"))
    return run, {id_of(process.pid) for process in of_run(run)}


def failure_of(run: Run) -> RunFailed:
    assert run.wait(100)
    with pytest.raises(RunFailed) as raised:
        run.result()
    return raised.value


def test_four_ranks_train_as_local_ones_do(family: str) -> None:  # noqa: ARG001  which MPI
    """Also that every line is whole, and has its rank's prefix."""
    launched = launch(trained, backend="mpi", num_processes=4)

    assert launched.values == on_ranks(trained, num_processes=4)
    for rank in range(4):
        said = f"rank {rank} of 4 has trained"
        assert said in lines_of(launched, rank)
        assert said in launched.run.logs(rank).splitlines()


def test_n03_everything_follows_from_the_same_arguments(family: str) -> None:  # noqa: ARG001  which MPI
    expected = {"WORLD_SIZE": "3", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}

    told = on_ranks(who, backend="mpi", num_processes=3)

    assert told == [
        {**expected, "RANK": str(rank), "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"} for rank in range(3)
    ]


def test_an_error_of_a_rank_is_the_cause(family: str) -> None:  # noqa: ARG001  which MPI
    failure = launch(raises_on_one, backend="mpi").failure

    assert (failure.rank, failure.exc_type) == (1, "ValueError")
    assert "no such colour" in failure.traceback_text


@pytest.mark.faults
def test_n04_a_stop_goes_through_mpirun_and_leaves_nothing(family: str) -> None:  # noqa: ARG001  which MPI
    run, started = under_way()

    run.stop()

    assert run.wait(100)
    with pytest.raises(RunStopped):
        run.result()
    expect_gone(started)


@pytest.mark.faults
def test_a_killed_rank_is_the_cause(family: str) -> None:  # noqa: ARG001  which MPI
    run, started = under_way()

    os.kill(run.state.ranks[1].pid, signal.SIGKILL)

    failure = failure_of(run)
    assert (failure.rank, failure.cause.signal) == (1, "SIGKILL")
    expect_gone(started)


@pytest.mark.faults
def test_a_killed_agent_is_told_with_what_mpirun_says(family: str) -> None:
    """MPICH kills all when one is killed, and reports the first: which one it was is lost."""
    run, started = under_way()
    keeper = psutil.Process(run.state.ranks[1].pid).parent()
    assert keeper is not None
    guard = keeper.parent()
    assert guard is not None

    os.kill(guard.ppid(), signal.SIGKILL)

    failure = failure_of(run)
    assert sorted(one.rank for one in failure.failures) == [0, 1]
    assert failure.rank == 1 or family == "mpich"
    assert f"what held rank {failure.rank} on " in failure.cause.message
    assert "mpirun" in failure.cause.message
    expect_gone(started)


@pytest.mark.faults
def test_a_killed_mpirun_ends_the_run(family: str) -> None:  # noqa: ARG001  which MPI
    run, started = under_way()
    own = psutil.Process()
    (mpirun,) = {process.pid for process in of_run(run) if process.parent() == own}

    os.kill(mpirun, signal.SIGKILL)

    assert "mpirun ended with SIGKILL" in failure_of(run).cause.message
    expect_gone(started, 30)


@pytest.mark.faults
@pytest.mark.usefixtures("open_mpi")
def test_n04_an_abort_in_a_rank_ends_the_run_and_not_the_kernel() -> None:
    run = start(aborts_on_one, backend="mpi")

    failure = failure_of(run)
    assert (failure.rank, failure.cause.exit_code) == (1, 5)
    # Its text about the abort is at times lost by Open MPI 4.1 itself (orte/util/show_help.c, which says that it was).
    assert (run.log_dir / "mpirun.log").read_text()
    assert on_ranks(who, backend="mpi")[0]["RANK"] == "0", "the next launch"


@pytest.mark.usefixtures("open_mpi")
def test_n04_ranks_may_use_mpi_themselves() -> None:
    assert on_ranks(mpi_rank_and_size, backend="mpi") == [(0, 2), (1, 2)]


@pytest.mark.usefixtures("open_mpi")
def test_torchs_own_mpi_is_torchs_to_refuse() -> None:
    """What pip installs has none; gloo, the default, is not used in its place."""
    with pytest.raises(RunFailed, match="MPI built in"):
        on_ranks(opens_mpi_group, backend="mpi")
