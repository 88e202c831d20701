"""How much of a run's output is shown: the limits, and what is left out when ranks write more.

Everything is in the log files. A front end that gets more than it can draw freezes, and the Jupyter server cuts streams
of more than 1,000 messages or 1,000,000 bytes per second (jupyter_server 2.21, ``ZMQChannelsWebsocketConnection``), so
a run stays under 20 messages and 200 kB per second; what still waits when it ends, 100 kB at most, comes at once.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

WRITE_INTERVAL_S = 0.08
"""Between two writes of text: at most 13 in any second."""
BARS_INTERVAL_S = 0.2
"""Between two drawings of the progress bars: at most 6 in any second."""
BYTES_PER_S = 100_000
BURST_BYTES = 100_000
"""What may be written at once after a quiet second. With `BYTES_PER_S` that makes 200 kB in the worst second."""
BACKLOG_BYTES = 100_000
"""Text that may wait for its turn, so that a burst of 200 kB is shown in full. Of more, the newest of each rank is
kept."""
LINE_CHARS = 4000
"""The beginning of a longer line is shown."""
MORE_CHARS = 400
"""For a prefix, and for what is said about the rest of a longer line."""
GAP_INTERVAL_S = 1.0
"""Between two lines that tell how much is not shown."""


_Source = TypeVar("_Source")


def newest_within(sizes: Mapping[_Source, Sequence[int]], limit: float) -> dict[_Source, int]:
    """How many of each source's newest pieces fit into `limit` together. `sizes`: of its pieces, the newest first.

    The source that has least is served next, so the few lines of one rank are not lost among the many of another.
    """
    counts = dict.fromkeys(sizes, 0)
    waiting = [(0, number, source) for number, source in enumerate(sizes) if sizes[source]]
    while waiting:
        used, number, source = heapq.heappop(waiting)
        size = sizes[source][counts[source]]
        if size > limit:
            continue  # what is older goes, too
        limit -= size
        counts[source] += 1
        if counts[source] < len(sizes[source]):
            heapq.heappush(waiting, (used + size, number, source))
    return counts


class Line(NamedTuple):
    """What waits to be shown."""

    text: str
    num_bytes: int
    ranks: tuple[int, ...]
    """Who wrote it; empty for a line of ours, which is never left out."""


class FlowLimit:
    """Lines wait here for their turn. One thread; `now` is in monotonic seconds."""

    def __init__(self) -> None:
        self._waiting: deque[Line] = deque()
        self._waiting_bytes = 0
        self._missing: Counter[int] = Counter()
        self._allowance_bytes = float(BURST_BYTES)
        self._allowed_s: float | None = None
        self._written_s = float("-inf")
        self._gap_told_s = float("-inf")

    def add(self, text: str, ranks: Sequence[int] = ()) -> None:
        text = text[: LINE_CHARS + MORE_CHARS]
        line = Line(text, len(text.encode(errors="replace")) + 1, tuple(ranks))
        self._waiting.append(line)
        self._waiting_bytes += line.num_bytes

    def add_missing(self, rank: int, num_lines: int) -> None:
        """Lines of `rank` that are not shown, whoever left them out."""
        self._missing[rank] += num_lines

    def may_write(self, now: float) -> bool:
        return now - self._written_s >= WRITE_INTERVAL_S

    def written(self, now: float) -> None:
        """Something was written: the next write has to wait."""
        self._written_s = now

    def take(self, now: float) -> list[str]:
        """Lines to write now; call it only when `may_write`."""
        since = self._allowed_s if self._allowed_s is not None else now
        self._allowance_bytes = min(self._allowance_bytes + (now - since) * BYTES_PER_S, BURST_BYTES)
        self._allowed_s = now
        self._leave_out(self._allowance_bytes + BACKLOG_BYTES)
        lines = []
        while self._waiting and self._waiting[0].num_bytes <= self._allowance_bytes:
            self._allowance_bytes -= self._waiting[0].num_bytes
            lines.append(self._pop().text)
        return lines

    def rest(self) -> list[str]:
        """All that still waits, within the backlog."""
        self._leave_out(BACKLOG_BYTES)
        return [self._pop().text for _ in range(len(self._waiting))]

    def gaps(self, now: float, *, last: bool = False) -> dict[int, int]:
        """Rank -> lines not shown since this was told before; empty when it is too early to tell again."""
        if not last and now - self._gap_told_s < GAP_INTERVAL_S:
            return {}
        gaps = dict(sorted(self._missing.items()))
        if gaps:
            self._missing.clear()
            self._gap_told_s = now
        return gaps

    def _leave_out(self, limit_bytes: float) -> None:
        """Of lines of ranks, keep the newest of each source until `limit_bytes` are left."""
        if self._waiting_bytes <= limit_bytes:
            return
        sizes: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for line in reversed(self._waiting):
            sizes[line.ranks].append(line.num_bytes)
        counts = newest_within(sizes, limit_bytes - sum(sizes.pop((), ())))
        for ranks, count in counts.items():
            if count < len(sizes[ranks]):
                self._missing.update(dict.fromkeys(ranks, len(sizes[ranks]) - count))
        kept: deque[Line] = deque()
        for line in reversed(self._waiting):
            if not line.ranks:
                kept.appendleft(line)
            elif counts[line.ranks]:
                counts[line.ranks] -= 1
                kept.appendleft(line)
        self._waiting = kept
        self._waiting_bytes = sum(line.num_bytes for line in kept)

    def _pop(self) -> Line:
        line = self._waiting.popleft()
        self._waiting_bytes -= line.num_bytes
        return line
