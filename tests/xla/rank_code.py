"""What ranks do in the tests beside. Imports torch inside functions: the launcher imports this file in the kernel."""

from __future__ import annotations

from typing import Any


def trained() -> list[float]:
    """The losses of a small training with everything prepared."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from accel_nb import Accelerator
    from accel_nb.utils import set_seed

    accelerator = Accelerator(gradient_accumulation_steps=2)
    set_seed(0)
    features = torch.randn(256, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(features, features.sum(1, keepdim=True)), batch_size=32, shuffle=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    losses = []
    for _ in range(2):
        for batch, target in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(batch), target)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather(loss.detach()).mean().item())
    return losses


def trained_by_spmd() -> tuple[list[float], int, set[tuple[Any, ...]]]:
    """Losses, devices, and how the loader's batches were dealt."""
    from torch_xla import runtime
    from torch_xla.distributed import spmd

    runtime.use_spmd()
    dealt = set()
    mark = spmd.mark_sharding

    def noted(tensor: Any, mesh: Any, places: Any) -> Any:  # noqa: ANN401
        dealt.add((tuple(tensor.shape), int(mesh.size()), places))
        return mark(tensor, mesh, places)

    spmd.mark_sharding = noted
    return trained(), runtime.global_runtime_device_count(), dealt


def saved_and_loaded(folder: str) -> dict[str, object]:
    import torch
    from torch import nn

    from accel_nb import Accelerator
    from accel_nb.utils import set_seed

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.other.weight = self.one.weight

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.head(self.other(self.one(features)))
            return output

    accelerator = Accelerator(project_dir=folder)
    set_seed(3)
    model, optimizer = accelerator.prepare(tied := Tied(), torch.optim.Adam(tied.parameters()))
    accelerator.backward(model(torch.ones(2, 4, device=accelerator.device)).sum())
    optimizer.step()
    accelerator.save_state(f"{folder}/here")
    weights = [one.detach().cpu().clone() for one in model.parameters()]
    noise = torch.rand(2, device=accelerator.device).tolist()
    with torch.no_grad():
        for one in model.parameters():
            one.add_(5)
    accelerator.load_state(f"{folder}/here")
    again = [one.detach().cpu() for one in model.parameters()]
    return {
        "weights": all(torch.equal(one, other) for one, other in zip(weights, again, strict=True)),
        "noise": torch.rand(2, device=accelerator.device).tolist() == noise,
        "device": str(next(model.parameters()).device),
        "tied": tied.one.weight is tied.other.weight,
        "safe": sorted(str(one) for one in accelerator.get_state_dict(model)),
    }


def noise() -> tuple[list[float], list[float], list[float]]:
    import torch

    from accel_nb import Accelerator
    from accel_nb.utils import set_seed, synchronize_rng_states

    device = Accelerator().device
    set_seed(7)
    first = torch.rand(3, device=device).tolist()
    set_seed(7)
    synchronize_rng_states(["xla", "torch"])
    return first, torch.rand(3, device=device).tolist(), torch.rand(3, device=device).tolist()


def in_half_precision() -> tuple[str, str]:
    import torch
    from torch import nn

    from accel_nb import Accelerator

    accelerator = Accelerator()
    dtypes = []
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda _module, _inputs, output: dtypes.append(str(output.dtype)))
    output = accelerator.prepare(nn.Sequential(layer))(torch.ones(2, 4, device=accelerator.device))
    return dtypes[0], str(output.dtype)


def place_of(tensor: Any) -> bool:  # noqa: ANN401  a CPU tensor
    """Whether `tensor`'s memory is a mapped memory file, shared with the kernel and other ranks."""
    from pathlib import Path

    address = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, _, end = line.split()[0].partition("-")
        if int(begin, 16) <= address < int(end, 16):
            return "memfd:" in line
    return False


def gives_tensors() -> dict[str, Any]:
    import torch

    from accel_nb import Accelerator

    tensor = torch.arange(6.0, device=Accelerator().device).reshape(2, 3)
    weight = torch.nn.Parameter(tensor + 1)
    optimizer = torch.optim.Adam([weight])
    (weight * 2).sum().backward()
    optimizer.step()
    return {"tensors": [tensor, tensor], "weight": weight, "state": optimizer.state_dict()}


def shows_bars() -> str:
    from tqdm.notebook import tqdm

    from accel_nb import Accelerator

    device = Accelerator().device
    return "".join(str(number) for number in tqdm(range(3))) + str(device)


def shapes_that_never_settle(num_steps: int) -> list[str]:
    """Warnings of a training whose every batch has a shape of its own."""
    import warnings

    import torch
    from torch import nn

    from accel_nb import Accelerator

    accelerator = Accelerator()
    model, optimizer = accelerator.prepare(layer := nn.Linear(2, 1), torch.optim.SGD(layer.parameters(), lr=0.1))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(num_steps):
            accelerator.backward(model(torch.ones(step + 1, 2, device=accelerator.device)).sum())
            optimizer.step()
    return [str(one.message) for one in told if "XLA compiled" in str(one.message)]
