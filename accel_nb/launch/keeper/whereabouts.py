"""Where each rank is, out of what it has noted and what its stack shows; and that as a sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ...protocol.events import Whereabouts
from ...protocol.ledger import ENDED, FAILED, RETURNED, RankNotes
from ..failures import is_own_file, rank_ranges, readable_stack
from .frames import (
    Frame,
    awaited_threads,
    busy_frame,
    leaving_frames,
    main_thread,
    own_frame,
    waits_for_threads_to_end,
)
from .hang_watch import number_in_group, open_call
from .stacks import RankStacks

MAX_STACK_CHARS = 4000
NEXT_BATCH = "next batch"
"""The activity of a rank that waits for its loader."""
_LOADER_FILE = "/torch/utils/data/dataloader.py"
_WORKERS_NAMED = 2
_THREADS_NAMED = 2
_OWN_PREFIX = "accel_nb."
_NS = 1_000_000_000

Cells = Mapping[str, str]
"""Name of a cell's file -> its text."""


def whereabouts(notes: RankNotes, stacks: RankStacks, *, now_ns: int, cells: Cells) -> Whereabouts:
    """Of one rank. `now_ns`: by the clock of `notes`."""
    known = Whereabouts(
        rank=notes.rank,
        state="runs",
        number=number_in_group(notes.number),
        num_steps=notes.num_steps,
        stack=readable_stack(stacks.own)[:MAX_STACK_CHARS],
        details=_elsewhere(notes) or _awaited(stacks, cells),
    )
    if notes.life in (RETURNED, ENDED, FAILED):
        details = (*known.details, *_leaving(stacks, cells))
        return replace(known, state="failed" if notes.life == FAILED else "returned", details=details)
    frames = main_thread(stacks.own)
    frame = own_frame(frames) or next(iter(frames), None)
    reads = notes.activity == NEXT_BATCH or any(each.file.endswith(_LOADER_FILE) for each in frames)
    if (call := open_call(notes)) is not None:
        noted = Frame(call.file, call.line, "") if call.file else frame
        waiting = replace(known, operation=call.operation, waits_s=(now_ns - call.begun_ns) / _NS)
        return _at(replace(waiting, state="waits"), noted, cells)
    if notes.activity:
        noted = Frame(notes.activity_file, notes.activity_line, "") if notes.activity_file else frame
        waiting = replace(known, operation=notes.activity, waits_s=(now_ns - notes.activity_since_ns) / _NS)
        details = _reading(noted, stacks, frame, cells) if reads else _inside(noted, frame, cells)
        return _at(replace(waiting, state="waits", details=(*known.details, *details)), noted, cells)
    details = _reading(frame, stacks, frame, cells) if reads else ()
    return _at(replace(known, details=(*known.details, *details)), frame, cells)


def what_lingers(stacks: RankStacks, cells: Cells) -> str:
    """What keeps the process of a rank that has returned."""
    frames = leaving_frames(stacks.own)
    if found := _leaving(stacks, cells):
        return ", ".join(found)
    if waits_for_threads_to_end(frames):
        return ", ".join(("it waits for threads that are no daemons", *_awaited(stacks, cells)))
    return f"it is at {_line(frames[-1], cells)}" if frames else "a thread that is no daemon, or an exit handler"


def sentence(ranks: Sequence[Whereabouts]) -> str:
    """One clause for all ranks that are at the same place; those that few share come first."""
    groups: dict[tuple[object, ...], list[Whereabouts]] = {}
    differ = len({one.number for one in ranks if one.state == "waits"}) > 1
    for one in ranks:
        number = one.number if differ else 0
        key = (one.state, one.operation, one.place, one.source, one.details, one.num_steps, number)
        groups.setdefault(key, []).append(one)
    ordered = sorted(groups.values(), key=lambda group: (len(group), group[0].state != "waits", group[0].rank))
    return "; ".join(_clause(group, told_number=differ) for group in ordered)


def operation_name(operation: str) -> str:
    """As a user writes it: ``gather``, ``torch.distributed.all_reduce``."""
    return operation.rpartition(".")[2] if operation.startswith(_OWN_PREFIX) else operation


def rank_names(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {rank_ranges(ranks)}"


def duration_text(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"  # noqa: PLR2004  two minutes


def after_steps(num_steps: int) -> str:
    if not num_steps:
        return ""
    return " after 1 optimizer step" if num_steps == 1 else f" after {num_steps} optimizer steps"


def _elsewhere(notes: RankNotes) -> tuple[str, ...]:
    """What another thread than the function's waits in."""
    if not notes.elsewhere:
        return ()
    frame = Frame(notes.elsewhere_file, notes.elsewhere_line, "")
    place = f" ({frame.place})" if frame.file else ""
    return (f"another thread is in {operation_name(notes.elsewhere)}{place}",)


def _awaited(stacks: RankStacks, cells: Cells) -> tuple[str, ...]:
    """Where threads are that the function waits for."""
    frames = awaited_threads(stacks.own)
    named = [f"another thread is at {_line(frame, cells)}" for frame in frames[:_THREADS_NAMED]]
    more = len(frames) - len(named)
    return (*named, f"{more} more threads of yours are there") if more else tuple(named)


def _leaving(stacks: RankStacks, cells: Cells) -> tuple[str, ...]:
    """Where what was registered with atexit is."""
    frame = own_frame(leaving_frames(stacks.own))
    return () if frame is None else (f"its exit handler is at {_line(frame, cells)}",)


def _inside(noted: Frame | None, frame: Frame | None, cells: Cells) -> tuple[str, ...]:
    """The user's code that runs within what was begun at the line `noted`: a hook, an autograd function."""
    if noted is None or frame is None or not is_own_file(frame.file) or frame[:2] == noted[:2]:
        return ()
    return (f"in which it is at {_line(frame, cells)}",)


def _at(known: Whereabouts, frame: Frame | None, cells: Cells) -> Whereabouts:
    if frame is None:
        return known
    return replace(known, place=frame.place, source=frame.source(cells))


def _reading(noted: Frame | None, stacks: RankStacks, frame: Frame | None, cells: Cells) -> tuple[str, ...]:
    """What keeps a rank that reads a batch at the line `noted`: its workers, or the dataset's code at `frame`."""
    busy = [(pid, at) for pid, text in stacks.children.items() if (at := busy_frame(text)) is not None]
    if busy:
        named = [f"its worker {pid} is at {_line(at, cells)}" for pid, at in busy[:_WORKERS_NAMED]]
        more = len(busy) - len(named)
        return (*named, f"{more} more of its workers are busy") if more else tuple(named)
    if frame is None or noted is None or frame[:2] == noted[:2]:
        return ()
    return (f"it reads it itself, at {_line(frame, cells)}",)


def _line(frame: Frame, cells: Cells) -> str:
    return _with_source(frame.place, frame.source(cells))


def _with_source(place: str, source: str) -> str:
    return f"{place} (`{source}`)" if source else place


def _clause(group: Sequence[Whereabouts], *, told_number: bool) -> str:
    one, who = group[0], rank_names([each.rank for each in group])
    several = len(group) > 1
    match one.state:
        case "waits":
            what = f"for {'their' if several else 'its'} {NEXT_BATCH}"
            if one.operation != NEXT_BATCH:
                what = f"in {operation_name(one.operation)}"
            place = f" ({one.place})" if one.place else ""
            number = f", {'their' if several else 'its'} operation {one.number}" if told_number and one.number else ""
            lasts = duration_text(max(each.waits_s for each in group))
            waits = f"{who} wait{'' if several else 's'} {what}{place}{number} for {lasts}"
            return ", ".join([waits, *one.details])
        case "runs" if one.place:
            at = _with_source(one.place, one.source)
            return ", ".join([f"{who} {'are' if several else 'is'} at {at}", *one.details])
        case "runs":
            unknown = f"{who} {'do' if several else 'does'} not say where {'they are' if several else 'it is'}"
            return ", ".join([unknown, *one.details])
        case "returned":
            returned = f"{who} {'have' if several else 'has'} returned{after_steps(one.num_steps)}"
            return ", ".join([returned, *one.details])
        case "failed":
            return f"{who} {'have' if several else 'has'} failed"
        case "gone":
            return f"{who} {'have' if several else 'has'} ended"
