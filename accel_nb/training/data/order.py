"""What decides the order of the data: the sampler's generator, epoch numbers, seeds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from ..operations.collectives import broadcast
from ..ranks.randomness import draw_seed, synchronize_rng_states
from .batch_sampler import WRAPPERS


@runtime_checkable
class HasEpoch(Protocol):
    """A sampler or dataset whose order depends on an epoch number, as torch's DistributedSampler."""

    def set_epoch(self, epoch: int) -> object: ...


@runtime_checkable
class HasState(Protocol):
    """A sampler that keeps a state of its own, as torchdata's."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...


class SeedableRandomSampler(RandomSampler):
    """A RandomSampler whose order depends only on a seed and the number of the pass.

    Arguments are RandomSampler's, and `data_seed`; None: torch's seed at the time.
    """

    def __init__(self, *args: Any, data_seed: int | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **kwargs)
        self.initial_seed: int = torch.random.initial_seed() if data_seed is None else data_seed
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        if self.generator is None:
            self.generator = torch.Generator()
        self.generator.manual_seed((self.epoch + self.initial_seed) % 2**63)
        yield from super().__iter__()
        self.epoch += 1

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be number `epoch`."""
        self.epoch = epoch


class DataOrder:
    """Knows the parts of one loader that decide its order.

    `generator`: the one that the sampler draws from; None: it has none. `is_ours`: we gave it to the sampler.
    """

    def __init__(self, loader: DataLoader[Any], generator: torch.Generator | None, *, is_ours: bool = False) -> None:
        self.generator = generator
        self.seed: int | None = None
        """Of this pass, for a sampler that draws from the process's own generators. Alike on all ranks."""
        self._parts = tuple(_parts_of(loader))
        # Asked once: a protocol's check takes longer than reading a small batch.
        self._with_epoch = [part for part in self._parts if isinstance(part, HasEpoch)]
        self._with_state = [part for part in self._parts[:-1] if isinstance(part, HasState)]
        self._workers_generator = loader.generator
        self._is_ours = is_ours
        self._seed_given = 0
        """The user's own seed of the generator, once `choose_epoch` needed it."""
        self._chosen_seed: int | None = None
        """What `choose_epoch` seeded the generator with last."""

    def __str__(self) -> str:
        """What gives the indices, and whether it shuffles them."""
        if len(self._parts) == 1:
            return "order of the dataset"
        innermost = self._parts[-2]
        return type(innermost).__name__ + (" (shuffles)" if hasattr(innermost, "generator") else "")

    def choose_epoch(self, epoch: int) -> None:
        """The next pass is number `epoch`, because the user says so: its order depends on it and the seed alone."""
        self._tell_epoch(epoch)
        if any(part is not self._parts[-1] for part in self._with_epoch):
            return
        if self.generator is None:
            self.generator = self._give_generator()
        if self.generator is not None:
            self._chosen_seed = (self._first_seed() + epoch) % 2**63
            self.generator.manual_seed(self._chosen_seed)

    def begin(self, epoch: int, resumed: Mapping[str, Any] | None) -> None:
        """A pass begins, numbered `epoch`; `resumed`: the `state` that it began with when it was interrupted."""
        self.seed = None
        if resumed is not None:
            self._restore(resumed)
        self._tell_epoch(epoch)

    def agree(self, rng_types: Collection[str], epoch: int) -> int:
        """All ranks together: take over the main process's order, and the generators named by `rng_types`.

        `epoch` is this rank's number of the pass; gives that of all, where the order depends on it.
        """
        # The order of the data is shared whatever else is: otherwise the ranks' shares would overlap.
        synchronize_rng_states({*rng_types, "generator"}, self.generator)
        for part in self._parts:
            if isinstance(part, SeedableRandomSampler):
                part.initial_seed, epoch = broadcast(torch.tensor([part.initial_seed % 2**63, epoch])).tolist()
                part.set_epoch(epoch)
        return epoch

    def agree_on_seed(self) -> int | None:
        """All ranks together: the `seed` of this pass; None for a sampler that does not need it: it draws from a
        generator of its own, or does not draw at all.
        """
        known = SequentialSampler | SeedableRandomSampler
        if self.generator is not None or any(isinstance(part, known) for part in self._parts):
            return None
        drawn = draw_seed(None)  # also where a state says the seed: what is drawn after it is then the same
        if self.seed is None:
            self.seed = int(broadcast(torch.tensor(drawn)).item())
        return self.seed

    def state(self) -> dict[str, Any]:
        """What `begin` needs to give the coming pass the same order again."""
        return {
            "generator": None if self.generator is None else self.generator.get_state(),
            "workers_generator": None if self._workers_generator is None else self._workers_generator.get_state(),
            "seed": self.seed,
            "initial_seeds": [part.initial_seed for part in self._parts if isinstance(part, SeedableRandomSampler)],
            "samplers": [part.state_dict() for part in self._with_state],
        }

    def seed_to_be_drawn(self) -> int | None:
        """With which seed torch's RandomSampler will order this pass in one process, where it draws one if nobody gave
        it a generator. None: there is no such sampler.
        """
        draws = any(type(part) is RandomSampler and part.generator is None for part in self._parts)
        if self.generator is not None or not draws:
            return None
        before = torch.get_rng_state()
        if self._workers_generator is None:
            draw_seed(None)  # that of the workers comes first
        seed = draw_seed(None)
        torch.set_rng_state(before)
        return seed

    def _restore(self, state: Mapping[str, Any]) -> None:
        if state["generator"] is not None:
            if self.generator is None:
                self.generator = self._give_generator()
            if self.generator is not None:
                self.generator.set_state(state["generator"])
        elif self.generator is not None and state.get("drawn_seed") is not None:
            self.generator.manual_seed(state["drawn_seed"])  # one process goes on as several
        if state["workers_generator"] is not None and self._workers_generator is not None:
            self._workers_generator.set_state(state["workers_generator"])
        self.seed = state["seed"]
        seedable = [part for part in self._parts if isinstance(part, SeedableRandomSampler)]
        for part, seed in zip(seedable, state["initial_seeds"], strict=False):
            part.initial_seed = seed
        for sampler, saved in zip(self._with_state, state["samplers"], strict=False):
            sampler.load_state_dict(saved)

    def _tell_epoch(self, epoch: int) -> None:
        for part in self._with_epoch:
            part.set_epoch(epoch)

    def _give_generator(self) -> torch.Generator | None:
        """A generator for the sampler that has the place for one, which stands empty; None when there is none."""
        for sampler in self._parts[:-1]:
            if getattr(sampler, "generator", self) is None:  # torch's convention for samplers that draw
                sampler.generator = torch.Generator()
                self._is_ours = True
                return sampler.generator  # type: ignore[no-any-return]
        return None

    def _first_seed(self) -> int:
        """The seed that orders depend on: the generator's own if the user gave it, else the process's."""
        assert self.generator is not None
        if not self._is_ours and self.generator.initial_seed() != self._chosen_seed:
            self._seed_given = self.generator.initial_seed()
        return torch.initial_seed() if self._is_ours else self._seed_given


def generator_of(loader: DataLoader[Any]) -> torch.Generator | None:
    """The generator that a sampler of `loader` draws from; None when there is none."""
    generators = (getattr(part, "generator", None) for part in _parts_of(loader))  # torch's convention
    return next((one for one in generators if isinstance(one, torch.Generator)), None)


def _parts_of(loader: DataLoader[Any]) -> Iterator[Any]:
    """The user's samplers of `loader`, with those that they wrap, and, last, its dataset."""
    if isinstance(loader.dataset, IterableDataset):  # its samplers count only
        yield loader.dataset
        return
    # With a batch sampler, torch sets `sampler` to one that nobody asks.
    waiting: list[Any] = [loader.sampler if loader.batch_sampler is None else loader.batch_sampler]
    while waiting:
        part = waiting.pop(0)
        if not isinstance(part, WRAPPERS):
            yield part
        inner = (getattr(part, name, None) for name in ("batch_sampler", "sampler"))
        waiting += [one for one in inner if one is not None][:1]
    yield loader.dataset
