"""One rank first, without a collective."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from accel_nb.protocol import sink
from accel_nb.protocol.events import Notice, RunEvent
from accel_nb.training.operations.group_store import group_store
from accel_nb.training.ranks.process_group import RankFacts
from accel_nb.training.ranks.state import PartialState, reset_state
from accel_nb.training.ranks.turns import _Heartbeat, tell

RunRanks = Callable[..., list[Any]]


def in_order(log: str) -> list[str]:
    state = PartialState()
    with state.main_process_first(), open(log, "a") as file:  # noqa: PTH123
        file.write(f"{state.process_index}")
    state.wait_for_everyone()
    with state.local_main_process_first(), open(log, "a") as file:  # noqa: PTH123
        file.write(f"{state.process_index}")
    state.wait_for_everyone()
    with open(log) as file:  # noqa: PTH123
        return [file.read()]


def test_main_process_first(run_ranks: RunRanks, tmp_path: Path) -> None:
    assert run_ranks(in_order, 2, str(tmp_path / "log")) == [["0101"], ["0101"]]


def main_process_fails() -> str:
    state = PartialState()
    try:
        with state.main_process_first():
            _ = 1 / state.process_index
    except ZeroDivisionError:
        return "raised"
    return "went on"


def test_k04_ranks_do_not_wait_for_a_main_process_that_failed(run_ranks: RunRanks) -> None:
    assert run_ranks(main_process_fails, 2) == ["raised", "went on"]


def slow_preparation() -> int:
    state = PartialState(timeout=timedelta(seconds=2))
    with state.main_process_first():
        if state.is_main_process:
            time.sleep(5)
    total = torch.ones(1)
    distributed.all_reduce(total)
    return int(total)


def test_k04_a_long_preparation_is_no_timeout(run_ranks: RunRanks) -> None:
    assert run_ranks(slow_preparation, 2) == [2, 2]


def again_after_a_reset(log: str) -> str:
    for _ in range(2):
        reset_state()
        state = PartialState()
        with state.main_process_first(), open(log, "a") as file:  # noqa: PTH123
            file.write(f"{state.process_index}")
        state.wait_for_everyone()
    return Path(log).read_text()


def test_turns_of_an_earlier_state_do_not_count(run_ranks: RunRanks, tmp_path: Path) -> None:
    assert run_ranks(again_after_a_reset, 2, str(tmp_path / "log")) == ["0101", "0101"]


def keys_after_turns(num_turns: int) -> int:
    state = PartialState()
    store = group_store()
    assert store is not None
    for _ in range(num_turns):
        with state.main_process_first(), state.local_main_process_first():
            pass
    state.wait_for_everyone()
    return store.num_keys()


def test_turns_leave_no_keys_behind(run_ranks: RunRanks) -> None:
    assert run_ranks(keys_after_turns, 3, 1) == run_ranks(keys_after_turns, 3, 5)


def test_one_process_goes_first_at_once() -> None:
    state = PartialState(cpu=True)
    with state.main_process_first(), state.local_main_process_first():
        pass


def facts_of(rank: int, local_rank: int) -> RankFacts:
    group = PartialState(cpu=True).facts
    return RankFacts(
        num_processes=4, process_index=rank, local_process_index=local_rank, device=group.device,
        distributed_type=group.distributed_type, backend="gloo", launched=True,
    )  # fmt: skip


def test_k04_one_waiting_rank_of_a_machine_says_so_at_each_doubling(capsys: pytest.CaptureFixture[str]) -> None:
    heartbeat = _Heartbeat(facts_of(1, 1))

    for waited_s in (59.0, 61.0, 100.0, 121.0, 239.0, 241.0):
        heartbeat(waited_s)
    _Heartbeat(facts_of(2, 2))(1000.0)

    said = capsys.readouterr().err.splitlines()
    assert [line.rpartition(", ")[2] for line in said] == ["1 min so far", "2 min so far", "4 min so far"]
    assert said[0].startswith("accel_nb: waiting for the rank that goes first (main_process_first)")


def test_k04_in_a_run_the_view_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    events: list[RunEvent] = []
    sink.deliver_to(events.append)
    try:
        tell("waiting")
    finally:
        sink.deliver_to(None)

    assert events == [Notice(text="waiting")]
    assert capsys.readouterr().err == ""
