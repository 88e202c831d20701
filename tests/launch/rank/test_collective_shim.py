"""What ranks of a launch call together is noted, and compared before it begins: no wrong program hangs, no legal one is
refused.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from torch import distributed

from accel_nb.protocol.events import CollectiveMismatch

from ..launching import launch, on_ranks
from . import collective_code as code
from . import legal_code

pytestmark = pytest.mark.faults

SOON_S = 5.0

OURS = {
    "dimension 0": ("gather", "[2, 3] float32", "[3, 3] float32"),
    "number of dimensions": ("gather", "[2] float32", "[2, 2] float32"),
    "dtype": ("reduce", "[2] float32, 'sum', scale=1.0", "[2] float64, 'sum', scale=1.0"),
    "keys": ("gather", "{'a': [1] float32}", "{'b': [1] float32}"),
    "None": ("gather", "[1] float32", "None"),
    "length of a list": ("gather", "[[1] float32, [1] float32]", "[[1] float32, [1] float32, [1] float32]"),
}
TORCHS = {
    "all_reduce": ("all_reduce", "2 float32, sum", "3 float32, sum"),
    "dtype": ("all_reduce", "2 float32, sum", "2 float64, sum"),
    "op": ("all_reduce", "2 float32, sum", "2 float32, max"),
    "broadcast": ("broadcast", "2 float32, src=0", "3 float32, src=0"),
    "src": ("broadcast", "2 float32, src=0", "2 float32, src=1"),
    "reduce": ("reduce", "2 float32, dst=0, sum", "3 float32, dst=0, sum"),
    "all_gather": ("all_gather", "2 float32", "3 float32"),
}
DIFFERENT_CALLS = {
    "gather or reduce": ("gather(dst=0)", "reduce(2 float32, dst=0, sum)"),
    "barrier or all_reduce": ("barrier()", "all_reduce(2 float32, sum)"),
    "objects": ("all_gather_object()", "broadcast_object_list(src=0)"),
}


def without_places(message: str) -> str:
    """`message`, in which a line of the user's stands for each rank."""
    text, num_places = re.subn(r" \(collective_code\.py, line \d+\)", "", message)
    assert num_places == message.count("\n  rank "), message
    return text


def expected_lines(num_ranks: int, usual: str, odd: str) -> str:
    return "".join(f"\n  rank {rank}: {odd if rank == 1 else usual}" for rank in range(num_ranks)) + "\n"


def all_refused(launched_values: list[Any], names: set[str]) -> None:
    """Every rank, every case, soon."""
    for outcomes in launched_values:
        assert set(outcomes) == names
        assert {name: outcome[0] for name, outcome in outcomes.items()} == dict.fromkeys(
            names, "DistributedOperationException"
        )
        assert max(outcome[2] for outcome in outcomes.values()) < SOON_S


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_k01_operations_that_differ_are_refused_on_every_rank_by_default(num_ranks: int) -> None:
    values = on_ranks(code.ours_that_differ, num_processes=num_ranks)

    all_refused(values, {*OURS, "operation"})
    for outcomes in values:
        for name, (operation, usual, odd) in OURS.items():
            message = without_places(outcomes[name][1])
            assert message.startswith(f"accel_nb.utils.{operation} needs the same structure, shapes and dtypes"), name
            assert expected_lines(num_ranks, usual, odd) in message, name
        message = without_places(outcomes["operation"][1])
        assert message.startswith("the ranks called different operations.")
        usual, odd = "accel_nb.utils.gather([2] float32)", "accel_nb.utils.reduce([2] float32, 'sum', scale=1.0)"
        assert expected_lines(num_ranks, usual, odd).rstrip() in message


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_k01_operations_of_torch_that_differ_are_refused_on_every_rank(num_ranks: int) -> None:
    values = on_ranks(code.torchs_that_differ, num_processes=num_ranks)

    all_refused(values, {*TORCHS, *DIFFERENT_CALLS})
    for outcomes in values:
        for name, (operation, usual, odd) in TORCHS.items():
            message = without_places(outcomes[name][1])
            assert message.startswith(f"torch.distributed.{operation} needs the same structure, shapes"), name
            assert expected_lines(num_ranks, usual, odd) in message, name
            assert message.endswith("Give the same number of elements and the same dtype on all ranks."), name
        for name, calls in DIFFERENT_CALLS.items():
            usual, odd = (f"torch.distributed.{call}" for call in calls)
            message = without_places(outcomes[name][1])
            assert expected_lines(num_ranks, usual, odd).rstrip() in message, name


@pytest.mark.parametrize("start_method", ["spawn", "fork"])
def test_k01_whatever_starts_the_ranks(start_method: str) -> None:
    import torch.distributed  # noqa: F401  a fork of a process without torch would know nothing of it

    all_refused(on_ranks(code.ours_that_differ, start_method=start_method), {*OURS, "operation"})


def test_k01_a_difference_is_an_event_of_the_run_once() -> None:
    launched = launch(code.ours_that_differ)

    told = launched.text.count("the ranks called operations that do not fit together")
    assert told == len(OURS) + 1
    state = launched.run.state
    assert isinstance(state.mismatch, CollectiveMismatch)
    assert state.mismatch.operations == ("accel_nb.utils.gather", "accel_nb.utils.reduce")
    assert [re.sub(r"\d+", "7", place) for place in state.mismatch.places] == ["collective_code.py, line 7"] * 2


@pytest.mark.parametrize("ours", [True, False])
def test_k02_a_rank_that_has_returned_ends_the_wait_of_the_others_at_once(ours: bool) -> None:
    launched = launch(code.in_the_main_process_only, kwargs={"ours": ours}, num_processes=2)

    (failure,) = launched.failure.failures
    operation = "accel_nb.utils.gather" if ours else "torch.distributed.barrier"
    assert failure.rank == 0
    assert failure.type_name == "accel_nb.errors.DistributedOperationException"
    message = re.sub(r"line \d+", "line 7", failure.message)
    assert message.startswith(
        f"rank 1 has returned from the function without calling {operation}, in which the others wait for it "
        "(collective_code.py, line 7). Every rank has to call it, and equally often"
    )
    assert launched.run.state.duration_s < 20


def test_d16_one_batch_less_is_told_with_the_steps_that_were_made() -> None:
    (failure,) = launch(code.uneven_loops).failure.failures

    assert failure.rank == 0
    assert "rank 1 has returned from the function without calling accel_nb.utils.gather" in failure.message
    steps = f"rank 0 {code.NUM_BATCHES + 1}, rank 1 {code.NUM_BATCHES}"
    assert f"Optimizer steps so far: {steps}." in failure.message


def test_a_failure_stays_the_cause_for_those_who_wait_for_that_rank() -> None:
    failures = launch(code.failing_beside_a_gather).failure.failures

    assert (failures[0].rank, failures[0].type_name, failures[0].message) == (1, "ValueError", "the batch is broken")
    assert [failure.rank for failure in failures if not failure.consequence and failure.kind == "raised"] == [1]


@pytest.mark.parametrize("ours", [True, False])
def test_k05_the_groups_time_out_ends_the_wait(ours: bool) -> None:
    (kind, message, took_s), _ = on_ranks(code.asleep_beside, 4.0, kwargs={"ours": ours})

    assert kind == "DistributedOperationException"
    operation = "accel_nb.utils.gather" if ours else "torch.distributed.all_reduce"
    assert message.startswith(f"rank 0 of 2 waited 4 s in {operation} (collective_code.py, line ")
    assert "for rank 1. rank 1 has come out of torch.distributed.barrier" in message
    assert 3.5 < took_s < 7


@pytest.mark.skipif(
    "timeout" not in inspect.signature(distributed.barrier).parameters, reason="this torch's barrier has no time-out"
)
def test_a_barrier_has_its_own_time_out() -> None:
    assert on_ranks(code.late_to_a_patient_barrier) == ["met"] * 2


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_ranks_may_meet_while_they_end(in_a_thread: bool) -> None:
    launched = launch(code.meeting_while_they_end, kwargs={"in_a_thread": in_a_thread})

    assert launched.values == [None, None]
    assert "[r0-r1] met 2" in launched.text


def test_a_rank_may_call_from_another_thread_what_the_others_call_from_the_functions() -> None:
    assert on_ranks(code.from_two_threads) == [([2.0, 4.0, 6.0, 8.0], 5), ([2.0, 4.0, 6.0, 8.0], 4)]


def test_a_rank_that_ends_without_a_word_ends_the_run() -> None:
    failure = launch(code.leaving_without_a_word).failure

    assert "rank 1 has returned" in str(failure)


def test_warnings_of_deprecated_names_come_from_where_they_always_do() -> None:
    for files in on_ranks(code.files_of_warnings):
        assert set(files) == {"c10d_logger.py"}


def test_a_group_that_a_rank_leaves_fails_in_torchs_words_with_ours_beside() -> None:
    _, (kind, message, notes) = on_ranks(code.leaving_the_group)

    assert re.search("Connection (closed|reset) by peer", message), (kind, message)
    (note,) = notes
    assert note.startswith(
        "rank 0 closed the process group without calling torch.distributed.all_reduce, in which the others wait "
        "(collective_code.py, line "
    )


def test_groups_that_are_opened_again_count_anew() -> None:
    assert on_ranks(code.reopened_groups, 5) == [[0.0, 2.0, 8.0, 24.0, 64.0]] * 2


def test_our_operations_are_noted_once_under_their_names() -> None:
    for calls in on_ranks(code.names_of_calls):
        names = ["gather", "pad_across_processes", "broadcast_object_list", "gather_object"]
        assert [name for name, _ in calls] == [f"accel_nb.utils.{name}" for name in names] + [
            "torch.distributed.all_gather_object"
        ]
        assert len({place for _, place in calls}) == len(calls)
        assert all(place.startswith("collective_code.py, line ") for _, place in calls)


def test_training_notes_batches_backwards_and_steps() -> None:
    for reading, in_backward, num_steps, counted in on_ranks(code.notes_of_training):
        assert len(reading) == 4
        assert {re.sub(r"\d+", "7", text) for text in reading} == {"next batch (collective_code.py, line 7)"}
        assert {re.sub(r"\d+", "7", text) for text in in_backward} == {"backward (collective_code.py, line 7)"}
        # Two optimizers share each backward.
        assert num_steps == len(in_backward) == 2
        assert counted


class TestSwitches:
    def test_a_block_may_be_left_unchecked_and_is_noted_all_the_same(self) -> None:
        assert on_ranks(code.half_checked) == [(True, [False], 4)] * 2

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, (True, "True", "not set")),
            ({"debug": True}, (True, "True", "1")),
            ({"debug": False}, (False, "False", "0")),
            ({"num_processes": 1}, (False, "True", "not set")),
        ],
    )
    def test_debug_tells_the_truth(self, options: dict[str, Any], expected: tuple[bool, str, str]) -> None:
        assert set(on_ranks(code.what_debug_says, **options)) == {expected}

    @pytest.mark.parametrize(("value", "on"), [("1", True), ("0", False), ("", True)])
    def test_the_kernels_variable_decides_when_the_call_does_not(
        self, monkeypatch: pytest.MonkeyPatch, value: str, on: bool
    ) -> None:
        monkeypatch.setenv("ACCELERATE_DEBUG_MODE", value)

        assert on_ranks(code.what_debug_says) == [(on, str(on), value)] * 2


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_legal_programs_are_left_alone(num_ranks: int) -> None:
    counts = on_ranks(legal_code.counted, num_processes=num_ranks)

    expected = {
        name: counts[0][name] if number is None else number for name, (_, number) in legal_code.PROGRAMS.items()
    }
    assert counts == [expected] * num_ranks


def test_legal_programs_are_legal() -> None:
    """They do the same where nothing is compared."""
    on_ranks(legal_code.counted, num_processes=3, debug=False)
