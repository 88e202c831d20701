from __future__ import annotations

import copy
import os
import pickle
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import distributed
from torch.distributed import HashStore  # type: ignore[attr-defined]  # it is public, says the documentation

from accel_nb.errors import StateWasReset, TrainingError
from accel_nb.protocol.environment import changed
from accel_nb.training.accelerator import Accelerator
from accel_nb.training.operations.collectives import gather
from accel_nb.training.operations.group_store import group_store, wait_for_keys
from accel_nb.training.ranks.distributed_type import DistributedType
from accel_nb.training.ranks.process_group import gloo_changes_timeouts
from accel_nb.training.ranks.state import AcceleratorState, GradientState, PartialState, is_initialized, reset_state

RunRanks = Callable[..., list[Any]]
changes_timeouts = pytest.mark.skipif(not gloo_changes_timeouts(), reason="gloo of torch < 2.9 keeps its timeout")


def facts() -> tuple[object, ...]:
    state = PartialState()
    same = PartialState()
    return (
        state.process_index,
        state.num_processes,
        state.local_process_index,
        str(state.device),
        state.distributed_type,
        state.backend,
        state.is_main_process,
        state.is_local_main_process,
        state.is_last_process,
        state.use_distributed,
        same.facts is state.facts,
    )


def test_a_rank_is_a_rank_without_accelerators(run_ranks: RunRanks) -> None:
    first, second = run_ranks(facts, 2)

    assert first == (0, 2, 0, "cpu", DistributedType.MULTI_CPU, "gloo", True, True, False, True, True)
    assert second == (1, 2, 1, "cpu", DistributedType.MULTI_CPU, "gloo", False, False, True, True, True)


def test_a_process_that_nobody_launched_is_the_only_rank() -> None:
    state = PartialState(cpu=True)

    assert (state.process_index, state.num_processes, state.backend) == (0, 1, None)
    assert state.distributed_type == DistributedType.NO == "NO"
    assert state.is_main_process
    assert state.is_last_process
    assert not distributed.is_initialized()
    state.wait_for_everyone()


def facts_within_an_open_group() -> tuple[object, ...]:
    distributed.init_process_group("gloo")
    state = PartialState()
    return state.process_index, state.num_processes, state.backend


def test_an_open_process_group_is_adopted(run_ranks: RunRanks) -> None:
    assert run_ranks(facts_within_an_open_group, 2) == [(0, 2, "gloo"), (1, 2, "gloo")]


def state_after_a_failed_start() -> tuple[str, bool, int]:
    address = os.environ.pop("MASTER_ADDR")
    with pytest.raises(TrainingError) as raised:
        PartialState()
    os.environ["MASTER_ADDR"] = address
    return str(raised.value), not PartialState._shared_state, PartialState().num_processes


def test_l16_a_failed_start_leaves_no_state_behind(run_ranks: RunRanks) -> None:
    for message, clean, num_processes in run_ranks(state_after_a_failed_start, 2):
        assert "MASTER_ADDR and MASTER_PORT are not set" in message
        assert clean
        assert num_processes == 2


def closed_and_opened() -> tuple[int, bool, int, bool]:
    accelerator = Accelerator()
    accelerator.end_training()
    index, is_open = accelerator.process_index, distributed.is_initialized()
    # A second group of one rank each: the test's store cannot serve a second one of both (the launcher's shim can).
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    return index, is_open, Accelerator().num_processes, distributed.is_initialized()


def test_after_the_group_is_closed_the_next_accelerator_joins_anew(run_ranks: RunRanks) -> None:
    first, second = run_ranks(closed_and_opened, 2)

    assert first[0] == 0
    assert second[0] == 1
    assert first[1] is second[1] is False


def parts(padding: bool) -> list[Any]:
    state = PartialState()
    inputs: list[Any] = [
        list("abcde"),
        tuple("abc"),
        "abc",
        torch.arange(5),
        {"x": [1, 2, 3], "y": torch.arange(3)},
        [7],
    ]
    given = []
    for one in inputs:
        with state.split_between_processes(one, apply_padding=padding) as part:
            given.append(part)
    return given


def test_split_between_processes(run_ranks: RunRanks) -> None:
    first, second = run_ranks(parts, 2, False)

    assert str(first) == str(
        [["a", "b", "c"], ("a", "b"), "ab", torch.arange(3), {"x": [1, 2], "y": torch.arange(2)}, [7]]
    )
    assert str(second) == str([["d", "e"], ("c",), "c", torch.tensor([3, 4]), {"x": [3], "y": torch.tensor([2])}, []])


def test_split_between_processes_with_padding(run_ranks: RunRanks) -> None:
    _, second = run_ranks(parts, 2, True)

    expected = [
        ["d", "e", "e"],
        ("c", "c"),
        "cc",
        torch.tensor([3, 4, 4]),
        {"x": [3, 3], "y": torch.tensor([2, 2])},
        [7],
    ]
    assert str(second) == str(expected)


def decorated() -> list[object]:
    state = PartialState()

    def who(greeting: str) -> str:
        return f"{greeting} {state.process_index}"

    return [
        state.on_main_process(who)("a"),
        state.on_local_main_process(who)("b"),
        state.on_last_process(who)("c"),
        state.on_process(who, process_index=1)("d"),
        state.on_process(process_index=0)(who)("e"),
        state.on_local_process(who, local_process_index=1)("f"),
    ]


def test_decorators_run_a_function_on_chosen_ranks(run_ranks: RunRanks) -> None:
    first, second = run_ranks(decorated, 2)

    assert first == ["a 0", "b 0", None, None, "e 0", None]
    assert second == [None, None, "c 1", "d 1", None, "f 1"]


def test_a_decorator_without_its_rank_is_refused() -> None:
    state = PartialState(cpu=True)

    with pytest.raises(ValueError, match="on_process needs process_index="):
        state.on_process(print)
    with pytest.raises(ValueError, match="on_local_process needs local_process_index="):
        state.on_local_process(print)


def test_l16_an_accelerator_with_other_settings_takes_effect(capsys: pytest.CaptureFixture[str]) -> None:
    before = Accelerator(cpu=True, mixed_precision="no", gradient_accumulation_steps=4)

    after = Accelerator(cpu=True, mixed_precision="bf16")

    assert (after.mixed_precision, AcceleratorState().mixed_precision) == ("bf16", "bf16")
    assert (before.mixed_precision, before.gradient_accumulation_steps) == ("no", 4)
    assert capsys.readouterr().out == ""


def test_l16_a_setting_that_is_kept_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    Accelerator(cpu=True, mixed_precision="bf16")

    again = Accelerator()

    assert again.mixed_precision == "bf16"
    assert "mixed_precision='bf16' is kept from the Accelerator made before" in capsys.readouterr().out


def test_l16_after_reset_state_everything_starts_afresh(capsys: pytest.CaptureFixture[str]) -> None:
    kept = PartialState(cpu=True)
    Accelerator(cpu=True, mixed_precision="bf16")
    assert is_initialized()

    reset_state()

    assert not is_initialized()
    with pytest.raises(TrainingError, match=r"^`PartialState` object has no attribute `device` any more. This"):
        _ = kept.device
    assert Accelerator().mixed_precision == "no"
    assert is_initialized()
    assert capsys.readouterr().out == ""


def test_l16_a_failed_construction_leaves_the_state_clean() -> None:
    with pytest.raises(ValueError, match="mixed_precision='half' is unknown; choose one of 'no', 'bf16', 'fp16'"):
        Accelerator(cpu=True, mixed_precision="half")

    assert not is_initialized()
    assert Accelerator(cpu=True).mixed_precision == "no"


def test_a_partial_state_alone_is_no_accelerator_state() -> None:
    PartialState(cpu=True)

    assert not is_initialized()


def test_gradient_state_is_shared() -> None:
    GradientState().sync_gradients = False

    assert GradientState().sync_gradients is False


def test_loaders_that_are_read_are_listed_as_upstream_does() -> None:
    progress = GradientState()
    assert progress.dataloader_references == [None]
    assert not progress.is_xla_gradients_synced

    loader: Any = object()
    with progress.reading(loader):
        assert progress.dataloader_references == [None, loader]


def test_the_launch_decides_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")

    assert Accelerator(cpu=True).mixed_precision == "bf16"
    assert Accelerator(cpu=True, mixed_precision="no").mixed_precision == "no"


def test_a_rank_that_cannot_meet_the_others_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    for name, value in {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(TrainingError, match="rank 1 of 2 does not know where to meet the others: MASTER_ADDR"):
        PartialState(cpu=True)

    assert not PartialState._shared_state


def test_the_processes_state_can_be_printed() -> None:
    assert str(PartialState(cpu=True)) == "Distributed environment: NO\nRank: 0 of 1, on its machine 0\nDevice: cpu\n"
    assert str(AcceleratorState()).endswith("Device: cpu\nMixed precision: no\n")
    assert "Gradients are synchronised: True" in str(GradientState())


def test_upstreams_ways_to_reset_one_state() -> None:
    AcceleratorState(cpu=True)
    GradientState().sync_gradients = False

    AcceleratorState._reset_state()
    assert PartialState._shared_state
    assert not is_initialized()

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    assert not PartialState._shared_state
    assert GradientState().sync_gradients


def test_what_another_launcher_says_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    state = PartialState(cpu=True)
    assert (state.fork_launched, AcceleratorState().fork_launched) == (False, False)

    monkeypatch.setenv("FORK_LAUNCHED", "1")

    assert PartialState().fork_launched
    assert AcceleratorState().fork_launched


@pytest.mark.parametrize("cpu", [False, True])
def test_a_device_named_by_the_environment_is_used(cpu: bool) -> None:
    with changed({"ACCELERATE_TORCH_DEVICE": "cpu:3"}):
        state = PartialState(cpu=cpu)

    assert state.device == torch.device("cpu:3")
    assert PartialState(cpu=True).device == torch.device("cpu:3")


def test_an_argument_wins_over_a_device_named_by_the_environment() -> None:
    with changed({"ACCELERATE_TORCH_DEVICE": "cuda:3"}):
        assert PartialState(cpu=True).device == torch.device("cpu")


@pytest.mark.parametrize("name", ["tpu", "cpu:", "cuda:x"])
def test_a_device_that_is_none_is_refused(name: str) -> None:
    with (
        changed({"ACCELERATE_TORCH_DEVICE": name}),
        pytest.raises(
            TrainingError, match=f"ACCELERATE_TORCH_DEVICE='{name}' is no device of .*; set it to one of cpu, cuda"
        ),
    ):
        PartialState()


def test_a_named_device_that_is_not_there_is_refused() -> None:
    with (
        changed({"ACCELERATE_TORCH_DEVICE": "cuda:64"}),
        pytest.raises(
            TrainingError, match=r"ACCELERATE_TORCH_DEVICE='cuda:64' names a device that this process does not"
        ),
    ):
        PartialState()


def test_the_default_device_can_be_made_current() -> None:
    state = PartialState(cpu=True)
    state.set_device()

    assert state.default_device.type == ("cuda" if torch.cuda.is_available() else "cpu")


def dead_end_after(timeout_s: float, is_open: bool) -> float:
    timeout = timedelta(seconds=timeout_s)
    if is_open:
        distributed.init_process_group("gloo")
    state = PartialState(timeout=timeout)
    store = group_store()
    assert store is not None
    if state.process_index == 1:
        wait_for_keys(store, ["over"], timeout_s=5 * timeout_s)
        return 0.0
    started = time.monotonic()
    # With torch 2.6 gloo closes the connection when the time is over.
    with pytest.raises(RuntimeError, match=r"(?i)tim(ed|e) ?out|Connection (closed|reset) by peer"):
        gather(torch.ones(1))
    waited_s = time.monotonic() - started
    store.set("over", "")
    return waited_s


@pytest.mark.parametrize("is_open", [False, pytest.param(True, marks=changes_timeouts)])
def test_k05_a_dead_end_lasts_as_long_as_the_timeout_says(run_ranks: RunRanks, is_open: bool) -> None:
    waited_s, _ = run_ranks(dead_end_after, 2, 4.0, is_open)

    assert 3 < waited_s < 15


def told_of_a_late_timeout() -> list[str]:
    PartialState()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        PartialState(timeout=timedelta(seconds=4))
    return [str(one.message) for one in caught]


def test_k05_a_timeout_that_an_open_group_cannot_have_any_more_is_told(run_ranks: RunRanks) -> None:
    for told in run_ranks(told_of_a_late_timeout, 2):
        assert len(told) == (not gloo_changes_timeouts())
        assert all("gloo of torch 2." in one and "Say it to the first Accelerator" in one for one in told)


def backend_of_an_open_group() -> str:
    PartialState()
    with pytest.raises(TrainingError) as raised:
        PartialState(backend="mpi")
    return str(raised.value)


def test_k05_another_backend_for_an_open_group_is_refused(run_ranks: RunRanks) -> None:
    for message in run_ranks(backend_of_an_open_group, 2):
        assert "backend='mpi' was asked for, but the process group is open already, with 'gloo'" in message


def test_l16_an_accelerator_whose_state_was_reset_says_so() -> None:
    accelerator = Accelerator(cpu=True)
    progress = GradientState()
    reset_state()

    with pytest.raises(StateWasReset, match="`AcceleratorState` object has no attribute `noise_is_separate` any more"):
        accelerator.prepare(torch.nn.Linear(1, 1))
    with pytest.raises(AttributeError, match="`GradientState` object has no attribute `sync_gradients` any more"):
        _ = progress.sync_gradients


def test_what_a_state_never_had_is_no_matter_of_resetting() -> None:
    state: Any = PartialState(cpu=True)

    with pytest.raises(AttributeError, match=r"^'PartialState' object has no attribute 'size'$"):
        _ = state.size
    state.size = 3
    assert PartialState().__dict__["size"] == 3


def states_travelled() -> list[bool]:
    accelerator = Accelerator()
    PartialState().debug = True
    again = pickle.loads(pickle.dumps(accelerator))
    copied = copy.deepcopy(accelerator.state)
    copied.idle_devices_told = True
    return [
        again.state.__dict__ is accelerator.state.__dict__,
        again.gradient_state.__dict__ is accelerator.gradient_state.__dict__,
        AcceleratorState().idle_devices_told,
        gather(torch.tensor([again.process_index])).tolist() == [0, 1],
    ]


def test_p07_pickled_states_are_those_of_the_process(run_ranks: RunRanks) -> None:
    assert run_ranks(states_travelled, 2) == [[True] * 4] * 2
