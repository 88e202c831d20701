"""What every engine does, whatever its ranks run on."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, ClassVar

import pytest

from accel_nb import RunFailed, RunStopped
from accel_nb.launch.recording import recorded_events
from accel_nb.launch.run import Run
from accel_nb.protocol.events import RunEnded, RunStarted

from ..census import expect_gone, id_of, until_up
from ..launching import Launched, launch, start

OVER_S = 100
"""Only so that a hang fails its own test."""


def rank_and_size(factor: int) -> tuple[int, int]:
    print(f"rank {os.environ['RANK']} computes")
    return int(os.environ["RANK"]) * factor, int(os.environ["WORLD_SIZE"])


def fails_on_the_last() -> None:
    if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        raise ValueError("no such colour")
    time.sleep(1000)


def waits_for_the_last() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() != dist.get_world_size() - 1:
        dist.barrier()


def sleeps() -> None:
    print("up")
    time.sleep(1000)


class EngineContract:
    """To be inherited, by a class whose name begins with ``Test``."""

    backend: ClassVar[str]
    num_ranks: ClassVar[int] = 2

    def launched(self, function: Any, *args: object, **options: Any) -> Launched:  # noqa: ANN401  see `launch`
        return launch(function, *args, backend=self.backend, num_processes=self.num_ranks, **options)

    def under_way(self) -> Run:
        return until_up(start(sleeps, backend=self.backend, num_processes=self.num_ranks))

    @property
    def last(self) -> int:
        """Number of the last rank."""
        return self.num_ranks - 1

    def test_values_output_and_record_are_those_of_one_run(self) -> None:
        launched = self.launched(rank_and_size, 10)

        assert launched.values == [(10 * rank, self.num_ranks) for rank in range(self.num_ranks)]
        for rank in range(self.num_ranks):
            assert f"[r{rank}] rank {rank} computes\n" in launched.text
            assert launched.run.logs(rank) == f"rank {rank} computes\n"
        events = list(recorded_events(launched.run.log_dir))
        assert isinstance(events[0], RunStarted)
        assert events[0].plan.engine == self.backend
        assert [event for event in events if isinstance(event, RunEnded)] == events[-1:]
        assert [event.sequence for event in events] == sorted({event.sequence for event in events})

    def test_the_rank_that_raises_is_the_cause_and_the_others_are_stopped(self) -> None:
        launched = self.launched(fails_on_the_last)

        failure = launched.failure
        assert (failure.rank, failure.exc_type) == (self.last, "ValueError")
        assert "no such colour" in failure.traceback_text
        assert [other.kind for other in failure.failures] == ["raised", *["stopped"] * self.last]
        assert isinstance(failure.original(), ValueError)

    @pytest.mark.faults
    def test_a_rank_that_has_returned_is_the_cause_for_those_that_wait_for_it(self) -> None:
        launched = self.launched(waits_for_the_last)

        assert launched.failure.rank == 0
        assert f"rank {self.last} has returned" in str(launched.failure)

    @pytest.mark.faults
    def test_a_stop_ends_all_ranks(self) -> None:
        run = self.under_way()
        ranks = {id_of(rank.pid) for rank in run.state.ranks.values()}

        run.stop()

        assert run.wait(OVER_S)
        with pytest.raises(RunStopped):
            run.result()
        expect_gone(ranks)

    @pytest.mark.faults
    def test_a_killed_rank_is_the_cause_and_nothing_is_left(self) -> None:
        run = self.under_way()
        ranks = {id_of(rank.pid) for rank in run.state.ranks.values()}

        os.kill(run.state.ranks[self.last].pid, signal.SIGKILL)

        assert run.wait(OVER_S)
        with pytest.raises(RunFailed) as raised:
            run.result()
        assert (raised.value.rank, raised.value.cause.signal) == (self.last, "SIGKILL")
        expect_gone(ranks)

    def test_stacks_of_all_ranks_come(self) -> None:
        run = self.under_way()

        stacks = run.stacks()

        run.stop(0)
        assert run.wait(OVER_S)
        assert sorted(stacks) == list(range(self.num_ranks))
        assert all("in sleeps" in text for text in stacks.values())
