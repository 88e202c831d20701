"""The live view in the cell: a widget while the run goes on, static HTML and text of the same run when it is over.

Run.draw ──update──▶ LiveView ──≤ 10 per second──▶ Page
▲ any thread: connect, stop, stacks
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence

from ..launch.run import Run
from ..launch.views.run_text import RunText
from ..launch.views.view import RunView
from ..protocol.events import Display, MetricsLogged, RunEvent
from ..protocol.front_end import (
    AskStacks,
    Connect,
    FromFrontEnd,
    Loaded,
    StackTexts,
    StopRun,
    WholeRun,
)
from ..protocol.run_state import RunState
from .bar_lines import bar_lines
from .cell_output import CellOutput
from .cell_widget import OnMessage, Page
from .run_feed import SEND_INTERVAL_S, RunFeed
from .static_form import TRANSCRIPT_LINES, Written, static_html, static_text

FIRST_RESEND_S = 0.5
"""A page that cannot ask yet (its kernel is busy) is sent the whole run again after this, twice this, ..."""

LOADED_WITHIN_S = 20.0
"""A page that could say so and has not after this cannot run the widget: its security policy, a missing extension."""
_NOT_LOADED = (
    "accel_nb: this page has not loaded the live view; the run is shown as text. ACCEL_NB_VIEW=text chooses that from "
    "the start, accel_nb.doctor() tells what is missing."
)

MakePage = Callable[[OnMessage], Page]


class LiveView:
    """One run in one cell. One thread calls it, but for `take`, which any may."""

    def __init__(
        self,
        cell: CellOutput,
        make_page: MakePage,
        make_text_view: Callable[[], RunView],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make_text_view` gives what goes on showing the run in the same cell when the page cannot."""
        self._cell = cell
        self._make_text_view = make_text_view
        self._text_view: RunView | None = None
        self._make_page = make_page
        self._clock = clock
        self._page: Page | None = None
        self._display_id = uuid.uuid4().hex
        self._text = RunText()
        self._transcript: deque[str] = deque(maxlen=TRANSCRIPT_LINES)
        self._num_lines = 0
        self._feed = RunFeed()
        self._sent_s = float("-inf")
        self._resend_s = FIRST_RESEND_S
        self._shown_s = 0.0
        self._closed = False
        self._run: Run | None = None
        self._raises = False
        # ---- from any thread
        self._lock = threading.Lock()
        self._loaded = False
        self._num_connects = 0
        self._whole_wanted = False
        self._last: WholeRun | None = None
        """What pages that stay are told when they connect; None: the run goes on, or none stays."""
        self._early_stops: list[StopRun] = []
        """Pressed before the run was known."""
        self._stacks_wanted = False
        self._stacks: StackTexts | None = None

    def serve(self, run: Run, *, raises: bool) -> None:
        """`run` is what the buttons act on. `raises`: its failure is shown below the view, as the cell's exception."""
        self._raises = raises
        with self._lock:
            self._run = run
            stops, self._early_stops = self._early_stops, []
        for stop in stops:
            self._stop(run, stop)

    # ---- any thread

    def take(self, message: FromFrontEnd) -> None:
        """What a person did. Returns at once: it may be called on the kernel's thread for messages."""
        match message:
            case Loaded():
                with self._lock:
                    self._loaded = True
            case Connect():
                with self._lock:
                    self._loaded = True
                    self._num_connects += 1
                    self._whole_wanted = True
                    last, page = self._last, self._page
                if last is not None and page is not None:
                    page.send(last)
            case AskStacks() | StopRun() if self._closed:
                pass  # pressed before the page had heard that the run is over
            case AskStacks():
                with self._lock:
                    self._stacks_wanted = True
            case StopRun():
                with self._lock:
                    run = self._run
                    if run is None:
                        self._early_stops.append(message)
                if run is not None:
                    self._stop(run, message)

    def _stop(self, run: Run, stop: StopRun) -> None:
        run.stop(0.0 if stop.now else None, by="view")

    def _find_stacks(self, run: Run) -> None:
        try:
            found = run.stacks()
            answer = StackTexts(text_by_rank=found, problem="" if found else "No rank runs now.")
        except TimeoutError as error:
            answer = StackTexts(problem=str(error))
        with self._lock:
            self._stacks = answer

    # ---- the thread that draws

    def update(self, events: Sequence[RunEvent], state: RunState) -> None:
        now = self._clock()
        if self._text_view is None and self._page is not None and self._cannot_load(self._page, now):
            self._text_view = self._as_text(self._page)
        if self._text_view is not None:
            self._text_view.update(events, state)
            return
        self._write_down(events, state, now)
        if self._page is not None:
            self._feed.add(events)
        elif not state.ended:
            self._feed.begin(events)
            self._show(now)
        if self._page is not None and now - self._sent_s >= SEND_INTERVAL_S:
            self._send(self._page, state, now)
        for event in events:
            if isinstance(event, Display) and not event.rank:
                self._display(event)

    def close(self, state: RunState) -> None:
        if self._closed:
            return
        self._closed = True
        if self._text_view is not None:
            self._text_view.close(state)
            return
        self._note(self._text.rest(self._clock()))
        hidden = self._num_lines - len(self._transcript)
        written = Written(list(self._transcript), hidden, bar_lines(state, self._text.prefix))
        data = {
            "text/html": static_html(state, written, raises=self._raises),
            "text/plain": static_text(state, written, raises=self._raises),
        }
        if self._page is None:
            self._cell.display(self._display_id, data)
            return
        # What stays in the notebook must not ask for a widget that is gone.
        self._cell.update(self._display_id, data)
        if self._num_connects <= 1:
            self._page.close()
            return
        # A page that was reloaded knows its outputs no more by their id: there the widget stays.
        self._feed.take(self._clock(), is_last=True)
        last = self._whole(self._page, state)
        with self._lock:
            self._last = last
            # The page's widget lives as long as the kernel: nothing but what it is told must live with it.
            self._run = None
        self._feed = RunFeed()
        self._page.send(last)

    def _show(self, now: float) -> None:
        self._page = self._make_page(self.take)
        self._shown_s = now
        with self._lock:
            self._whole_wanted = True
        self._cell.display(self._display_id, self._page.data("accel_nb: the run is shown by a widget"))

    def _cannot_load(self, page: Page, now: float) -> bool:
        return page.can_hear and page.is_heard and not self._loaded and now - self._shown_s > LOADED_WITHIN_S

    def _as_text(self, page: Page) -> RunView:
        self._cell.update(self._display_id, {"text/plain": _NOT_LOADED})
        page.close()
        self._note(self._text.rest(self._clock()))
        self._cell.write("".join(f"{line}\n" for line in self._transcript))
        return self._make_text_view()

    def _display(self, event: Display) -> None:
        if event.update:
            self._cell.update(event.display_id, event.data, event.metadata)
        else:
            self._cell.display(event.display_id, event.data, event.metadata)

    def _send(self, page: Page, state: RunState, now: float) -> None:
        self._sent_s = now
        news = self._feed.take(now)
        with self._lock:
            whole, self._whole_wanted = self._whole_wanted or self._is_due_again(now), False
            wants_stacks, self._stacks_wanted = self._stacks_wanted, False
            stacks, self._stacks = self._stacks, None
        if whole:
            page.send(self._whole(page, state))
        elif news is not None:
            page.send(news)
        if stacks is not None:
            page.send(stacks)
        if wants_stacks and self._run is not None:
            threading.Thread(target=self._find_stacks, args=(self._run,), name="accel_nb stacks", daemon=True).start()

    def _is_due_again(self, now: float) -> bool:
        if self._num_connects or now - self._shown_s < self._resend_s:
            return False
        self._resend_s *= 2
        return True

    def _whole(self, page: Page, state: RunState) -> WholeRun:
        plan = None if self._run is None else self._run.plan
        can_hear = not self._cell.is_own_thread or (page.can_hear and page.is_heard)
        return self._feed.whole(state, plan, can_hear=can_hear)

    def _write_down(self, events: Sequence[RunEvent], state: RunState, now: float) -> None:
        """As text, for what stays. Metrics are a table there."""
        self._text.add([event for event in events if not isinstance(event, MetricsLogged)], state, now)
        self._note(self._text.due(now))

    def _note(self, text: str) -> None:
        lines = text.splitlines()
        self._num_lines += len(lines)
        self._transcript.extend(lines)
