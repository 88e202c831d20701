"""What stays of a run in the notebook: HTML without script, style or colour, and the same as text.

It is read where nothing of ours is installed: on GitHub, after nbconvert, in a notebook that is not trusted, on any
theme. So it has plain elements only, whose look is the reader's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from ..launch.failures import rank_ranges
from ..launch.run_failed import RunFailed
from ..launch.sizes import size_text
from ..protocol.events import BatchSizeTried, CollectiveMismatch
from ..protocol.mismatch import differing
from ..protocol.run_state import Curve, RankState, RunState, RunStatus

TRANSCRIPT_LINES = 500
"""The newest; the log files have everything."""
OPEN_LINES = 40
"""A longer transcript is folded."""
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_POINTS = 40
_ESCAPES = re.compile(r"\x1b\[[0-9;:]*[A-Za-z]")
_SIGNS: dict[RunStatus, str] = {
    "starting": "◌", "running": "●", "stopping": "◐", "finished": "✓", "failed": "✗", "stopped": "■",
}  # fmt: skip


class Written(NamedTuple):
    """What a run has given as text."""

    lines: Sequence[str]
    """The newest, prefixes and our own sentences included."""
    num_hidden: int
    """Lines before them."""
    bars: Sequence[str]
    """The last state of each progress bar."""


def static_html(state: RunState, written: Written, *, raises: bool) -> str:
    """`raises`: the failure itself is the cell's exception, shown below."""
    parts = [f"<p><strong>{escape(headline(state))}</strong></p>"]
    parts += [f"<p>{escape(sentence)}</p>" for sentence in _ladder_sentences(state)]
    if state.mismatch is not None:
        parts.append(_table(("Rank", "Operation", "Given", "Where", ""), _mismatch_rows(state.mismatch)))
    if failure := _failure_text(state, raises=raises):
        parts.append(_verbatim(escape(failure)))
    parts.append(_table(("Rank", "Device", "State", ""), _rank_rows(state)))
    if written.bars:
        parts.append(_verbatim(escape(_joined(written.bars))))
    if state.curves:
        parts.append(_table(("Metric", "Last", "Step", "Course"), _metric_rows(state)))
    parts.append(_lines_html(state, written))
    if state.log_dir:
        parts.append(f"<p>Logs: <code>{escape(state.log_dir)}</code></p>")
    return "<div>\n" + "\n".join(part for part in parts if part) + "\n</div>"


def static_text(state: RunState, written: Written, *, raises: bool) -> str:
    lines = [headline(state), *_ladder_sentences(state)]
    if state.mismatch is not None:
        lines.append(state.mismatch.sentence)
    if failure := _failure_text(state, raises=raises):
        lines += failure.splitlines()
    lines += ["  ".join(filter(None, ("rank " + row[0], *row[1:]))) for row in _rank_rows(state)]
    lines += ["  ".join(row) for row in _metric_rows(state)]
    shown = [*_hidden_line(state, written.num_hidden), *written.lines]
    return "\n".join([*lines, *(["", *map(_plain, shown)] if shown else []), *map(_plain, written.bars)])


def headline(state: RunState) -> str:
    """``✓ train finished: 2 ranks on cpu, 12.3 s``."""
    if state.plan is None:
        return "✗ The run did not start."
    num_ranks = state.plan.num_ranks
    facts = [f"{num_ranks} {'rank' if num_ranks == 1 else 'ranks'} on {state.plan.device_kind}"]
    if state.plan.mixed_precision != "no":
        facts.append(state.plan.mixed_precision)
    if state.attempt:
        facts.append(f"attempt {state.attempt + 1}")
    if state.duration_s:
        facts.append(f"{state.duration_s:.1f} s")
    return f"{_SIGNS[state.status]} {state.plan.function_name} {state.status}: {', '.join(facts)}"


def sparkline(curve: Curve) -> str:
    """The course of a metric in `SPARK_POINTS` characters at most."""
    values = [value for _, value in curve.points if value is not None]
    stride = -(-len(values) // SPARK_POINTS)
    shown = values[:: max(1, stride)]
    if len(shown) < 2:  # noqa: PLR2004  one value has no course
        return ""
    low, high = min(shown), max(shown)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((value - low) * scale)] for value in shown)


def _failure_text(state: RunState, *, raises: bool) -> str:
    if state.status != "failed" or not state.failures or state.plan is None:
        return ""
    text = str(RunFailed(state.failures, state.plan, state.log_dir, state.attempt + 1))
    return text.splitlines()[0] if raises else text


def _rank_rows(state: RunState) -> list[tuple[str, ...]]:
    return [(str(rank), known.device, _rank_status(known), _more(known)) for rank, known in sorted(state.ranks.items())]


def _rank_status(rank: RankState) -> str:
    if rank.failure is not None and rank.failure.kind in ("stopped", "died"):
        return rank.failure.kind
    return rank.status


def _more(rank: RankState) -> str:
    steps = [f"{rank.step_times.num_steps:,} steps"] if rank.step_times is not None else []
    peaks = [f"up to {size_text(rank.peak_memory_bytes)}"] if rank.peak_memory_bytes else []
    if rank.peak_device_bytes:
        peaks.append(f"up to {size_text(rank.peak_device_bytes)} of its device")
    more = [f"{rank.dropped_lines:,} lines in the log file only"] if rank.dropped_lines else []
    return ", ".join([*steps, *peaks, *more])


def _ladder_sentences(state: RunState) -> list[str]:
    """One per function that has searched for its batch size; all ranks agreed, so one of them tells."""
    tried: tuple[BatchSizeTried, ...] = max((rank.batch_sizes for rank in state.ranks.values()), key=len, default=())
    by_function: dict[str, list[str]] = {}
    for one in tried:
        where = f" on rank {rank_ranges(one.on_ranks)}" if one.on_ranks else ""
        step = f"{one.batch_size} {'✓ fits' if one.fits else f'✗ too large{where}'}"
        by_function.setdefault(one.function, []).append(step)
    return [f"Batch sizes tried by {name}: {' → '.join(steps)}" for name, steps in by_function.items()]


def _mismatch_rows(mismatch: CollectiveMismatch) -> list[tuple[str, ...]]:
    calls = list(zip(mismatch.operations, mismatch.given, strict=True))
    odd = differing(mismatch.operations, mismatch.given)
    places = mismatch.places or ("",) * len(calls)
    return [
        (str(rank), call[0] or "none yet", call[1], place, "← differs" if rank in odd else "")
        for rank, (call, place) in enumerate(zip(calls, places, strict=True))
    ]


def _metric_rows(state: RunState) -> list[tuple[str, ...]]:
    return [
        (name, "not finite" if curve.last[1] is None else f"{curve.last[1]:.4g}", str(curve.last[0]), sparkline(curve))
        for name, curve in state.curves.items()
        if curve.last is not None
    ]


def _verbatim(html: str) -> str:
    """In columns: nbconvert's theme has a proportional font for what is not code."""
    return f"<pre><code>{html}</code></pre>"


def _table(heads: Sequence[str], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _lines_html(state: RunState, written: Written) -> str:
    if not written.lines:
        return ""
    text = escape(_joined([*_hidden_line(state, written.num_hidden), *written.lines]))
    is_open = " open" if len(written.lines) <= OPEN_LINES else ""
    total = len(written.lines) + written.num_hidden
    return f"<details{is_open}><summary>Output, {total:,} lines</summary>{_verbatim(text)}</details>"


def _hidden_line(state: RunState, num_hidden: int) -> list[str]:
    return [f"… {num_hidden:,} lines before these: {state.log_dir or 'the log files'}"] if num_hidden else []


def _joined(lines: Sequence[str]) -> str:
    return "\n".join(map(_plain, lines))


def _plain(line: str) -> str:
    return _ESCAPES.sub("", line)
