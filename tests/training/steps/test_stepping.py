"""What a training step is made of, besides counting micro-batches."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.utils.data import DataLoader

from accel_nb.errors import TrainingError
from accel_nb.training.accelerator import Accelerator
from accel_nb.training.choices import DDPCommunicationHookType
from accel_nb.training.operations.group_store import group_store, wait_for_keys
from accel_nb.training.ranks.process_group import gloo_changes_timeouts
from accel_nb.training.ranks.randomness import set_seed
from accel_nb.training.ranks.state import PartialState
from accel_nb.training.settings import (
    AutocastKwargs,
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    InitProcessGroupKwargs,
    ProfileKwargs,
)

from ..examples import Numbers, regression_loader, small_model

RunRanks = Callable[..., list[Any]]


def own_gradient(accelerator: Accelerator, model: nn.Module) -> float:
    """After the backward of a loss whose gradient is this rank's number plus one."""
    accelerator.backward(model(torch.full((1, 1), accelerator.process_index + 1.0, device=accelerator.device)).sum())
    (weight,) = model.parameters()
    return weight.grad.item()  # type: ignore[union-attr]


def single_weight() -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def synchronised_late() -> list[float]:
    accelerator = Accelerator()
    model = accelerator.prepare(single_weight())
    with accelerator.no_sync(model):
        first = model(torch.full((1, 1), accelerator.process_index + 1.0)).sum()
        second = model(torch.full((1, 1), accelerator.process_index + 1.0)).sum()
    accelerator.backward(first)
    (weight,) = model.parameters()
    alone = weight.grad.item()
    with accelerator.trigger_sync_in_backward(model):
        accelerator.backward(second)
    return [alone, weight.grad.item()]


def test_backward_can_be_synchronised_after_all(run_ranks: RunRanks) -> None:
    # Each rank adds its own gradient of before, 1 and 2, to its own of now, and both are averaged.
    assert run_ranks(synchronised_late, 2) == [[1.0, 3.0], [2.0, 3.0]]


def gradients_of_micro_batches(plugin: GradientAccumulationPlugin) -> list[float]:
    accelerator = Accelerator(gradient_accumulation_plugin=plugin)
    model = accelerator.prepare(single_weight())
    gradients = []
    for _ in range(2):
        with accelerator.accumulate(model):
            gradients.append(own_gradient(accelerator, model))
    return gradients


def test_gradients_are_averaged_at_the_end_of_the_step_or_at_each_micro_batch(run_ranks: RunRanks) -> None:
    at_the_end = run_ranks(gradients_of_micro_batches, 2, GradientAccumulationPlugin(2))
    each = run_ranks(gradients_of_micro_batches, 2, GradientAccumulationPlugin(2, sync_each_batch=True))

    assert at_the_end == [[0.5, 1.5], [1.0, 1.5]]
    assert each == [[0.75, 1.5], [0.75, 1.5]]


def uneven(even_batches: bool | None, configured: bool) -> tuple[list[int], list[int], float]:
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(even_batches=configured))
    plain = torch.optim.SGD((model := single_weight()).parameters(), lr=1.0)
    model, optimizer, loader = accelerator.prepare(model, plain, DataLoader(Numbers(5), 1))
    seen = []
    with accelerator.join_uneven_inputs([model], even_batches=even_batches):
        for batch in loader:
            accelerator.backward(model(batch.float().reshape(1, 1)).sum())
            optimizer.step()
            optimizer.zero_grad()
            seen.append(int(batch))
    return seen, [int(batch) for batch in loader], next(model.parameters()).item()


def test_d16_ranks_without_batches_wait_for_the_others(run_ranks: RunRanks) -> None:
    (first, later, weight), (second, _, other) = run_ranks(uneven, 2, False, True)

    assert (first, second) == ([0, 2, 4], [1, 3])
    assert later == first
    # The last gradient, 4 of one rank alone, is averaged over both: the other counts as zero (torch's Join).
    assert weight == other == pytest.approx(-(0.5 + 2.5 + 2.0))


def test_d16_loaders_that_are_uneven_already_are_joined(run_ranks: RunRanks) -> None:
    (first, _, _), (second, _, _) = run_ranks(uneven, 2, None, False)

    assert (len(first), len(second)) == (3, 2)


def test_even_batches_need_no_joining(run_ranks: RunRanks) -> None:
    (first, _, _), (second, _, _) = run_ranks(uneven, 2, None, True)

    assert len(first) == len(second) == 3


def joined_over_what_dispatches() -> list[str]:
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    accelerator.prepare(DataLoader(Numbers(4), 1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with accelerator.join_uneven_inputs([], even_batches=False):
            pass
    return [str(one.message) for one in caught]


def test_loaders_whose_evenness_is_fixed_are_told(run_ranks: RunRanks) -> None:
    for messages in run_ranks(joined_over_what_dispatches, 2):
        assert "even_batches=False holds for prepared loaders over map-style datasets alone; 1 of 1" in messages[0]


def test_autocast_obeys_its_settings() -> None:
    off = AutocastKwargs(enabled=False)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")

    with accelerator.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
        with accelerator.autocast(off):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
    with Accelerator(cpu=True, mixed_precision="bf16", kwargs_handlers=[off]).autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
    prepared = Accelerator(cpu=True, mixed_precision="bf16", kwargs_handlers=[off]).prepare(nn.Linear(300, 1))
    nn.init.constant_(prepared.weight, 1.001)
    assert prepared(torch.ones(1, 300)).item() > 300.1
    with Accelerator(cpu=True, mixed_precision="no").autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32


def profiled(folder: str) -> list[str]:
    handler = ProfileKwargs(activities=["cpu"], output_trace_dir=folder)
    accelerator = Accelerator(kwargs_handlers=[handler])
    with accelerator.profile() as profiler:
        torch.ones(4) + 1
    return sorted(path.name for path in Path(folder).iterdir()) + [
        one.key for one in profiler.key_averages() if one.key == "aten::add"
    ]


def test_each_rank_leaves_its_trace(run_ranks: RunRanks, tmp_path: Path) -> None:
    folder = tmp_path / "traces"

    assert run_ranks(profiled, 2, str(folder)) == [["profile_0.json", "profile_1.json", "aten::add"]] * 2


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events at the end of each cycle:UserWarning")
def test_a_profile_follows_its_schedule_and_writes_nothing_unasked(tmp_path: Path) -> None:
    cycles: list[Any] = []
    handler = ProfileKwargs(
        activities=["cpu"], schedule_option={"wait": 1, "warmup": 1, "active": 1, "repeat": 2},
        on_trace_ready=cycles.append,
    )  # fmt: skip

    with contextlib.chdir(tmp_path), Accelerator(cpu=True).profile(handler) as profiler:
        for _ in range(10):
            torch.ones(1) + 1
            profiler.step()

    assert len(cycles) == 2
    assert list(tmp_path.iterdir()) == []


def test_memory_is_freed_and_nothing_is_kept() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = small_model()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(plain)
    prepared = accelerator.prepare(model, plain, regression_loader(8), scheduler)
    with accelerator.accumulate(model):
        pass

    assert accelerator.free_memory(*prepared) == [None] * 4

    assert accelerator.update_count == 0
    synchronises = [accelerator.sync_gradients]  # a loop that does not accumulate steps at once
    with accelerator.accumulate(model):
        synchronises.append(accelerator.sync_gradients)
    assert synchronises == [True, False]
    assert accelerator.clear(model, plain) == [None, None]


def forgotten(*kinds: str) -> list[str]:
    accelerator = Accelerator()
    model = single_weight()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule: Any = torch.optim.lr_scheduler.ConstantLR(optimizer)
    loader: Any = DataLoader(Numbers(4), 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if "model" not in kinds:
            model = accelerator.prepare(model)
        if "optimizer" not in kinds:
            optimizer = accelerator.prepare(optimizer)
        if "loader" not in kinds:
            loader = accelerator.prepare(loader)
        schedule = accelerator.prepare(schedule)
        for batch in loader:
            accelerator.backward(model(batch.float().reshape(1, 1)).sum())
            optimizer.step()
            schedule.step()
    told_in_backward = [one for one in caught if "ConstantLR" not in str(one.message)]
    assert {one.filename for one in told_in_backward} <= {__file__}, "the line of the user"
    return [f"{one.category.__name__}: {one.message}" for one in caught]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("model", "SGD trains a model that was not prepared: its gradients are not averaged over the 2 ranks."),
        ("loader", "no DataLoader was prepared: unless data are shared out by other means, all 2 ranks read all."),
    ],
)
def test_s12_what_was_not_prepared_is_told_once(run_ranks: RunRanks, kind: str, words: str) -> None:
    for messages in run_ranks(forgotten, 2, kind):
        (message,) = messages
        assert message == f"UnpreparedWarning: {words} Give it to accelerator.prepare."


def test_s12_an_optimizer_that_was_not_prepared_is_told_to_its_schedule_too(run_ranks: RunRanks) -> None:
    for messages in run_ranks(forgotten, 2, "optimizer"):
        of_schedule, of_model = messages
        assert "ConstantLR sets the learning rate of SGD, an optimizer that was not prepared" in of_schedule
        assert "the optimizer of Linear was not prepared" in of_model


def head_only() -> list[str]:
    accelerator = Accelerator()
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model[1].parameters(), lr=1.0), DataLoader(Numbers(4), 1)
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in loader:
            accelerator.backward(model(batch.float().reshape(1, 1)).sum())
            optimizer.step()
    return [str(one.message) for one in caught]


def test_s12_parameters_that_nobody_steps_are_no_forgotten_optimizer(run_ranks: RunRanks) -> None:
    assert run_ranks(head_only, 2) == [[], []]


def test_s12_nothing_is_told_when_all_is_prepared(run_ranks: RunRanks) -> None:
    assert run_ranks(forgotten, 2) == [[], []]


def test_a_loss_that_got_lost_is_told() -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(single_weight())

    with pytest.raises(TypeError, match=r"^backward was given None instead of a loss.* when they are given labels"):
        accelerator.backward(None)  # type: ignore[arg-type]
    with torch.no_grad():
        loss = model(torch.ones(1, 1)).sum()
    with pytest.raises(ValueError, match=r"^backward was given a loss that depends on no trainable.*no_grad\(\)"):
        accelerator.backward(loss)


def waited(timeout_s: float, *, group_is_open: bool) -> float:
    """How long rank 0 waits for a rank that never comes."""
    handler = InitProcessGroupKwargs(timeout=timedelta(seconds=timeout_s))
    if group_is_open:
        set_seed(1)
        PartialState()
    accelerator = Accelerator(kwargs_handlers=[handler])
    store = group_store()
    assert store is not None
    begin = time.monotonic()
    if accelerator.is_main_process:
        with contextlib.suppress(RuntimeError):
            distributed.all_reduce(torch.ones(1))
        store.set("over", "")
    else:
        wait_for_keys(store, ["over"], timeout_s=5 * timeout_s)
    return time.monotonic() - begin


@pytest.mark.parametrize(
    "group_is_open",
    [
        False,
        pytest.param(
            True, marks=pytest.mark.skipif(not gloo_changes_timeouts(), reason="gloo of torch < 2.9 keeps its timeout")
        ),
    ],
)
def test_k05_a_dead_lock_ends_at_the_timeout(run_ranks: RunRanks, *, group_is_open: bool) -> None:
    # Opening the group must take less than this on a busy machine, too.
    seconds = run_ranks(lambda: waited(7.0, group_is_open=group_is_open), 2)[0]

    assert 5 < seconds < 25


def refused_settings() -> list[str]:
    PartialState()
    messages = []
    for handler in (InitProcessGroupKwargs(backend="nccl2"), InitProcessGroupKwargs(init_method="tcp://host:1")):
        try:
            Accelerator(kwargs_handlers=[handler])
        except TrainingError as error:
            messages.append(str(error))
    Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
    return messages


def test_k05_settings_that_come_too_late_are_refused(run_ranks: RunRanks) -> None:
    for backend, init_method in run_ranks(refused_settings, 2):
        assert backend.startswith("backend='nccl2' was asked for, but the process group is open already, with 'gloo'.")
        assert init_method.startswith("init_method='tcp://host:1' was asked for, but the process group is open already")


def met_elsewhere(folder: str) -> tuple[int, int]:
    state = PartialState(init_method=f"file://{folder}/meeting")
    state.wait_for_everyone()
    return state.process_index, state.num_processes


def test_ranks_can_meet_at_a_file(run_ranks: RunRanks, tmp_path: Path) -> None:
    assert run_ranks(met_elsewhere, 2, str(tmp_path)) == [(0, 2), (1, 2)]


def wrapped_with(**settings: Any) -> dict[str, Any]:  # noqa: ANN401
    accelerator = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(**settings)])
    model = accelerator.prepare(single_weight())
    gradient = own_gradient(accelerator, model)
    return {
        "bucket": model.bucket_bytes_cap // 2**20,
        "views": model.gradient_as_bucket_view,
        "buffers": model.broadcast_buffers,
        "gradient": gradient,
    }


def test_the_wrapper_obeys_its_settings(run_ranks: RunRanks) -> None:
    for seen in run_ranks(lambda: wrapped_with(bucket_cap_mb=15, gradient_as_bucket_view=True), 2):
        assert seen == {"bucket": 15, "views": True, "buffers": True, "gradient": 1.5}


@pytest.mark.parametrize(
    "hook",
    [
        {"comm_hook": DDPCommunicationHookType.FP16},
        {
            "comm_hook": DDPCommunicationHookType.POWER_SGD, "comm_wrapper": DDPCommunicationHookType.FP16,
            "comm_state_option": {"matrix_approximation_rank": 1, "start_powerSGD_iter": 2},
        },
        {
            "comm_hook": DDPCommunicationHookType.BATCHED_POWER_SGD,
            "comm_state_option": {"start_powerSGD_iter": 2},
        },
    ],
)  # fmt: skip
def test_gradients_are_averaged_through_hooks(run_ranks: RunRanks, hook: dict[str, Any]) -> None:
    for seen in run_ranks(lambda: wrapped_with(**hook), 2):
        assert seen["gradient"] == pytest.approx(1.5, rel=0.01)
