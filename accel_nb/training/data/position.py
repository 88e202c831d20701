"""Where a pass over the data stands, as it is saved and resumed: values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from ...errors import TrainingError
from .streams import Streams

FORMAT = 1


@dataclass(kw_only=True)
class Position:
    """A place in a pass, to which another run can go by skipping, without reading what it skips.

    All but the streams is alike on all ranks, so that what one rank saved serves any rank of any number of ranks.
    """

    iteration: int = 0
    """Number of the pass."""
    num_batches: int = 0
    """Batches that each rank was given in it, with those that it skipped."""
    num_source_batches: int = 0
    """Batches of the user's own loader that went into them."""
    batch_size: int | None = None
    """Samples in a full batch of the user's own loader; None: its batches differ in size."""
    order: dict[str, Any] = field(default_factory=dict)
    """What decides the order of the data, as it was when the pass began."""
    rank: tuple[int, int] = (0, 1)
    """Rank and number of ranks that the streams below belong to."""
    streams: Streams | None = None
    """The process's random generators when the pass began: samplers and workers are seeded from them."""
    fetch_streams: Streams | None = None
    """The same just before the next batch was read, which happens one batch ahead. None: reading draws nothing here."""

    @property
    def num_samples(self) -> int | None:
        """Samples of all ranks so far; None when batches differ in size."""
        return None if self.batch_size is None else self.num_source_batches * self.batch_size

    def to_dict(self) -> dict[str, Any]:
        """Built-in values and tensors only, so that ``torch.load(weights_only=True)`` reads it."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any], *, rank: tuple[int, int]) -> Self:
        """For rank `rank` (its number, and that of all). TrainingError for what `to_dict` did not give."""
        if state.get("format") != FORMAT or not {one.name for one in fields(cls)} <= state.keys():
            raise TrainingError(
                f"this is no state of a prepared loader: it has the keys {sorted(map(str, state))}. Give what "
                "loader.state_dict() returned; a state of torchdata's StatefulDataLoader needs "
                "use_stateful_dataloader=True."
            )
        values = {one.name: state[one.name] for one in fields(cls)}
        own = tuple(state["rank"]) == rank
        for name in ("streams", "fetch_streams"):
            saved = state[name]
            values[name] = Streams(**saved) if own and saved is not None else None
        return cls(**values | {"rank": rank, "order": dict(state["order"])})
