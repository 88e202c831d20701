"""The exception that a failed run raises in the kernel: text only, the cause first, readable in a cell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import AccelNbError
from ..protocol.failure import RankFailure
from ..protocol.plan import LaunchPlan
from .failures import cause_first, explained, headline, rank_ranges, same_error, same_message
from .memory_text import memory_lines

MAX_LINES = 40
"""`str(error)` stays within a screen; the log files hold everything."""
_KEPT_HEAD_LINES = 8


class RunFailed(AccelNbError):
    """Ranks failed. Holds text only: no frame, no tensor, nothing unpickled.

    `failures` has the cause first. `rank`, `exc_type`, `traceback_text` are the cause's; `ranks` are all ranks that
    failed with the same error.
    """

    def __init__(self, failures: Sequence[RankFailure], plan: LaunchPlan, log_dir: str, attempts: int = 1) -> None:
        self.failures = cause_first(failures)
        self.plan = plan
        self.log_dir = log_dir
        self.attempts = attempts
        super().__init__(self._text())

    def __reduce__(self) -> tuple[type[RunFailed], tuple[tuple[RankFailure, ...], LaunchPlan, str, int]]:
        return type(self), (self.failures, self.plan, self.log_dir, self.attempts)

    @property
    def cause(self) -> RankFailure:
        return self.failures[0]

    @property
    def rank(self) -> int:
        return self.cause.rank

    @property
    def exc_type(self) -> str:
        return self.cause.type_name

    @property
    def traceback_text(self) -> str:
        return self.cause.traceback

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(other.rank for other in self.failures if same_error(other, self.cause)))

    def original(self) -> BaseException:
        """The exception object itself, unpickled now (tensors on the CPU).

        Raises FileNotFoundError when the rank died or its exception could not be pickled.
        """
        from .payload.packing import unpack_value

        with (Path(self.log_dir) / f"rank_{self.rank}.exception").open("rb") as file:
            error = unpack_value(file.fileno())
        assert isinstance(error, BaseException)
        return error

    def _render_traceback_(self) -> list[str]:
        """What IPython shows instead of the kernel's own frames (a protocol of IPython's ``showtraceback``)."""
        return [f"RunFailed: {line}" if number == 0 else line for number, line in enumerate(str(self).splitlines())]

    def _text(self) -> str:
        lines = [self._headline(), *self._others()]
        if self.log_dir:
            lines.append(f"Log: {Path(self.log_dir) / f'rank_{self.rank}.log'}")
        if self.cause.memory is not None:
            lines += ["", *memory_lines(self.cause.memory)]
        body = self._body()
        meaning = explained(self.cause.explanation)
        room = MAX_LINES - len(lines) - len(meaning) - 1
        if len(body) > room:
            cut = len(body) - room + 1
            body = [*body[:_KEPT_HEAD_LINES], f"  ... {cut} lines, see the log", *body[_KEPT_HEAD_LINES + cut :]]
        return "\n".join([*lines, *(["", *body] if body else []), *meaning])

    def _headline(self) -> str:
        cause = self.cause
        who = f"rank {cause.rank} of {self.plan.num_ranks} ({self._place_of(cause.rank)})"
        again = f" in the last of {self.attempts} attempts" if self.attempts > 1 else ""
        if cause.kind == "died":
            return f"{self.plan.function_name}: {who} died{again}: {cause.message}"
        if cause.kind == "dead_end":
            return f"{self.plan.function_name}: {who}{again} {cause.message}"
        place = f" at {cause.location}" if cause.location else ""
        if cause.exit_code is not None:
            return f"{self.plan.function_name}: {who} ended{place}{again} with exit status {cause.exit_code}."
        if cause.differing is not None:
            return f"{self.plan.function_name}: {self._mismatch(who)}{place}{again}."
        return f"{self.plan.function_name}: {who} failed{place}{again}."

    def _place_of(self, rank: int) -> str:
        """Its device, and its node where there are several."""
        plan = next((plan for plan in self.plan.ranks if plan.rank == rank), None)
        if plan is None:
            return "?"
        several = len({other.node for other in self.plan.ranks}) > 1
        return f"{plan.device_label}, node {plan.node}" if several else plan.device_label

    def _mismatch(self, who: str) -> str:
        odd = self.cause.differing or ()
        if not odd:
            return f"the {self.plan.num_ranks} ranks do not fit together"
        if len(odd) > 1:
            who = f"{_ranks(odd)} of {self.plan.num_ranks}"
        return f"{who} {'do' if len(odd) > 1 else 'does'} not fit together with the others"

    def _others(self) -> list[str]:
        lines = []
        if len(self.ranks) > 1:
            lines.append(f"Same error on ranks {rank_ranges(self.ranks)}.")
        followed = [
            other.rank
            for other in self.failures
            if other.rank not in self.ranks and (other.consequence or other.kind == "stopped")
        ]
        if followed:
            lines.append(f"As a consequence: {_ranks(followed)} ended.")
        different: list[RankFailure] = []
        for other in self.failures:
            if other.rank in self.ranks or other.rank in followed or any(same_error(other, seen) for seen in different):
                continue
            different.append(other)
        for other in different:
            ranks = [more.rank for more in self.failures if same_error(more, other)]
            if other.location and same_message(other, self.cause):
                lines.append(f"Same error on {_ranks(ranks)} at {other.location}.")
            else:
                lines.append(f"Also {_ranks(ranks)}: {headline(other)}")
        return lines

    def _body(self) -> list[str]:
        cause = self.cause
        if cause.kind == "raised" or cause.traceback:
            return cause.traceback.splitlines()
        lines = []
        if cause.stack:
            lines += ["Its Python stack at that moment:", *cause.stack.splitlines(), ""]
        if cause.last_lines:
            lines += ["Its last lines:", *(f"  {line}" for line in cause.last_lines)]
        return lines


class RunInterrupted(KeyboardInterrupt):
    """The waiting cell was interrupted and the run was stopped. Shown in a few lines instead of a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


def stand_in(failure: RankFailure) -> Exception:
    """An exception named like the rank's own that holds its text: what `RunFailed` is chained to."""
    unnamed = "DeadEnd" if failure.kind == "dead_end" else "RankDied"
    kind = type(failure.type_name.rpartition(".")[2] or unnamed, (Exception,), {"__module__": "builtins"})
    error: Exception = kind(failure.message)
    return error


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {rank_ranges(ranks)}"
