"""A view that is stuck, as in a terminal that nobody reads, neither holds the run up nor fills the kernel."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from accel_nb.launch.run import MAX_WAITING_BATCHES, draw_in_background, start_run
from accel_nb.protocol.events import EventsDropped, LogLines, RunEvent
from accel_nb.protocol.plan import LaunchRequest
from accel_nb.protocol.run_state import RunState
from tests.launch.lifecycle_code import writes_lines

BATCH_CHARS = 64 << 10
NUM_LINES = 100_000


class StuckView:
    """Takes nothing until `released`."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.events: list[RunEvent] = []

    def update(self, events: Sequence[RunEvent], _state: RunState) -> None:
        self.released.wait(100)
        self.events += events

    def close(self, _state: RunState) -> None:
        pass


def test_what_a_stuck_view_is_kept_is_bounded_and_what_it_misses_is_counted() -> None:
    view = StuckView()
    # So often that the keeper has to drop nothing.
    request = LaunchRequest(num_processes=1, device="cpu", function_name="writes_lines", monitor_interval=0.01)
    run = start_run(request, writes_lines, (NUM_LINES, 100, 0.003), {}, view)
    drawing = draw_in_background(run)

    assert list(run.result(90)) == [None], "the run does not wait for its view"
    view.released.set()
    drawing.join()

    texts = [event.text for event in view.events if isinstance(event, LogLines)]
    dropped = sum(event.lines for event in view.events if isinstance(event, EventsDropped))
    shown_chars = sum(map(len, texts))
    assert sum(text.count("\n") + 1 for text in texts) + dropped == NUM_LINES
    assert NUM_LINES * 100 > 3 * MAX_WAITING_BATCHES * BATCH_CHARS, "more than may wait"
    assert shown_chars <= (MAX_WAITING_BATCHES + 2) * BATCH_CHARS
    assert dropped > 0
    assert run.logs(0).count("\n") == NUM_LINES
