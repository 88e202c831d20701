"""Random numbers among ranks: one seed, data order shared by all ranks, noise of each rank's own.

Every rank starts on the stream that it was seeded with, often all on the same one: so weights are initialised and data
are split alike. The first `prepare` of a model moves all ranks but the main one to a stream of their own: from there on
dropout and augmentation differ between ranks, while the order of data is kept alike by the loaders. A later `set_seed`
makes them alike again until the next model is prepared or the next pass over prepared data begins.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from ..choices import RNGType
from ..operations.collectives import broadcast
from . import placement
from .state import AcceleratorState, PartialState, existing_facts, is_initialized

RNG_TYPES = ("torch", "cuda", "xpu", "mps", "xla", "generator")
"""Of those that name a kind of accelerator, any means this rank's."""


@dataclass(frozen=True)
class Seeding:
    """What `set_seed` was asked."""

    seed: int
    device_specific: bool | None
    is_alike_again: bool = False
    """Ranks that had noise of their own are alike since then, until `separate_noise_again`."""


_last_seeding: Seeding | None = None
"""Of the last `set_seed`: no state, but of the process like the generators themselves."""


def set_seed(seed: int, device_specific: bool | None = None, deterministic: bool = False) -> None:
    """Seed Python's, NumPy's and torch's generators, those of accelerators included.

    `device_specific`: None: alike on all ranks until the next model is prepared, or the next pass over prepared data
    begins, then of each rank's own. True: of each rank's own at once (``seed + process_index``). False: alike on all
    ranks for good, dropout included.
    `deterministic`: let torch use deterministic algorithms only; an operation that has none raises.
    """
    global _last_seeding  # noqa: PLW0603  see there
    was_separate = is_initialized() and AcceleratorState().noise_is_separate
    _last_seeding = Seeding(seed, device_specific, is_alike_again=was_separate and device_specific is None)
    _seed_everything(seed + PartialState().process_index if device_specific else seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def last_seed() -> int | None:
    """What `set_seed` was given last; None: it was not called."""
    return None if _last_seeding is None else _last_seeding.seed


def last_seeding() -> Seeding | None:
    return _last_seeding


def restore_seeding(seeding: Seeding | None) -> None:
    """Go back to what `last_seeding` gave; touches no generator."""
    global _last_seeding  # noqa: PLW0603  see there
    _last_seeding = seeding


def separate_noise_again() -> None:
    """Give each rank noise of its own, if `set_seed` has made alike what was separate. Sends nothing."""
    seeding = _last_seeding
    if seeding is None or not seeding.is_alike_again:
        return
    restore_seeding(replace(seeding, is_alike_again=False))
    facts = existing_facts()
    own = 0 if facts is None else facts.process_index
    if own:  # the main process's stream goes on as it is
        torch.manual_seed(seeding.seed + own)
        _seed_python_and_numpy(seeding.seed + own)


def separate_noise(state: AcceleratorState) -> None:
    """Give each rank noise of its own, if they still share one stream and are not meant to. Every rank must call this.

    Once per state; the main process's stream goes on as it is. Python's and NumPy's generators follow torch's when they
    were seeded by `set_seed`.
    """
    if state.noise_is_separate:
        separate_noise_again()
        return
    state.noise_is_separate = True
    if not state.use_distributed or (_last_seeding is not None and _last_seeding.device_specific is False):
        return
    own = torch.tensor(torch.initial_seed() % 2**63)
    is_shared = broadcast(own).item() == own.item()
    if state.is_main_process or not is_shared:
        return
    torch.manual_seed(own.item() + state.process_index)
    if _last_seeding is not None:
        _seed_python_and_numpy(_last_seeding.seed + state.process_index)


def synchronize_rng_state(rng_type: str | RNGType | None = None, generator: torch.Generator | None = None) -> None:
    """Set one generator to the state that it has on the main process. Every rank must call this.

    ValueError for a name that is not among `RNG_TYPES`, and for "generator" without one.
    """
    check_rng_types([rng_type])
    if str(rng_type) == "generator" and generator is None:
        raise ValueError('synchronize_rng_state("generator") needs generator=.')
    _SYNCHRONISE[str(rng_type)](generator)


def synchronize_rng_states(rng_types: Iterable[str | RNGType], generator: torch.Generator | None = None) -> None:
    """Set the generators named by `rng_types` to the state they have on the main process. Every rank must call this.

    "generator" is `generator`; it is passed over when that is None. ValueError for another name.
    """
    names = sorted(str(rng_type) for rng_type in rng_types)  # in one order on all ranks
    check_rng_types(names)
    for name in names:
        _SYNCHRONISE[name](generator)


def check_rng_types(rng_types: Iterable[object]) -> None:
    for rng_type in rng_types:
        if str(rng_type) not in RNG_TYPES:
            raise ValueError(f"rng_types holds {str(rng_type)!r}; known are {', '.join(map(repr, RNG_TYPES))}.")


def draw_seed(generator: torch.Generator | None) -> int:
    """One number from `generator` (None: torch's own), as a DataLoader draws its workers' base seed."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def _seed_everything(seed: int) -> None:
    torch.manual_seed(seed)
    placement.seed_accelerator(seed)
    _seed_python_and_numpy(seed)


def _seed_python_and_numpy(seed: int) -> None:
    random.seed(seed)
    try:
        import numpy as np
    except ImportError:  # torch can do without it
        return
    np.random.seed(seed % 2**32)  # noqa: NPY002  users' augmentation draws from the legacy global generator


def _synchronise_torch(generator: torch.Generator | None) -> None:
    del generator
    torch.set_rng_state(broadcast(torch.get_rng_state()))


def _synchronise_accelerator(generator: torch.Generator | None) -> None:
    del generator
    device = PartialState().device
    state = placement.accelerator_random_state(device)
    if state is not None:
        placement.restore_accelerator_random_state(broadcast(state), device)


def _synchronise_generator(generator: torch.Generator | None) -> None:
    if generator is not None:
        generator.set_state(broadcast(generator.get_state()))


_SYNCHRONISE: dict[str, Callable[[torch.Generator | None], None]] = {
    "torch": _synchronise_torch,
    **dict.fromkeys(("cuda", "xpu", "mps", "xla"), _synchronise_accelerator),
    "generator": _synchronise_generator,
}
