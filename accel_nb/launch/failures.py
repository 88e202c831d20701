"""How ranks fail: an exception becomes text in the rank, a death becomes a sentence, many failures have one cause."""

from __future__ import annotations

import os
import re
import signal
import sysconfig
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from ..errors import AnotherRankFailed, DistributedOperationException
from ..protocol.failure import Explanation, RankFailure
from .explanations.explaining import explain_death, explain_error
from .explanations.known import Known

MAX_TEXT_CHARS = 64 << 10
ANNOUNCED_LINES = 3
"""Of those that a first line ending in a colon announces, so many are told with it."""
_LAUNCH_DIR = str(Path(__file__).parent) + os.sep
_PACKAGE_DIR = str(Path(__file__).parents[1]) + os.sep
_OWN_FRAMES = (f'  File "{_LAUNCH_DIR}', '  File "<string>"')
_LIBRARY_DIRS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_NO_FILES = ("<frozen ", "<string>")
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in ', re.MULTILINE)
_IN_WORKER = re.compile(r"^Caught \S+ in (DataLoader worker process \d+)\.\nOriginal Traceback ")
"""How torch begins the message of an exception that a worker has raised (``torch/_utils.py``, ExceptionWrapper)."""
_CELL_FRAME = re.compile(r'File "<(Cell In\[\d+\])>", line')
_CONSEQUENCE = re.compile(
    r"connection (?:closed|reset|was reset|refused|lost)|closed by peer|broken pipe|socket (?:timeout|closed)"
    r"|remote process exited|nccl communicator was aborted|ncclremoteerror|process group (?:was )?aborted"
    r"|failed to recv, got 0 bytes|recvvalue failed|sendbytes failed",
    re.IGNORECASE,
)
"""What gloo, NCCL and TCPStore say when a peer has gone (their texts of torch 2.6 to 2.13)."""
_TRANSPORT = re.compile(r"\bgloo\b|\bnccl|\btcpstore\b|\bc10d\b", re.IGNORECASE)
"""How their texts name their sender; gloo's begin with a path of its source, ``[/gloo/transport/tcp/pair.cc:547]``."""

CRASHES = {
    "SIGSEGV": "segmentation fault: native code touched memory that is not its own",
    "SIGABRT": "abort: native code gave up, its last lines usually say why",
    "SIGBUS": "bus error: often a full /dev/shm or a file that shrank while it was mapped",
    "SIGFPE": "arithmetic fault in native code",
    "SIGILL": "illegal instruction: a library built for another processor",
}


def describe(error: BaseException, *, rank: int, known: Sequence[Known] = ()) -> RankFailure:
    """`error` as text, in the rank that raised it. The traceback starts at the user's first frame, and no frame of it
    or of what it was raised from is the launcher's. `known`: explanations that come before the usual ones.
    """
    report = traceback.TracebackException.from_exception(error, compact=True)
    _drop_launcher_frames(report)
    return RankFailure(
        rank=rank,
        kind="raised",
        type_name=_type_name(error),
        message=bounded(_message(error)),
        traceback=bounded(readable("".join(report.format()))),
        location=bounded(_location_in_worker(error) or _location(report.stack)),
        exit_code=exit_status_of(error) if isinstance(error, SystemExit) else None,
        time_s=time.monotonic(),
        consequence=_follows_from_a_lost_peer(error),
        differing=error.differing if isinstance(error, DistributedOperationException) else None,
        explanation=_explanation(explain_error(error, known)),
    )


def headline(failure: RankFailure) -> str:
    """One line that says what went wrong. What a DataLoader worker raised is at the end of a long message."""
    lines = failure.message.strip().splitlines()
    if failure.kind == "dead_end":
        return lines[0]
    worker = _IN_WORKER.match(failure.message)
    if worker is not None:
        return f"{lines[-1]} (in {worker[1]})"
    first = _first_statement(lines)
    return ": ".join(part for part in (failure.type_name, first) if part) or failure.kind


def _first_statement(lines: Sequence[str]) -> str:
    """The first line, with what it announces when it ends in a colon: a few lines, one for each rank for example."""
    first, *rest = lines or ("",)
    if not rest or not first.endswith(":"):
        return first
    announced = [line.strip() for line in rest[:ANNOUNCED_LINES]]
    more = ["..."] if len(rest) > ANNOUNCED_LINES else []
    return f"{first} {'; '.join(announced + more)}"


def readable(text: str) -> str:
    """`text` with frames of cells as a notebook shows them: ``Cell In[7], line 12, in train``."""
    return _CELL_FRAME.sub(r"\1, line", text).rstrip("\n")


def bounded(text: str) -> str:
    """`text` as it can travel: the middle of a very long one left out, lone surrogates (names of files that are no
    UTF-8) written out.
    """
    more = len(text) - MAX_TEXT_CHARS
    if more > 0:
        half = MAX_TEXT_CHARS // 2
        text = f"{text[:half]}\n... {more:,} characters left out ...\n{text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()


def readable_stack(text: str) -> str:
    """What faulthandler wrote, without our own frames below the user's and without the list of extension modules."""
    lines = text.splitlines()
    kept = [line for line in lines if not line.startswith(("Extension modules:", *_OWN_FRAMES))]
    return readable("\n".join(kept))


def is_own_file(file: str) -> bool:
    """Whether code of `file`, as a code object names it, is the user's: no library's, not ours, not Python's own."""
    return not file.startswith((*_LIBRARY_DIRS, _PACKAGE_DIR, *_NO_FILES))


def exit_status_of(stop: SystemExit) -> int:
    """The exit status Python gives a process that ends with `stop`: None is 0, a text is printed and counts as 1."""
    if stop.code is None:
        return 0
    return stop.code if isinstance(stop.code, int) else 1


def death(
    *,
    rank: int,
    exit_code: int | None,
    signal_name: str | None,
    peak_memory_bytes: int,
    oom_killed: bool,
    last_lines: Sequence[str],
    stack: str,
) -> RankFailure:
    """A rank's process ended without a report: what is known, as a sentence."""
    return RankFailure(
        rank=rank,
        kind="died",
        message=death_text(exit_code, signal_name, peak_memory_bytes, oom_killed=oom_killed),
        exit_code=exit_code,
        signal=signal_name,
        peak_memory_bytes=peak_memory_bytes,
        last_lines=tuple(last_lines),
        stack=readable_stack(stack),
        time_s=time.monotonic(),
        explanation=_explanation(explain_death(signal_name, exit_code, last_lines)),
    )


def death_text(exit_code: int | None, signal_name: str | None, peak_memory_bytes: int, *, oom_killed: bool) -> str:
    peak = f"its memory peaked at {peak_memory_bytes / 2**30:.2f} GiB"
    if signal_name == "SIGKILL" and oom_killed:
        return f"killed by SIGKILL (signal 9): the out-of-memory killer ended it, {peak}. Use less host memory."
    if signal_name == "SIGKILL":
        return f"killed by SIGKILL (signal 9): probably out of host memory, or killed from outside; {peak}."
    if signal_name in CRASHES:
        return f"crashed with {signal_name} ({CRASHES[signal_name]}); {peak}."
    if signal_name:
        number = f" (signal {signal.Signals[signal_name].value})" if signal_name in signal.Signals.__members__ else ""
        return f"ended by {signal_name}{number} from outside; {peak}."
    if exit_code == 0:
        return "exited early without returning: something in it called os._exit(0)."
    return f"exited with status {exit_code} without returning; {peak}."


def explained(explanation: Explanation | None) -> list[str]:
    """The lines that follow the original error, which they never replace."""
    if explanation is None:
        return []
    return ["", f"What it means: {explanation.meaning}", f"What to do: {explanation.remedy}"]


def cause_first(failures: Sequence[RankFailure]) -> tuple[RankFailure, ...]:
    """All failures, the cause first: the earliest that is not a consequence of another, and of calls that do not fit
    together that of the odd one out; then by time.
    """
    return tuple(sorted(failures, key=_rank_of_cause))


def _rank_of_cause(failure: RankFailure) -> tuple[bool, bool, bool, float]:
    differing = failure.differing or ()
    is_as_most = bool(differing) and failure.rank not in differing
    return failure.kind == "stopped", failure.consequence, is_as_most, failure.time_s


def same_error(one: RankFailure, other: RankFailure) -> bool:
    """Whether a reader would call them the same: the rank's own number aside."""
    return same_message(one, other) and one.location == other.location


def same_message(one: RankFailure, other: RankFailure) -> bool:
    """As `same_error`, but wherever each was."""
    if (one.kind, one.type_name) != (other.kind, other.type_name):
        return False
    # One that lists all ranks is the same on each as it is.
    return one.message == other.message or _unnumbered(one) == _unnumbered(other)


def _unnumbered(failure: RankFailure) -> str:
    return re.sub(rf"\brank {failure.rank}\b", "this rank", failure.message)


def rank_ranges(ranks: Sequence[int]) -> str:
    """``0-3, 5`` for [0, 1, 2, 3, 5]."""
    parts: list[str] = []
    for rank in sorted(ranks):
        first, _, last = parts[-1].partition("-") if parts else ("", "", "")
        if parts and rank == int(last or first) + 1:
            parts[-1] = f"{first}-{rank}"
        else:
            parts.append(str(rank))
    return ", ".join(parts)


def _explanation(known: Known | None) -> Explanation | None:
    return None if known is None else known.explanation


def _drop_launcher_frames(report: traceback.TracebackException | None) -> None:
    if report is None:
        return
    report.stack[:] = [frame for frame in report.stack if not frame.filename.startswith(_LAUNCH_DIR)]
    for other in (report.__cause__, report.__context__, *(report.exceptions or ())):
        _drop_launcher_frames(other)


def _follows_from_a_lost_peer(error: BaseException) -> bool:
    """A user's own client may be refused or cut off, too: what it raises is no consequence of another rank's end."""
    if isinstance(error, AnotherRankFailed):
        return True
    message = bounded(_message(error))
    if not _CONSEQUENCE.search(message):
        return False
    modules = [kind.__module__ for kind in type(error).__mro__]
    return any(name.startswith("torch.distributed") for name in modules) or bool(_TRANSPORT.search(message))


def _type_name(error: BaseException) -> str:
    kind = type(error)
    prefix = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return f"{prefix}{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001  a user's __str__ may raise anything
        return f"<its __str__ raised {type(broken).__name__}>"


def _location(stack: traceback.StackSummary) -> str:
    return _innermost_of_user([(frame.filename, str(frame.lineno)) for frame in stack])


def _location_in_worker(error: BaseException) -> str:
    """Where a DataLoader worker raised what was brought to this process as `error`; empty for other errors."""
    message = _message(error)
    return _innermost_of_user(_FRAME.findall(message)) if _IN_WORKER.match(message) else ""


def _innermost_of_user(frames: Sequence[tuple[str, str]]) -> str:
    """``Cell In[7], line 12`` or ``train.py, line 12``; empty when no frame is the user's own."""
    own = [frame for frame in frames if not frame[0].startswith((*_LIBRARY_DIRS, _PACKAGE_DIR))]
    cells = [frame for frame in own if frame[0].startswith("<Cell")]
    for file, line in (cells or own)[-1:]:
        name = file.strip("<>") if file.startswith("<") else Path(file).name
        return f"{name}, line {line}"
    return ""
