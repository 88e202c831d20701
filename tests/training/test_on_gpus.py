"""The training layer on CUDA with NCCL."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from accel_nb.devices.nvml import load, read_gpus
from accel_nb.errors import TrainingError
from accel_nb.protocol.environment import changed, read_rank
from accel_nb.training.accelerator import Accelerator
from accel_nb.training.choices import DDPCommunicationHookType
from accel_nb.training.operations.collectives import gather, gather_object, reduce
from accel_nb.training.ranks.randomness import set_seed, synchronize_rng_states
from accel_nb.training.ranks.state import PartialState
from accel_nb.training.settings import AutocastKwargs, GradScalerKwargs

from .examples import Numbers, regression_loader, small_model
from .operations.test_collectives import DTYPES, gathered
from .steps.test_stepping import wrapped_with
from .test_accelerator import losses_per_update
from .test_against_accelerate import script
from .test_metrics import metrics_of_cells

RunRanks = Callable[..., list[Any]]

NUM_GPUS = len(read_gpus(load()))  # never torch.cuda: the process that forks ranks must not open it
pytestmark = [pytest.mark.gpu(2), pytest.mark.skipif(NUM_GPUS < 2, reason="needs two GPUs")]


def facts() -> tuple[object, ...]:
    state = PartialState()
    state.wait_for_everyone()
    return (
        state.process_index, state.num_processes, str(state.device), state.distributed_type, state.backend,
        torch.cuda.current_device(), torch.ones(1, device="cuda").device.index,
    )  # fmt: skip


def test_each_rank_has_its_device(run_ranks: RunRanks) -> None:
    assert run_ranks(facts, 2, cpu=False) == [
        (rank, 2, f"cuda:{rank}", "MULTI_GPU", "nccl", rank, rank) for rank in range(2)
    ]


def facts_on_the_other_device() -> tuple[object, ...]:
    rank = read_rank()
    assert rank is not None
    with changed({"ACCELERATE_TORCH_DEVICE": f"cuda:{1 - rank.rank}"}):
        return facts()


def test_a_device_named_by_the_environment_is_used(run_ranks: RunRanks) -> None:
    ranks = run_ranks(facts_on_the_other_device, 2, cpu=False)

    assert [(rank[2], *rank[5:]) for rank in ranks] == [("cuda:1", 1, 1), ("cuda:0", 0, 0)]


def refuses_the_cpu() -> str:
    PartialState()
    try:
        Accelerator(cpu=True)
    except TrainingError as error:
        return str(error)
    return ""


def test_the_cpu_asked_for_too_late_is_refused(run_ranks: RunRanks) -> None:
    messages = run_ranks(refuses_the_cpu, 2, cpu=False)

    assert "rank 1 of 2 already computes on cuda:1 through 'nccl'. Give cpu=True to the first" in messages[1]


ALONE = """
from accel_nb import Accelerator, reset_state
print(Accelerator().device, Accelerator().device, Accelerator(cpu=True).device, Accelerator().device)
reset_state()
print(Accelerator(cpu=True).device)
"""


def test_l12_l16_a_process_that_nobody_launched_says_what_it_leaves_idle() -> None:
    answer = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)

    lines = answer.stdout.splitlines()
    assert f"computes on cuda:0 alone, one of {NUM_GPUS} CUDA devices: no launcher started it." in lines[0]
    assert lines[1].startswith("cpu=True is kept from the Accelerator made before in this process")
    assert lines[2:] == ["cuda:0 cuda:0 cpu cpu", "cpu"]


def leaves_cuda_alone() -> tuple[str, bool]:
    Accelerator().prepare(small_model(), regression_loader(4))
    return str(PartialState().device), torch.cuda.is_initialized()


def test_l17_cpu_ranks_leave_cuda_alone(run_ranks: RunRanks) -> None:
    assert run_ranks(leaves_cuda_alone, 2) == [("cpu", False)] * 2


def too_many() -> str:
    try:
        PartialState()
    except TrainingError as error:
        return str(error)
    return ""


def test_a_rank_without_a_device_of_its_own_is_told(run_ranks: RunRanks) -> None:
    messages = run_ranks(too_many, 1, cpu=False, local_rank=NUM_GPUS)

    told = f"runs {NUM_GPUS + 1} ranks, and this process sees {NUM_GPUS} CUDA devices; each rank takes the one of its"
    assert told in messages[0]


def test_gather_joins_tensors_of_the_cpu_and_the_gpu(run_ranks: RunRanks) -> None:
    for result in run_ranks(gathered, 2, cpu=False):
        for dtype in DTYPES:
            assert torch.equal(result[str(dtype)], torch.tensor([[0, 1], [1, 1]]).to(dtype)), dtype
        assert result["objects"] == [0, {"rank": 0}, 1, {"rank": 1}]


def on_the_gpu() -> tuple[Any, ...]:
    state = PartialState()
    own = torch.tensor([state.process_index], device=state.device)
    everyones, mean = gather(own), reduce(own, "mean")
    set_seed(3 + state.process_index)
    synchronize_rng_states(["cuda", "torch"])
    drawn = torch.rand(2, device=state.device)
    return everyones.tolist(), str(everyones.device), mean.tolist(), drawn.tolist(), gather_object([str(own.device)])


def test_collectives_and_generators_on_the_gpu(run_ranks: RunRanks) -> None:
    first, second = run_ranks(on_the_gpu, 2, cpu=False)

    assert (first[0], first[1], first[2]) == ([0, 1], "cuda:0", [0.5])
    assert (second[0], second[1], second[2]) == ([0, 1], "cuda:1", [0.5])
    assert first[3] == second[3]
    assert first[4] == second[4] == ["cuda:0", "cuda:1"]


def test_d01_every_sample_is_counted_once_and_in_order(run_ranks: RunRanks) -> None:
    for results in run_ranks(metrics_of_cells, 2, 2, cpu=False):
        for (length, batch_size, split, drop_last), seen, _, _ in results:
            step_size = batch_size if split else batch_size * 2
            kept = length // step_size * step_size if drop_last else length
            assert seen == list(range(kept)), (length, batch_size, split, drop_last)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_s10_two_ranks_with_half_the_batch_train_like_one(run_ranks: RunRanks, kind: str) -> None:
    (alone,) = run_ranks(losses_per_update, 1, 16, 20, kind, cpu=False)

    first, second = run_ranks(losses_per_update, 2, 8, 20, kind, cpu=False)
    accumulated, _ = run_ranks(losses_per_update, 2, 4, 20, kind, 2, cpu=False)

    assert first == second
    assert first == pytest.approx(alone, abs=1e-5)
    assert accumulated == pytest.approx(alone, abs=1e-5)


def trained(mixed_precision: str, overflow_at: int | None = None) -> dict[str, Any]:
    accelerator = Accelerator(mixed_precision=mixed_precision, scheduler_steps="per_call")
    model = small_model()
    plain = torch.optim.SGD(model.parameters(), lr=5.0)
    schedule = torch.optim.lr_scheduler.LinearLR(plain, 1.0, 0.0, total_iters=100)
    prepared, optimizer, loader, scheduler = accelerator.prepare(model, plain, regression_loader(4), schedule)
    losses, skipped, norms = [], [], []
    for step, (features, targets) in enumerate(loader):
        outputs = prepared(features)
        # small enough for fp16 from the first step on, scaled by GradScaler's 2**16
        loss = nn.functional.mse_loss(outputs, targets) * (float("inf") if step == overflow_at else 0.01)
        accelerator.backward(loss)
        norm = accelerator.clip_grad_norm_(prepared.parameters(), 0.05)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
        skipped.append(accelerator.optimizer_step_was_skipped)
        norms.append(None if norm is None else norm.item())
    unwrapped = accelerator.unwrap_model(prepared)
    twins = [copy.deepcopy(unwrapped), pickle.loads(pickle.dumps(unwrapped))]
    return {
        "losses": losses, "skipped": skipped, "norms": norms, "rate": scheduler.get_last_lr()[0],
        "dtypes": (outputs.dtype, unwrapped(features).dtype), "device": str(features.device),
        "original": unwrapped is model, "twins": [str(next(twin.parameters()).device) for twin in twins],
        "weights": [parameter.tolist() for parameter in unwrapped.parameters()],
    }  # fmt: skip


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_p07_half_precision_trains_like_full(run_ranks: RunRanks, num_ranks: int, precision: str) -> None:
    full = run_ranks(trained, num_ranks, "no", cpu=False)

    half = run_ranks(trained, num_ranks, precision, cpu=False)

    for rank, (ours, reference) in enumerate(zip(half, full, strict=True)):
        assert ours["losses"] == pytest.approx(reference["losses"], rel=0.05)
        assert ours["norms"] == pytest.approx(reference["norms"], rel=0.1)
        assert ours["skipped"] == [False] * len(ours["skipped"])
        assert ours["dtypes"] == (torch.float32, torch.float32)
        assert ours["device"] == f"cuda:{rank}"
        assert ours["original"]
        assert ours["twins"] == [f"cuda:{rank}"] * 2
        assert ours["weights"] == half[0]["weights"]


def test_a01_a_step_with_infinite_gradients_is_skipped_by_all(run_ranks: RunRanks) -> None:
    first, second = run_ranks(trained, 2, "fp16", 1, cpu=False)

    for result in (first, second):
        assert result["skipped"] == [step == 1 for step in range(8)]
        assert result["rate"] == pytest.approx(5.0 * (1 - 7 / 100))
        assert result["weights"] == first["weights"]


def read_with_workers() -> tuple[list[int], str]:
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(Numbers(10), 2, num_workers=2, pin_memory=True))
    batches = list(loader)
    return torch.cat(batches).tolist(), str(batches[0].device)


def test_pinned_batches_of_workers_arrive_whole(run_ranks: RunRanks) -> None:
    assert run_ranks(read_with_workers, 2, cpu=False) == [
        ([0, 1, 4, 5, 8, 9], "cuda:0"),
        ([2, 3, 6, 7, 0, 1], "cuda:1"),
    ]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return ((torch.full((256,), float(number)), f"s{number}") for number in range(101))


def trained_on_a_stream() -> tuple[list[float], set[str], bool]:
    """Batches travel over gloo while gradients travel over NCCL."""
    accelerator = Accelerator()
    model = nn.Linear(256, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    loader, model, optimizer = accelerator.prepare(DataLoader(Stream(), 4), model, optimizer)
    seen: list[float] = []
    names_fit, devices = True, set()
    for batch, names in loader:
        accelerator.backward(model(batch).mean())
        optimizer.step()
        optimizer.zero_grad()
        names_fit &= list(names) == [f"s{int(number)}" for number in batch[:, 0].tolist()]
        devices.add(str(batch.device))
        seen += accelerator.gather_for_metrics(batch[:, 0]).tolist()
    return seen, devices, names_fit


def test_a_dispatched_stream_meets_no_collective_of_the_training(run_ranks: RunRanks) -> None:
    results = run_ranks(trained_on_a_stream, 2, cpu=False)

    assert results == [([float(number) for number in range(101)], {f"cuda:{rank}"}, True) for rank in range(2)]


@pytest.mark.parametrize("options", [{}, {"mixed_precision": "fp16"}])
def test_the_same_script_with_accelerate_gives_the_same(run_ranks: RunRanks, options: dict[str, Any]) -> None:
    theirs = run_ranks(script, 2, "accelerate", 23, options, cpu=False)

    ours = run_ranks(script, 2, "accel_nb", 23, options, cpu=False)

    for our_rank, their_rank in zip(ours, theirs, strict=True):
        assert our_rank["order"] == their_rank["order"]
        assert our_rank["metrics"] == their_rank["metrics"]
        assert our_rank["rates"] == pytest.approx(their_rank["rates"])
        assert our_rank["losses"] == pytest.approx(their_rank["losses"], rel=1e-3)


def half_precision_by_hand() -> dict[str, Any]:
    handlers = [GradScalerKwargs(init_scale=1024.0, growth_interval=1)]
    accelerator = Accelerator(mixed_precision="fp16", kwargs_handlers=handlers)
    model = small_model()
    prepared, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01, fused=True))
    features = torch.ones(2, 4, device=accelerator.device)
    messages = []
    with accelerator.autocast():
        inside = (features.t() @ features).dtype
        with accelerator.autocast(AutocastKwargs(enabled=False)):
            off = (features.t() @ features).dtype
    accelerator.backward(prepared(features).sum() * float("inf"))
    optimizer.step()
    skipped, scale = optimizer.step_was_skipped, accelerator.scaler.get_scale()  # type: ignore[union-attr]
    optimizer.zero_grad()
    prepared(features).sum().backward()
    try:
        optimizer.step()
    except TrainingError as error:
        messages.append(str(error))
    try:
        accelerator.prepare(nn.Linear(1, 1).half())
    except TrainingError as error:
        messages.append(str(error))
    return {"inside": inside, "off": off, "skipped": skipped, "scale": scale, "messages": messages}


def test_a01_a02_a03_half_precision_says_what_is_wrong(run_ranks: RunRanks) -> None:
    for seen in run_ranks(half_precision_by_hand, 2, cpu=False):
        assert (seen["inside"], seen["off"]) == (torch.float16, torch.float32)
        assert (seen["skipped"], seen["scale"]) == (True, 512.0)
        unscaled, half_weights = seen["messages"]
        assert "Call accelerator.backward(loss) instead of loss.backward()" in unscaled
        assert "2 parameters of Linear are float16, 'weight' first" in half_weights


@pytest.mark.parametrize("hook", [DDPCommunicationHookType.BF16, DDPCommunicationHookType.FP16])
def test_gradients_are_compressed_on_their_way(run_ranks: RunRanks, hook: DDPCommunicationHookType) -> None:
    for seen in run_ranks(lambda: wrapped_with(comm_hook=hook), 2, cpu=False):
        assert seen["gradient"] == pytest.approx(1.5, rel=0.01)
