from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from accel_nb.errors import TrainingError
from accel_nb.training.accelerator import Accelerator
from accel_nb.training.models.compilation import compile_regions, has_compiled_regions, is_compiled_module
from accel_nb.training.models.unwrapping import extract_model_from_parallel
from accel_nb.training.settings import TorchDynamoPlugin

RunRanks = Callable[..., list[Any]]

# torch's compiler looks at the gradients of what one compiled block gives the next
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])
        self.head = nn.Linear(3, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            features = block(features)
        output: torch.Tensor = self.head(features)
        return output


def trained(options: dict[str, Any], *, regional: bool = False) -> dict[str, Any]:
    """One step of a model that torch compiles with a backend that runs the graph as it is."""
    plugin = TorchDynamoPlugin(backend="eager", use_regional_compilation=regional)
    accelerator = Accelerator(dynamo_plugin=plugin, **options)
    model = Stack()
    names = list(model.state_dict())
    reference = Stack()(torch.ones(2, 3))
    prepared, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    output = prepared(torch.ones(2, 3))
    accelerator.backward(output.sum())
    optimizer.step()
    bare = accelerator.unwrap_model(prepared, keep_torch_compile=False)
    kept = accelerator.unwrap_model(prepared)
    return {
        "output": torch.allclose(output, reference, atol=0.05),
        "dtype": output.dtype,
        "trained": model.head.weight.grad is not None,
        "bare": bare is model,
        "kept": is_compiled_module(kept) or has_compiled_regions(kept),
        "names": list(accelerator.get_state_dict(prepared)) == names,
        "still_prepared": prepared(torch.ones(2, 3)).requires_grad and accelerator.prepare(prepared) is prepared,
    }


@pytest.mark.parametrize("regional", [False, True])
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_compiled_models_train_and_are_unwrapped(precision: str, *, regional: bool) -> None:
    seen = trained({"cpu": True, "mixed_precision": precision}, regional=regional)

    assert seen.pop("dtype") is torch.float32
    assert set(seen.values()) == {True}


def test_compiled_models_train_on_ranks(run_ranks: RunRanks) -> None:
    for seen in run_ranks(trained, 2, {"mixed_precision": "bf16"}):
        assert seen.pop("dtype") is torch.float32
        assert set(seen.values()) == {True}


def accumulated(*, regional: bool) -> float:
    accelerator = Accelerator(
        dynamo_plugin=TorchDynamoPlugin(backend="eager", use_regional_compilation=regional),
        gradient_accumulation_steps=2,
    )
    model = Stack()
    prepared, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with accelerator.accumulate(prepared):
        accelerator.backward((accelerator.process_index + 1) * 2 * prepared(torch.ones(1, 3)).sum())
    assert model.head.bias.grad is not None
    return model.head.bias.grad.item()


@pytest.mark.parametrize("regional", [False, True])
def test_compiled_models_accumulate_on_each_rank_by_itself(run_ranks: RunRanks, *, regional: bool) -> None:
    assert run_ranks(partial(accumulated, regional=regional), 2) == [1.0, 2.0]


def uneven() -> int:
    accelerator = Accelerator(dynamo_plugin=TorchDynamoPlugin(backend="eager"))
    model = Stack()
    prepared, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    num_batches = 1 + accelerator.process_index
    with accelerator.join_uneven_inputs([prepared], even_batches=False):
        for _ in range(num_batches):
            accelerator.backward(prepared(torch.ones(1, 3)).sum())
    return num_batches


@pytest.mark.filterwarnings("ignore")
def test_compiled_models_join_uneven_inputs(run_ranks: RunRanks) -> None:
    assert run_ranks(uneven, 2) == [1, 2]


def test_a_model_that_is_compiled_already_is_not_compiled_again() -> None:
    model = torch.compile(Stack(), backend="eager")

    assert Accelerator(cpu=True, dynamo_backend="aot_eager").prepare(model) is model


def test_a_backend_that_is_not_installed_is_refused() -> None:
    with pytest.raises(TrainingError, match=r"dynamo backend 'fx2trt' is not installed; torch \S+ has .*'inductor'"):
        Accelerator(cpu=True, dynamo_backend="fx2trt").prepare(Stack())


def test_repeated_blocks_are_compiled_one_by_one() -> None:
    model = Stack()

    twin: Any = compile_regions(model, backend="eager")

    assert [is_compiled_module(one) for one in twin.blocks] == [True] * 3
    assert is_compiled_module(twin.head)
    assert has_compiled_regions(twin)
    assert not any(is_compiled_module(one) for one in model.modules())
    assert torch.equal(twin(torch.ones(1, 3)), model(torch.ones(1, 3)))
    assert is_compiled_module(compile_regions(nn.Linear(1, 1), backend="eager"))


def test_a_model_wrapped_by_hand_and_then_compiled_is_unwrapped() -> None:
    model = nn.Linear(1, 1)
    compiled: Any = torch.compile(nn.DataParallel(model), backend="eager")
    accelerator = Accelerator(cpu=True)

    kept: Any = accelerator.unwrap_model(compiled)

    assert kept._orig_mod is model
    assert accelerator.unwrap_model(compiled, keep_torch_compile=False) is model
    assert isinstance(compiled._orig_mod, nn.DataParallel)


def test_a04_unwrapping_may_keep_the_precision() -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = nn.Linear(300, 1, bias=False)
    nn.init.constant_(model.weight, 1.001)  # 1 in bfloat16
    prepared = accelerator.prepare(model)

    kept = accelerator.unwrap_model(prepared, keep_fp32_wrapper=True)

    assert kept(torch.ones(1, 300)).item() == 300.0
    assert accelerator.unwrap_model(prepared)(torch.ones(1, 300)).item() == pytest.approx(300.3)
    assert accelerator.unwrap_model(kept) is model


def test_parts_that_are_wrapped_can_be_unwrapped_where_they_are() -> None:
    inner = nn.Linear(1, 1)
    model = nn.Sequential(nn.DataParallel(inner))

    assert isinstance(extract_model_from_parallel(model)[0], nn.DataParallel)  # type: ignore[index]
    assert extract_model_from_parallel(model, recursive=True)[0] is inner  # type: ignore[index]
