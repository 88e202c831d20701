"""The three states that all parts of a process share. The only singletons of the training layer.

Every instance of one of these classes shares one dictionary, so that user code may write ``PartialState()`` anywhere
and get the state that is in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar, NoReturn, Protocol

import torch
from torch import distributed

from ...errors import StateWasReset, TrainingError
from ...protocol import environment
from ..models.precision import Precision, choose_precision
from ..operations import collective_choice
from ..operations.transport import Collectives
from ..settings import GradientAccumulationPlugin, TorchDynamoPlugin
from . import placement, process_group
from .process_group import GroupSettings, RankFacts
from .rank_member import RankMember


class _Shared:
    """Base of the states: says what happened when an instance has lost what it shared."""

    _shared_state: ClassVar[dict[str, Any]]

    def __reduce__(self) -> tuple[Callable[..., _Shared], tuple[type[_Shared]]]:
        """Unpickled or copied, it is the state of the process where that happens. Joins nobody."""
        return _rejoined, (type(self),)

    def __getattr__(self, name: str) -> NoReturn:
        """Only called for what is not there. StateWasReset when it was there before the state was reset."""
        kind = type(self).__name__
        if self._shared_state or not (hasattr(type(self), name) or name in type(self).__annotations__):
            raise AttributeError(f"{kind!r} object has no attribute {name!r}")
        # Its first words, and those of the second sentence, are what Accelerate says and what people search for.
        raise StateWasReset(
            f"`{kind}` object has no attribute `{name}` any more. This happens if `{kind}._reset_state()` or "
            f"reset_state() was called after it was made. Make a new Accelerator or {kind}."
        )


def _rejoined(kind: type[_Shared]) -> _Shared:
    state = object.__new__(kind)
    state.__dict__ = kind._shared_state  # noqa: SLF001  of this module
    return state


class PartialState(_Shared, RankMember):
    """Who this rank is. The first instance chooses the device and opens the process group; later ones share that.

    In a process that no launcher started, asking for the CPU makes the state anew. After the process group was
    destroyed, the next instance opens it again.

    Args:
        cpu: leave accelerators alone. Raises TrainingError when several ranks already compute on accelerators.
        backend: torch.distributed's backend; None: what fits the device.
        init_method: URL where the ranks meet; None: what the launch says.
        timeout: of each collective, also when the group is open already; None: torch's default.
    """

    _shared_state: ClassVar[dict[str, Any]] = {}
    _facts: RankFacts
    _collectives: Collectives
    _debug: bool

    def __init__(
        self,
        cpu: bool = False,
        *,
        backend: str | None = None,
        init_method: str | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        self.__dict__ = self._shared_state
        settings = GroupSettings(backend=backend, init_method=init_method, timeout=timeout)
        if self.initialized and not self._is_outdated(cpu):
            process_group.adapt(settings)
            if timeout is not None:
                self._take(replace(self._facts, timeout=timeout), debug=self._debug)
            return
        debug = self._debug if self.initialized else environment.debug_mode()
        self._take(process_group.join(cpu=cpu, settings=settings), debug=debug)

    @property
    def initialized(self) -> bool:
        return bool(self._shared_state)

    @property
    def facts(self) -> RankFacts:
        return self._facts

    @property
    def collectives(self) -> Collectives:
        return self._collectives

    @property
    def debug(self) -> bool:
        """Whether operations compare what all ranks gave before they send it. At first what the launch says
        (``ACCELERATE_DEBUG_MODE``); where it says nothing, True on ranks of accel_nb's launcher and False elsewhere. To
        be set on all ranks at the same point.
        """
        return self._debug

    @debug.setter
    def debug(self, value: bool) -> None:
        if value != self.debug:
            self._take(self.facts, debug=value)

    @property
    def default_device(self) -> torch.device:
        """The kind of device that a process alone would compute on."""
        return placement.default_device()

    @property
    def fork_launched(self) -> bool:
        """``FORK_LAUNCHED``: another launcher forked this process from a notebook's kernel."""
        return environment.fork_launched()

    def set_device(self) -> None:
        """Make this rank's device the current one again, for code that has chosen another since."""
        placement.make_current(self.device)

    def destroy_process_group(self, group: distributed.ProcessGroup | None = None) -> None:
        """Close the process group. The next `PartialState` or `Accelerator` opens it again."""
        process_group.leave(group)

    @staticmethod
    def _reset_state() -> None:
        """Upstream's way, which its documents and many tests show, to forget this state alone."""
        PartialState._shared_state.clear()

    def __repr__(self) -> str:
        return self.facts.describe()

    def _take(self, facts: RankFacts, *, debug: bool | None) -> None:
        debug = collective_choice.checks_by_default(facts) if debug is None else debug
        # Taken over only when all of it worked: a start that failed leaves no half-made state behind.
        collectives = collective_choice.choose_collectives(facts, checked=debug)
        self._facts, self._debug, self._collectives = facts, debug, collectives

    def _is_outdated(self, cpu: bool) -> bool:
        if self.use_distributed and not process_group.is_open():
            return True
        if not cpu or self.device.type == "cpu":
            return False
        if self.use_distributed:
            raise TrainingError(
                f"cpu=True was asked for, but rank {self.process_index} of {self.num_processes} already computes on "
                f"{self.device} through {self.backend!r}. Give cpu=True to the first Accelerator or PartialState."
            )
        return True


class AcceleratorState(_Shared, RankMember):
    """`PartialState`'s, and the settings of the `Accelerator` made last. Every instance shares them.

    What is given takes effect, also when an earlier instance said otherwise: an `Accelerator` keeps the precision that
    it was made with. What is not given stays as it is, or at first comes from the launch.
    """

    _shared_state: ClassVar[dict[str, object]] = {}
    precision: Precision
    noise_is_separate: bool
    """Whether a model has been prepared, from when on ranks draw different random numbers."""
    idle_devices_told: bool
    dynamo_plugin: TorchDynamoPlugin
    """How models are compiled."""
    _partial: PartialState

    def __init__(
        self,
        mixed_precision: str | None = None,
        cpu: bool = False,
        dynamo_plugin: TorchDynamoPlugin | None = None,
        **process_group_settings: Any,  # noqa: ANN401  PartialState's
    ) -> None:
        self.__dict__ = self._shared_state
        partial = PartialState(cpu, **process_group_settings)
        if mixed_precision is None:
            mixed_precision = self.mixed_precision if self.initialized else environment.mixed_precision()
        precision = choose_precision(mixed_precision, partial.device)
        if not self.initialized:
            self.noise_is_separate = self.idle_devices_told = False
            self.dynamo_plugin = TorchDynamoPlugin()
        if dynamo_plugin is not None:
            self.dynamo_plugin = dynamo_plugin
        self.precision, self._partial = precision, partial

    @property
    def initialized(self) -> bool:
        return bool(self._shared_state)

    @property
    def facts(self) -> RankFacts:
        return self._partial.facts

    @property
    def collectives(self) -> Collectives:
        return self._partial.collectives

    @property
    def debug(self) -> bool:
        """Whether operations compare what all ranks gave before they send it: `PartialState`'s, where it can be set."""
        return self._partial.debug

    @property
    def fork_launched(self) -> bool:
        return self._partial.fork_launched

    @property
    def mixed_precision(self) -> str:
        """One of "no", "bf16", "fp16"."""
        return self.precision.name

    @staticmethod
    def _reset_state(reset_partial_state: bool = False) -> None:
        """Upstream's way, which its documents and many tests show, to forget this state, and maybe `PartialState`."""
        AcceleratorState._shared_state.clear()
        if reset_partial_state:
            PartialState._reset_state()  # noqa: SLF001  of this module

    def __repr__(self) -> str:
        return f"{self.facts.describe()}Mixed precision: {self.mixed_precision}\n"

    def notes(self, *, mixed_precision: str | None, cpu: bool) -> list[str]:
        """What the user of a process that nobody launched should know about the `Accelerator` being made.

        One sentence for each setting that was not given now and still is what an earlier instance was given, and, once,
        one about accelerators that stay idle.
        """
        usual = environment.mixed_precision()
        sentences = []
        idle = placement.idle_devices_sentence(self.device)
        if idle is not None and not self.idle_devices_told:
            sentences.append(idle)
            self.idle_devices_told = True
        if mixed_precision is None and self.mixed_precision != usual:
            sentences.append(
                f"mixed_precision={self.mixed_precision!r} is kept from the Accelerator made before in this process; "
                f"for {usual!r}, say mixed_precision={usual!r} or call accel_nb.reset_state() first."
            )
        if not cpu and not environment.cpu_requested() and self.device.type == "cpu" and placement.has_accelerator():
            sentences.append(
                "cpu=True is kept from the Accelerator made before in this process; to compute on an accelerator, call "
                "accel_nb.reset_state() first."
            )
        return sentences

    def destroy_process_group(self, group: distributed.ProcessGroup | None = None) -> None:
        """Close the process group. The next `PartialState` or `Accelerator` opens it again."""
        process_group.leave(group)


class Loader(Protocol):
    """What `GradientState` knows of a prepared loader."""

    @property
    def end_of_dataloader(self) -> bool: ...

    @property
    def remainder(self) -> int: ...

    @property
    def local_batch_size(self) -> int | None: ...

    @property
    def pass_token(self) -> object:
        """Another one in each pass."""
        ...


class GradientState(_Shared):
    """Where the training loop stands: whether gradients are synchronised, and which prepared loader is being read."""

    _shared_state: ClassVar[dict[str, object]] = {}
    sync_gradients: bool
    """True when the current backward ends an optimizer step."""
    loaders: list[Loader]
    """Loaders that are being read, the innermost loop last."""
    accumulation: GradientAccumulationPlugin
    """How the `Accelerator` made last counts micro-batches."""

    def __init__(self, gradient_accumulation_plugin: GradientAccumulationPlugin | None = None) -> None:
        self.__dict__ = self._shared_state
        if not self.initialized:
            self.sync_gradients = True
            self.loaders = []
            self.accumulation = GradientAccumulationPlugin(num_steps=1)
        if gradient_accumulation_plugin is not None:
            self.accumulation = gradient_accumulation_plugin

    @property
    def initialized(self) -> bool:
        return bool(self._shared_state)

    @property
    def num_steps(self) -> int:
        """Micro-batches per optimizer step."""
        return self.accumulation.num_steps or 1

    @property
    def adjust_scheduler(self) -> bool:
        return self.accumulation.adjust_scheduler

    @property
    def sync_with_dataloader(self) -> bool:
        return self.accumulation.sync_with_dataloader

    @property
    def active_dataloader(self) -> Loader | None:
        """The loader of the innermost loop that is running; None outside loops."""
        return self.loaders[-1] if self.loaders else None

    @property
    def dataloader_references(self) -> list[Loader | None]:
        """None, as upstream's begins, then the loaders that are being read, the innermost loop last."""
        return [None, *self.loaders]

    @property
    def is_xla_gradients_synced(self) -> bool:
        """False: nothing of this version computes on XLA devices."""
        return False

    @property
    def in_dataloader(self) -> bool:
        return bool(self.loaders)

    @property
    def end_of_dataloader(self) -> bool:
        """True while the active loader's last batch is worked on."""
        return self.active_dataloader is not None and self.active_dataloader.end_of_dataloader

    @property
    def remainder(self) -> int:
        """Samples of the active loader's last step, all ranks together, without those that fill it up.

        0: the last step is full. -1: not known, or the last step has not come yet.
        """
        return -1 if self.active_dataloader is None else self.active_dataloader.remainder

    @staticmethod
    def _reset_state() -> None:
        """Upstream's way to forget this state alone."""
        GradientState._shared_state.clear()

    def __repr__(self) -> str:
        return (
            f"Gradients are synchronised: {self.sync_gradients}\n"
            f"At the end of the loader: {self.end_of_dataloader}\n"
            f"Samples of the last step: {self.remainder}\n"
            f"Accumulation: {self.accumulation!r}\n"
        )

    def begin(self, loader: Loader) -> None:
        """`loader` is the active one until its `end`, or the `begin` of a loop within."""
        self.loaders.append(loader)

    def end(self, loader: Loader) -> None:
        """`loader` is not read any more. In any order, and any number of times."""
        # The newest entry of this loader, wherever it is: a generator that was left is closed when it is collected.
        for position in reversed(range(len(self.loaders))):
            if self.loaders[position] is loader:
                del self.loaders[position]
                return

    @contextmanager
    def reading(self, loader: Loader) -> Iterator[None]:
        """From `begin` to `end`, however the block is left."""
        self.begin(loader)
        try:
            yield
        finally:
            self.end(loader)


def existing_facts() -> RankFacts | None:
    """Which rank this process is if a `PartialState` was made; None, and none is made, otherwise."""
    facts = PartialState._shared_state.get("_facts")  # noqa: SLF001  of this module
    return facts if isinstance(facts, RankFacts) else None


def note_rebuilt_group() -> None:
    """The process group was closed and opened again with the same ranks: what the states hold of the old one is made
    anew. Nothing to do where no `PartialState` was made.
    """
    if existing_facts() is not None:
        state = PartialState()
        state._take(state.facts, debug=state.debug)  # noqa: SLF001  of this module


def is_initialized() -> bool:
    """Whether an `Accelerator` (or `AcceleratorState`) was made in this process since the last `reset_state`."""
    return bool(AcceleratorState._shared_state)  # noqa: SLF001  of this module


def reset_state() -> None:
    """Forget all three states, so that the next `Accelerator` starts afresh. An open process group stays open and is
    adopted by the next state; close it with ``PartialState().destroy_process_group()``.
    """
    for state in (PartialState, AcceleratorState, GradientState):
        state._reset_state()  # noqa: SLF001  of this module
