"""Launches from the test's own process, which plays the kernel, and what a terminal would have shown of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accel_nb.launch.run import Run, start_run
from accel_nb.launch.run_failed import RunFailed
from accel_nb.launch.views.view import TextView
from accel_nb.protocol.plan import LaunchRequest

DEADLINE_S = 100
"""Only so that a hang fails its own test: no launch of these tests takes a tenth of it."""


class Launched:
    """A run that is over."""

    def __init__(self, run: Run, text: str) -> None:
        self.run = run
        self.text = text
        """Banner, lines with their prefixes, sentences of the launcher."""

    @property
    def values(self) -> list[Any]:
        """What the ranks returned. Raises what `Run.result` raises."""
        return list(self.run.result(timeout_s=0))

    @property
    def failure(self) -> RunFailed:
        """The error of a run that failed."""
        try:
            values = self.values
        except RunFailed as error:
            return error
        raise AssertionError(f"the run did not fail, it gave {values!r}")


def start(
    function: Callable[..., object],
    *args: object,
    kwargs: Mapping[str, object] | None = None,
    write: Callable[[str], None] = lambda _: None,
    **request: Any,  # noqa: ANN401  the fields of LaunchRequest
) -> Run:
    """A run under way, two CPU ranks unless told otherwise. The caller must draw it."""
    asked = {"num_processes": 2, "device": "cpu", "function_name": function.__name__, **request}
    return start_run(LaunchRequest(**asked), function, args, kwargs or {}, TextView(write))


def launch(function: Callable[..., object], *args: object, **options: Any) -> Launched:  # noqa: ANN401  see `start`
    """`function` on two CPU ranks, to the end."""
    texts: list[str] = []
    run = start(function, *args, write=texts.append, **options)
    run.draw()
    assert run.wait(DEADLINE_S)
    return Launched(run, "".join(texts))


def on_ranks(function: Callable[..., object], *args: object, **options: Any) -> list[Any]:  # noqa: ANN401  see `start`
    """What `function` returns on each of two CPU ranks. Raises RunFailed."""
    return launch(function, *args, **options).values


def lines_of(launched: Launched, rank: int) -> Sequence[str]:
    """The lines shown of `rank` alone, prefix removed."""
    prefix = f"[r{rank}] "
    return [line.removeprefix(prefix) for line in launched.text.splitlines() if line.startswith(prefix)]
