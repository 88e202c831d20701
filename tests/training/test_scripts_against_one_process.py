"""Twenty-odd small training scripts, one for each case of users, beside a plain loop in one process.

A script trains through an `Accelerator` on one or two ranks and gives the loss of each update. The plain loop is told
only which samples belong to each update. All scripts of a number of ranks run in one launch.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from accel_nb.training.accelerator import Accelerator
from accel_nb.training.ranks.state import reset_state
from accel_nb.training.settings import DataLoaderConfiguration, GradientAccumulationPlugin

from .examples import NUM_FEATURES, regression_data, small_model
from .rank_factory import RankFactory

LENGTH = 24
GLOBAL_BATCH = 8
Script = Callable[[], list[float]]


def batched(items: Iterable[Any], size: int) -> list[list[Any]]:
    given = list(items)
    return [given[start : start + size] for start in range(0, len(given), size)]


class Numbered(Dataset[dict[str, Any]]):
    """Sample i of the regression data, with a name that is no tensor and a mask of tokens that count."""

    def __init__(self, length: int = LENGTH) -> None:
        self.data = regression_data(LENGTH)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        features, target = self.data[index]
        return {"features": features, "target": target, "name": f"sample {index}", "index": index}


class Streamed(IterableDataset[dict[str, Any]]):
    def __init__(self, length: int = LENGTH) -> None:
        self.samples = Numbered(length)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.samples[index] for index in range(len(self.samples)))


@dataclass(frozen=True)
class Case:
    """A script, and what the plain loop must do to give the same losses."""

    script: Script
    updates: Sequence[Sequence[int]]
    """Samples of each update."""
    reference: dict[str, Any] = field(default_factory=dict)
    """Arguments of `plain`."""


CASES: dict[str, Case] = {}


def case(name: str, updates: Sequence[Sequence[int]], **reference: Any) -> Callable[[Script], Script]:  # noqa: ANN401
    def keep(script: Script) -> Script:
        CASES[name] = Case(script, updates, reference)
        return script

    return keep


def in_order(length: int = LENGTH, size: int = GLOBAL_BATCH, epochs: int = 1) -> list[list[int]]:
    return batched(range(length), size) * epochs


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch["features"]), batch["target"])


def plain(
    updates: Sequence[Sequence[int]], *, clip: float | None = None, gamma: float | None = None,
    losses: Callable[[nn.Module, dict[str, Any]], torch.Tensor] = loss_of,
) -> list[float]:  # fmt: skip
    """The loss of each update of a loop without any library."""
    model, data = small_model(), Numbered()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma or 1.0)
    seen = []
    for samples in updates:
        batch = torch.utils.data.default_collate([data[index] for index in samples])
        loss = losses(model, batch)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        seen.append(loss.item())
    return seen


class Training:
    """What most scripts do: micro-batches in, one loss per update out, over all ranks."""

    def __init__(self, accelerator: Accelerator, *others: Any) -> None:  # noqa: ANN401
        self.accelerator = accelerator
        model = small_model()
        self.model, self.optimizer, *self.others = accelerator.prepare(model, sgd(model), *others)
        self.losses: list[float] = []
        self._micro: list[torch.Tensor] = []

    def step(self, batch: dict[str, Any], clip: float | None = None, scheduler: Any = None) -> None:  # noqa: ANN401
        with self.accelerator.accumulate(self.model):
            loss = loss_of(self.model, batch)
            self.accelerator.backward(loss)
            if clip is not None:
                self.accelerator.clip_grad_norm_(self.model.parameters(), clip)
            self.optimizer.step()
            if scheduler is not None:
                scheduler.step()
            self.optimizer.zero_grad()
        self._micro.append(loss.detach())
        if self.accelerator.sync_gradients:
            self.losses.append(self.accelerator.reduce(torch.stack(self._micro).mean(), "mean").item())
            self._micro.clear()


def per_rank(accelerator: Accelerator, micro_batches: int = 1) -> int:
    return GLOBAL_BATCH // accelerator.num_processes // micro_batches


@case("s01_schedule", in_order(epochs=2), gamma=0.5)
def schedule() -> list[float]:
    accelerator = Accelerator(scheduler_steps="per_call")
    model = small_model()
    plain_optimizer = sgd(model)
    scheduler: Any = torch.optim.lr_scheduler.ExponentialLR(plain_optimizer, 0.5)
    loader = DataLoader(Numbered(), per_rank(accelerator))
    scheduler, loader, optimizer, model = accelerator.prepare(scheduler, loader, plain_optimizer, model)
    losses = []
    for _ in range(2):
        for batch in loader:
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
    return losses


@case("s03_validation_inside", in_order(epochs=2))
def validation_inside() -> list[float]:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    training = Training(
        accelerator, DataLoader(Numbered(), per_rank(accelerator, 2)), DataLoader(Numbered(5), 2)
    )  # fmt: skip
    loader, validation = training.others
    for _ in range(2):
        for number, batch in enumerate(loader):
            training.step(batch)
            training.model.eval()
            for position, held_out in enumerate(validation):
                accelerator.gather_for_metrics(loss_of(training.model, held_out).detach().reshape(1))
                if position == number % 2:
                    break
            training.model.train()
    return training.losses


@case("s04_batches_cut_into_pieces", in_order(epochs=2))
def cut_into_pieces() -> list[float]:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    training = Training(accelerator, DataLoader(Numbered(), per_rank(accelerator)))
    for _ in range(2):
        for batch in training.others[0]:
            size = per_rank(accelerator, 2)
            pieces = [{key: batch[key][start : start + size] for key in ("features", "target")} for start in (0, size)]
            for piece in pieces:
                training.step(piece)
    assert accelerator.update_count == len(training.losses)
    return training.losses


@case("s04_nobody_prepared_the_loader", in_order(20, 16))
def unprepared_loader() -> list[float]:
    accelerator = Accelerator(gradient_accumulation_steps=4)
    training = Training(accelerator)
    own = batched(range(20), 4)
    data = Numbered()
    size = 4 // accelerator.num_processes
    begin = accelerator.process_index * size
    for samples in accelerator.micro_batches(own):
        training.step(torch.utils.data.default_collate([data[index] for index in samples[begin : begin + size]]))
    return training.losses


@case("s05_tail", [*in_order(16), *in_order(24)[2:]])
def tail() -> list[float]:
    accelerator = Accelerator(gradient_accumulation_steps=4)
    training = Training(accelerator, DataLoader(Numbered(), per_rank(accelerator, 4)))
    for batch in training.others[0]:
        training.step(batch)
    return training.losses


@case("s05_short_tail", [range(16), range(16, 24)])
def short_tail() -> list[float]:
    accelerator = Accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(4, sync_each_batch=True))
    training = Training(accelerator, DataLoader(Numbered(), per_rank(accelerator, 2)))
    for batch in training.others[0]:
        training.step(batch)
    return training.losses


def weight_of(batch: dict[str, Any]) -> torch.Tensor:
    weight: torch.Tensor = (batch["index"] % 3 + 1).float()
    return weight


def weighted(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """Each sample counts as many times as it has tokens."""
    errors = (model(batch["features"]) - batch["target"]).square().reshape(-1)
    mean: torch.Tensor = (errors * weight_of(batch)).sum() / weight_of(batch).sum()
    return mean


@case("s06_token_weighted", in_order(epochs=2), losses=weighted)
def token_weighted() -> list[float]:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    training = Training(accelerator, DataLoader(Numbered(), per_rank(accelerator, 2)))
    losses = []
    for _ in range(2):
        windows = accelerator.accumulation_windows(training.others[0], lambda batch: weight_of(batch).sum())
        for window, num_tokens in windows:
            sums = []
            for batch in window:
                with accelerator.accumulate(training.model):
                    sums.append(weighted(training.model, batch) * weight_of(batch).sum())
                    accelerator.backward(sums[-1], num_items=num_tokens)
                    training.optimizer.step()
                    training.optimizer.zero_grad()
            losses.append((accelerator.reduce(torch.stack(sums).sum().detach(), "sum") / num_tokens).item())
    return losses


@case("s07_clipping", in_order(epochs=2), clip=0.3)
def clipping() -> list[float]:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    training = Training(accelerator, DataLoader(Numbered(), per_rank(accelerator, 2)))
    for _ in range(2):
        for batch in training.others[0]:
            training.step(batch, clip=0.3)
    return training.losses


@case("s08_two_models", in_order(epochs=2))
def two_models() -> list[float]:
    """Two models and optimizers that step in turns within one micro-batch; both train as one would alone."""
    accelerator = Accelerator(gradient_accumulation_steps=2)
    models = small_model(), small_model()
    prepared = accelerator.prepare(*models, *map(sgd, models), DataLoader(Numbered(), per_rank(accelerator, 2)))
    first, second, *optimizers, loader = prepared
    seen: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
    for _ in range(2):
        for batch in loader:
            with accelerator.accumulate(first, second):
                for model, optimizer, losses in zip((first, second), optimizers, seen, strict=True):
                    loss = loss_of(model, batch)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                    losses.append(loss.detach())
    assert [one.item() for one in seen[0]] == [one.item() for one in seen[1]]
    return [accelerator.reduce(torch.stack(pair).mean(), "mean").item() for pair in batched(seen[0], 2)]


@case("s10_half_the_batch", in_order(epochs=3))
def half_the_batch() -> list[float]:
    accelerator = Accelerator()
    training = Training(accelerator, DataLoader(Numbered(), per_rank(accelerator)))
    for _ in range(3):
        for batch in training.others[0]:
            training.step(batch)
    return training.losses


class Scaled(nn.Module):
    """Knows things that the loop asks it for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = small_model()
        self.scale = 1.0
        self.num_features = NUM_FEATURES

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layers(features)
        return output


@case("s11_attributes", in_order())
def attributes() -> list[float]:
    accelerator = Accelerator()
    model: Any = Scaled()
    model, optimizer, loader = accelerator.prepare(model, sgd(model), DataLoader(Numbered(), per_rank(accelerator)))
    losses = []
    for batch in loader:
        assert batch["features"].shape[1] == model.num_features
        loss = loss_of(model, batch) * model.scale
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
    return losses


@case("s12_prepared_one_by_one", in_order(epochs=2), gamma=0.5)
def one_by_one() -> list[float]:
    accelerator = Accelerator(scheduler_steps="per_call", gradient_accumulation_steps=2)
    training = Training(accelerator)
    scheduler = accelerator.prepare(torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.5))
    loader = accelerator.prepare_data_loader(DataLoader(Numbered(), per_rank(accelerator, 2)))
    for _ in range(2):
        for batch in loader:
            training.step(batch, scheduler=scheduler)
    return training.losses


def evaluated(loader: Any, accelerator: Accelerator) -> list[float]:  # noqa: ANN401
    """The squared error of every sample, in order, by a model that is not trained."""
    model = accelerator.prepare_model(small_model(), evaluation_mode=True)
    errors: list[float] = []
    with torch.no_grad():
        for batch in loader:
            error = (model(batch["features"]) - batch["target"]).square().reshape(-1)
            errors += accelerator.gather_for_metrics(error).tolist()
    return errors


class Untrained(list[list[int]]):
    """Samples, each by itself, whose losses are those of the model as it begins."""


@case("d01_each_sample_is_counted_once", Untrained([[index] for index in range(23)]))
def counted_once() -> list[float]:
    accelerator = Accelerator()
    return evaluated(accelerator.prepare(DataLoader(Numbered(23), 3)), accelerator)


@case("d02_an_even_end_is_kept", Untrained([[index] for index in range(24)]))
def even_end() -> list[float]:
    accelerator = Accelerator()
    return evaluated(accelerator.prepare(DataLoader(Numbered(24), 4)), accelerator)


@case("d05_names_travel_with_samples", Untrained([[index] for index in range(13)]))
def names() -> list[float]:
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(Numbered(13), 2))
    gathered = [name for batch in loader for name in accelerator.gather_for_metrics(batch["name"])]
    assert gathered == [f"sample {index}" for index in range(13)]
    return evaluated(loader, accelerator)


def dispatched(accelerator: Accelerator, **arguments: Any) -> list[float]:  # noqa: ANN401
    training = Training(accelerator, DataLoader(Streamed(), **arguments))
    for batch in training.others[0]:
        training.step(batch)
    return training.losses


@case("d06_streams_are_dispatched", in_order())
def streams() -> list[float]:
    accelerator = Accelerator()
    return dispatched(accelerator, batch_size=per_rank(accelerator))


@case("d07_dispatched_with_names", in_order())
def dispatched_with_names() -> list[float]:
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    training = Training(accelerator, DataLoader(Numbered(), per_rank(accelerator)))
    for batch in training.others[0]:
        assert batch["name"] == [f"sample {index}" for index in batch["index"].tolist()]
        training.step(batch)
    return training.losses


@case("d08_dispatched_without_the_rest", in_order()[:2])
def without_the_rest() -> list[float]:
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    training = Training(accelerator, DataLoader(Numbered(22), per_rank(accelerator), drop_last=True))
    for batch in training.others[0]:
        training.step(batch)
    # Rank by rank, a step is either whole or left out.
    return training.losses[:2]


@case("d09_d13_split_batches", in_order(epochs=2))
def split_batches() -> list[float]:
    accelerator = Accelerator(split_batches=True)
    training = Training(accelerator, DataLoader(Numbered(), GLOBAL_BATCH))
    for _ in range(2):
        for batch in training.others[0]:
            assert len(batch["target"]) == per_rank(accelerator)
            training.step(batch)
    return training.losses


@case("d11_streams_are_shared_out", in_order())
def shared_streams() -> list[float]:
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    return dispatched(accelerator, batch_size=per_rank(accelerator))


BACKWARDS = batched(reversed(range(LENGTH)), GLOBAL_BATCH)


@case("d14_own_batch_sampler", BACKWARDS)
def own_batch_sampler() -> list[float]:
    accelerator = Accelerator()
    sampler = BatchSampler(list(reversed(range(LENGTH))), per_rank(accelerator), drop_last=False)
    training = Training(accelerator, DataLoader(Numbered(), batch_sampler=sampler))
    for batch in training.others[0]:
        training.step(batch)
    return training.losses


def shuffled() -> list[list[int]]:
    generator = torch.Generator().manual_seed(17)
    loader: DataLoader[int] = DataLoader(range(LENGTH), GLOBAL_BATCH, shuffle=True, generator=generator)  # type: ignore[arg-type]
    return [batch.tolist() for _ in range(2) for batch in loader]


@case("d15_shuffled", shuffled())
def shuffling() -> list[float]:
    accelerator = Accelerator()
    generator = torch.Generator().manual_seed(17)
    loader = DataLoader(Numbered(), per_rank(accelerator), shuffle=True, generator=generator)
    training = Training(accelerator, loader)
    for _ in range(2):
        for batch in training.others[0]:
            training.step(batch)
    return training.losses


@case("d16_uneven_ends_are_joined", in_order(16))
def uneven_ends() -> list[float]:
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(even_batches=False))
    training = Training(accelerator, DataLoader(Numbered(20), per_rank(accelerator)))
    model, optimizer = training.model, training.optimizer
    own = []
    with accelerator.join_uneven_inputs([model]):
        for batch in training.others[0]:
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            own.append(loss.detach())
    return [accelerator.reduce(loss, "mean").item() for loss in own[:2]]


def all_scripts() -> dict[str, list[float] | str]:
    """What each script gave on this rank: losses, or the traceback of what it raised."""
    answers: dict[str, list[float] | str] = {}
    for name, one in CASES.items():
        try:
            answers[name] = one.script()
        except Exception:  # noqa: BLE001  it is the answer
            answers[name] = traceback.format_exc()
        reset_state()
    return answers


@pytest.fixture(scope="module")
def answers(_rank_factory: RankFactory) -> dict[int, list[dict[str, list[float] | str]]]:
    """By number of ranks, what each rank's scripts gave."""
    return {num_ranks: _rank_factory.run(all_scripts, num_ranks) for num_ranks in (1, 2)}


def reference(one: Case) -> list[float]:
    if not isinstance(one.updates, Untrained):
        return plain(one.updates, **one.reference)
    return [plain([samples])[0] for samples in one.updates]


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_a_script_gives_the_losses_of_one_plain_process(
    answers: dict[int, list[dict[str, list[float] | str]]], name: str, num_ranks: int
) -> None:
    for of_rank in answers[num_ranks]:
        losses = of_rank[name]
        assert not isinstance(losses, str), losses
        assert losses == pytest.approx(reference(CASES[name]), abs=1e-5)


def test_there_are_twenty_scripts() -> None:
    assert len(CASES) >= 20
