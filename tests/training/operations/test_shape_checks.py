"""With checks on, what does not fit together is refused on every rank."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch

from accel_nb.errors import DistributedOperationException, TrainingError
from accel_nb.protocol import sink
from accel_nb.protocol.events import CollectiveMismatch, RunEvent
from accel_nb.training.accelerator import Accelerator
from accel_nb.training.operations.collectives import (
    broadcast,
    broadcast_object_list,
    gather,
    gather_object,
    pad_across_processes,
    reduce,
    verify_operation,
    wait_for_everyone,
)
from accel_nb.training.operations.shape_checks import Checked
from accel_nb.training.ranks.state import AcceleratorState, PartialState, reset_state

pytestmark = pytest.mark.faults

RunRanks = Callable[..., list[Any]]

CASES: dict[str, tuple[Callable[[int], Any], tuple[str, str]]] = {
    "dimension 0": (lambda rank: gather(torch.ones(2 + rank, 3)), ("[2, 3] float32", "[3, 3] float32")),
    "number of dimensions": (lambda rank: gather(torch.ones([1] * (1 + rank))), ("[1] float32", "[1, 1] float32")),
    "dtype": (
        lambda rank: reduce({"x": torch.ones(2, dtype=[torch.int64, torch.float32][rank])}),
        ("{'x': [2] int64}, 'mean', scale=1.0", "{'x': [2] float32}, 'mean', scale=1.0"),
    ),
    "keys": (lambda rank: gather({"ab"[rank]: torch.ones(1)}), ("{'a': [1] float32}", "{'b': [1] float32}")),
    "order of keys": (
        lambda rank: gather({key: torch.ones(1) for key in ["ab", "ba"][rank]}),
        ("{'a': [1] float32, 'b': [1] float32}", "{'b': [1] float32, 'a': [1] float32}"),
    ),
    "tensor or None": (lambda rank: gather([torch.ones(1), None][rank]), ("[1] float32", "None")),
    "tensor or text": (lambda rank: gather([torch.ones(1), "text"][rank]), ("[1] float32", "str")),
    "length of a list": (
        lambda rank: broadcast([torch.ones(1)] * (1 + rank)),
        ("[[1] float32], from_process=0", "[[1] float32, [1] float32], from_process=0"),
    ),
    "source": (
        lambda rank: broadcast_object_list([rank], from_process=rank),
        ("from_process=0", "from_process=1"),
    ),
    "dimensions to pad": (
        lambda rank: pad_across_processes(torch.ones([1] * (1 + rank))),
        ("1-d float32, dim=0", "2-d float32, dim=0"),
    ),
}  # fmt: skip


def without_places(message: str) -> str:
    """`message`, which names the user's line of each rank."""
    text, num_places = re.subn(r" \(test_shape_checks\.py, line \d+\)", "", message)
    assert num_places == 2, message
    return text


def refused(name: str) -> str:
    state = PartialState()
    state.debug = True
    with pytest.raises(DistributedOperationException) as raised:
        CASES[name][0](state.process_index)
    # Nothing was left behind: the ranks go on together.
    assert gather(torch.tensor([state.process_index])).tolist() == [0, 1]
    return str(raised.value)


@pytest.mark.parametrize("name", CASES)
def test_k01_what_does_not_fit_is_refused_on_every_rank(run_ranks: RunRanks, name: str) -> None:
    first, second = CASES[name][1]

    for message in run_ranks(refused, 2, name):
        assert message.startswith("accel_nb.utils.")
        assert f"\n  rank 0: {first}\n  rank 1: {second}\n" in without_places(message)
        assert "pad_across_processes" in message


def different_operations() -> list[str]:
    state = PartialState()
    state.debug = True
    own = torch.ones(2)
    pairs: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
        (lambda: gather(own), lambda: reduce(own, "sum")),
        (lambda: gather_object([1]), wait_for_everyone),
    ]
    messages = []
    for pair in pairs:
        with pytest.raises(DistributedOperationException) as raised:
            pair[state.process_index]()
        messages.append(str(raised.value))
    return messages


def test_k01_different_operations_are_refused_on_every_rank(run_ranks: RunRanks) -> None:
    for messages in run_ranks(different_operations, 2):
        first, second = map(without_places, messages)
        assert "the ranks called different operations." in first
        assert "\n  rank 0: accel_nb.utils.gather([2] float32)" in first
        assert "\n  rank 1: accel_nb.utils.reduce([2] float32, 'sum', scale=1.0)" in first
        assert "rank 0: accel_nb.utils.gather_object()\n  rank 1: accel_nb.utils.wait_for_everyone()" in second


def checked_by_the_environment() -> list[Any]:
    os.environ["ACCELERATE_DEBUG_MODE"] = "1"
    events: list[RunEvent] = []
    sink.deliver_to(events.append)
    accelerator = Accelerator()
    rank = accelerator.process_index
    with pytest.raises(DistributedOperationException):
        accelerator.gather_for_metrics(torch.ones(1 + rank))
    alike = [
        accelerator.gather(torch.tensor([rank])).tolist(),
        accelerator.reduce(torch.tensor([rank]), "sum").tolist(),
        accelerator.pad_across_processes(torch.ones(1 + rank)).tolist(),
        broadcast_object_list([rank]),
        gather_object([rank]),
    ]
    accelerator.wait_for_everyone()
    return [accelerator.state.debug, [type(event) for event in events], events, alike]


def test_the_launch_switches_checks_on_and_the_first_rank_reports(run_ranks: RunRanks) -> None:
    first, second = run_ranks(checked_by_the_environment, 2)

    assert first[0] is second[0] is True
    name = "accel_nb.utils.gather"
    places = first[2][0].places
    mismatch = CollectiveMismatch(operations=(name, name), given=("[1] float32", "[2] float32"), places=places)
    assert first[2] == [mismatch]
    assert [re.sub(r"\d+", "7", place) for place in places] == ["test_shape_checks.py, line 7"] * 2
    assert second[2] == []
    assert first[3] == [[0, 1], [1], [1.0, 0.0], [0], [0, 1]]
    assert second[3] == [[0, 1], [1], [1.0, 1.0], [0], [0, 1]]


def switched() -> list[bool]:
    kinds = []
    for debug in (False, True, True, False, True):
        reset_state()
        state = PartialState()
        state.debug = debug
        kinds.append(isinstance(state.collectives, Checked))
        assert gather(torch.tensor([state.process_index])).tolist() == [0, 1]
    return kinds


def test_the_wrapper_is_there_only_while_checks_are_on(run_ranks: RunRanks) -> None:
    assert run_ranks(switched, 2) == [[False, True, True, False, True]] * 2


def test_one_process_has_nothing_to_compare() -> None:
    state = PartialState(cpu=True)
    assert state.debug is False

    state.debug = True

    assert AcceleratorState().debug is True
    assert not isinstance(state.collectives, Checked)
    assert gather(torch.ones(1)).tolist() == [1]


def alone_in_an_operation() -> str:
    state = PartialState(timeout=timedelta(seconds=2))
    state.debug = True
    if state.process_index == 1:
        time.sleep(4)
        return ""
    with pytest.raises(TrainingError) as raised:
        gather(torch.ones(1))
    return str(raised.value)


def test_k02_a_rank_that_calls_nothing_is_named(run_ranks: RunRanks) -> None:
    message, _ = run_ranks(alone_in_an_operation, 2)

    assert message.startswith(
        "rank 0 of 2 waited 2 s in accel_nb.utils.gather for rank 1: no operation of accel_nb was"
    )


@verify_operation
def own_operation(tensor: object) -> object:
    return tensor


def own_operation_checked() -> str:
    state = PartialState()
    data = torch.ones(1 + state.process_index)
    assert own_operation(data) is data
    state.debug = True
    with pytest.raises(DistributedOperationException) as raised:
        own_operation(tensor=data)
    return str(raised.value)


def test_operations_of_the_users_own_are_compared_under_their_names(run_ranks: RunRanks) -> None:
    for message in run_ranks(own_operation_checked, 2):
        assert "test_shape_checks.own_operation needs the same structure" in message
        assert "rank 0: [1] float32\n  rank 1: [2] float32" in without_places(message)
