"""What ranks have noted, made by hand for tests of those who read it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from accel_nb.protocol.ledger import RUNNING, Call, RankNotes

S = 1_000_000_000


def call(
    number: int,
    operation: str = "accel_nb.utils.gather",
    *,
    begun_s: float = 0.0,
    ended_s: float = 0.0,
    **more: Any,  # noqa: ANN401  fields of the struct
) -> Call:
    values = {"signature": 7, "given": "[4] float32", "file": "<Cell In[3]>", "line": 7, **more}
    return Call(number=number, operation=operation, begun_ns=round(begun_s * S), ended_ns=round(ended_s * S), **values)


def notes(rank: int, made: Call | None = None, **more: Any) -> RankNotes:  # noqa: ANN401  likewise
    """A rank that runs. `made`: its newest call."""
    quiet = RankNotes(
        rank=rank, life=RUNNING, number=0, call=None, activity="", activity_file="", activity_line=0,
        activity_since_ns=0, num_steps=0, step_ended_ns=0, own_ns=0, input_ns=0, batch_size=0,
    )  # fmt: skip
    number = 0 if made is None else made.number
    return replace(quiet, **{"number": number, "call": made, **more})


def doing(rank: int, activity: str, since_s: float, **more: Any) -> RankNotes:  # noqa: ANN401  likewise
    place = {"activity_file": "<Cell In[3]>", "activity_line": 9}
    return notes(rank, activity=activity, activity_since_ns=round(since_s * S), **{**place, **more})


def stepped(rank: int, num_steps: int, step_s: float, own_s: float, input_s: float = 0.0) -> RankNotes:
    """A rank all of whose steps were alike."""
    return notes(
        rank, num_steps=num_steps, step_ended_ns=round(num_steps * step_s * S), own_ns=round(num_steps * own_s * S),
        input_ns=round(num_steps * input_s * S),
    )  # fmt: skip
