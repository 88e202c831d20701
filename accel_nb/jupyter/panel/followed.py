"""A run that pages of the panel follow: the whole of it for each that comes, then what happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from ...protocol.events import RunEvent
from ...protocol.panel import PanelNews, RunNews
from ...protocol.plan import LaunchPlan
from ...protocol.run_state import RunState
from ..run_feed import RunFeed
from .pages import Answer


class FollowedRun:
    """A `RunView` of a run under way, made before the first `update`. One thread draws; any may `tell`."""

    def __init__(
        self,
        plan: LaunchPlan,
        send: Callable[[PanelNews], None],
        interval_s: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`interval_s` gives the time between two messages."""
        self._plan = plan
        self._send = send
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._feed = RunFeed()
        self._state: RunState | None = None
        """After the last of the events in the feed; None before the first update."""
        self._asking: list[Answer] = []
        self._sent_s = float("-inf")

    def tell(self, answer: Answer) -> None:
        """Answer with the whole run as soon as it is known. What happens after that is sent to all pages."""
        with self._lock:
            self._asking.append(answer)
            if self._state is not None:
                self._tell_all(self._state)

    # ---- the thread that draws

    def update(self, events: Sequence[RunEvent], state: RunState) -> None:
        with self._lock:
            if self._state is None:
                # What was before is in the whole that is told.
                self._feed.begin(events)
                self._state = state
                self._tell_all(state)
                return
            self._feed.add(events)
            if events:
                self._state = state
            if self._clock() - self._sent_s >= self._interval_s():
                self._send_new()

    def close(self, state: RunState) -> None:
        with self._lock:
            self._send_new(is_last=True)
            self._state = state
            self._send(self._whole(state))
            self._tell_all(state)

    # ---- with the lock

    def _send_new(self, *, is_last: bool = False) -> None:
        now = self._clock()
        self._sent_s = now
        news = self._feed.take(now, is_last=is_last)
        if news is not None:
            self._send(RunNews(run_id=self._plan.run_id, message=news))

    def _tell_all(self, state: RunState) -> None:
        if not self._asking:
            return
        # So that the lines are as far as the state is: a page leaves out what is older than the state.
        self._send_new()
        whole = self._whole(state)
        for answer in self._asking:
            answer(whole)
        self._asking.clear()

    def _whole(self, state: RunState) -> RunNews:
        return RunNews(run_id=self._plan.run_id, message=self._feed.whole(state, self._plan, can_hear=True))
