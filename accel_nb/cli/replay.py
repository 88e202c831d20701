"""``accel-nb replay``: show a recorded run again, as it was seen."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from rich.console import Console

from ..errors import InvalidArgument
from ..launch.views.view import RunView
from ..protocol.events import RunEvent
from ..protocol.run_state import RunState, advance
from ..protocol.wire import Skipped, event_from_line
from .terminal_view import TerminalView, plain_view

RECORD = "run.jsonl"
DRAW_S = 0.1
"""How often something is drawn while the recording stands still, in seconds of this clock."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recording", type=Path, metavar="RECORDING", help="a run.jsonl, or the folder of a run")
    parser.add_argument(
        "--speed", type=_speed, metavar="X",
        help="times as fast as it was; 0: all at once. Left out: 1 on a terminal, else all at once",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """0 when all of it was shown. Raises InvalidArgument for what is no recording."""
    console = Console(highlight=False, emoji=False, markup=False)
    on_terminal = console.is_terminal and not console.is_dumb_terminal
    speed = options.speed if options.speed is not None else (1.0 if on_terminal else math.inf)
    clock = _Clock()
    view: RunView = TerminalView(console, clock) if on_terminal else plain_view(sys.stdout, clock)
    play(events_of(options.recording), view, clock, speed)
    return 0


class _Clock:
    """The recording's own time, in seconds: what is shown depends on when it happened, not on how fast it is played."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def play(
    events: Iterator[RunEvent], view: RunView, clock: _Clock, speed: float, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Give `events` to `view` at `speed` times the pace of their recording; infinity: without a pause."""
    state = RunState()
    for event in events:
        waiting = event.time_s - clock.now_s if clock.now_s else 0.0
        while waiting > 0 and not math.isinf(speed):
            step = min(waiting, DRAW_S * speed)
            sleep(step / speed)
            clock.now_s += step
            waiting -= step
            view.update([], state)
        clock.now_s = max(clock.now_s, event.time_s)
        state = advance(state, event)
        view.update([event], state)
    view.close(state)


def events_of(recording: Path) -> Iterator[RunEvent]:
    """The events in the file, or in the folder's, in their order; those that this version does not know are left out.

    Raises InvalidArgument, with the line, for what is no recording, when it comes there.
    """
    file = recording / RECORD if recording.is_dir() else recording
    try:
        lines = file.open("rb")
    except OSError as error:
        raise InvalidArgument(
            f"{file} cannot be read ({error.strerror}); give a {RECORD}, or a run's folder."
        ) from error
    found = 0
    with lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                break  # it is being written
            try:
                event = event_from_line(line)
            except msgspec.DecodeError as error:
                raise InvalidArgument(f"{file}, line {number}: this is no event of a run ({error}).") from error
            found += 1
            if not isinstance(event, Skipped):
                yield event
    if not found:
        raise InvalidArgument(f"{file} is empty: nothing has been recorded there.")


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from error
    if not math.isfinite(speed) or speed < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of 0 or more")
    return speed or math.inf
