"""Progress bars as lines of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..protocol.run_state import RunState

MAX_ENDED_BARS = 50
"""Bars that are done and still shown; of more, the newest."""


def bar_lines(state: RunState, prefix: Callable[[Sequence[int]], str]) -> list[str]:
    """One line per bar, those of a rank together, prefixes aligned. `prefix`: what stands before a line of ranks."""
    rows = [
        (prefix([rank]), row)
        for rank, known in sorted(state.ranks.items())
        for _, row in sorted(known.progress.items())
        if row.text
    ]
    ended = [row for _, row in rows if row.done]
    hidden = {id(row) for row in sorted(ended, key=lambda row: row.sequence)[:-MAX_ENDED_BARS]}
    width = max((len(prefix) for prefix, _ in rows), default=0)
    lines = [f"… {len(hidden):,} more bars that have ended"] if hidden else []
    return lines + [f"{prefix:<{width}}{row.text}" for prefix, row in rows if id(row) not in hidden]
