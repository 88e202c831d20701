"""Loggers that know their rank: one line for all ranks, or one per rank, in order if wanted.

Usable before any state exists, and without importing torch: a notebook makes its logger in a cell.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..protocol import environment, sink

if TYPE_CHECKING:
    from .ranks.process_group import RankFacts

_CALLER = 2
"""`stacklevel` of a record's caller as seen from `MultiProcessAdapter.log`, which is one frame itself."""


class MultiProcessAdapter(logging.LoggerAdapter[logging.Logger]):
    """A logger whose messages only the main rank records, unless they say otherwise.

    Each logging method takes two more arguments. ``main_process_only=False``: every rank that calls it records.
    ``in_order=True``: all ranks record, one after the other, by rank; `main_process_only` does not count then. In
    order, every rank has to make the call, whatever its level: they wait for each other, and a rank that does not
    come holds the others up. Before a `PartialState` or an `Accelerator` exists, nobody waits.

    Without a launch whose view says which rank wrote a line, messages of several ranks begin with ``[RANK r]``.
    Everything else is the logger's: level, handlers, filters, `exc_info`, `extra`. `stacklevel` is passed on as it is
    given; one frame of it is this class's own, as in ``accelerate.logging`` (1.15).

    Any thread may log, but not with `in_order`. Pickled, it keeps its level: a notebook's logger is as talkative in the
    ranks.
    """

    def __init__(self, logger: logging.Logger, extra: dict[str, object] | None = None) -> None:
        super().__init__(logger, extra or {})
        self._warned: set[tuple[str, ...]] = set()

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:  # noqa: ANN401  those of a logger
        """Record `msg` as the class says. Raises what the logger's own `log` raises."""
        main_process_only = kwargs.pop("main_process_only", True)
        in_order = kwargs.pop("in_order", False)
        kwargs.setdefault("stacklevel", _CALLER)
        if in_order:
            with _own_turn():
                self._record(level, msg, args, kwargs)
        elif not main_process_only or _rank()[0] == 0:
            self._record(level, msg, args, kwargs)

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """`msg` with the rank in front where nothing else says it, and `kwargs` with the adapter's `extra` added."""
        kwargs.setdefault("stacklevel", _CALLER)
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        rank, num_ranks = _rank()
        if num_ranks > 1 and not sink.is_open():
            return f"[RANK {rank}] {msg}", kwargs
        return msg, kwargs

    def warning_once(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  those of `warning`
        """`warning`, but not again for the same message and arguments."""
        known = tuple(map(repr, args))
        if known not in self._warned:
            self._warned.add(known)
            kwargs["stacklevel"] = kwargs.get("stacklevel", _CALLER) + 1  # this frame
            self.warning(*args, **kwargs)

    @property
    def propagate(self) -> bool:
        return self.logger.propagate

    @propagate.setter
    def propagate(self, value: bool) -> None:
        self.logger.propagate = value

    @property
    def disabled(self) -> bool:
        return self.logger.disabled

    @disabled.setter
    def disabled(self, value: bool) -> None:
        self.logger.disabled = value

    def _record(self, level: int, msg: object, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        if self.isEnabledFor(level):
            kwargs["stacklevel"] += 1  # this frame
            message, options = self.process(msg, kwargs)
            self.logger.log(level, message, *args, **options)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  what the logger has
        if name == "logger":  # while it is being made
            raise AttributeError(name)
        return getattr(self.logger, name)

    def __reduce__(self) -> tuple[Callable[..., MultiProcessAdapter], tuple[object, ...]]:
        return _restored, (self.logger.name, self.extra, self.logger.level, logging.getLogger().level)


def get_logger(name: str, log_level: str | None = None) -> MultiProcessAdapter:
    """The logger `name`, for several ranks.

    `log_level`: "DEBUG", "INFO", "WARNING", "ERROR" or "CRITICAL", in any case; None: that of ``ACCELERATE_LOG_LEVEL``,
    else as it is. It also becomes the root logger's, as with ``accelerate.logging``. ValueError for an unknown one.
    """
    logger = logging.getLogger(name)
    asked = log_level if log_level is not None else environment.log_level()
    if asked is not None:
        level = _known_level(asked, "ACCELERATE_LOG_LEVEL" if log_level is None else "log_level")
        logger.setLevel(level)
        logging.getLogger().setLevel(level)
    return MultiProcessAdapter(logger)


def _known_level(name: str, source: str) -> str:
    level = name.upper()
    if level not in logging.getLevelNamesMapping():
        raise ValueError(f"{source}={name!r} is unknown; choose one of DEBUG, INFO, WARNING, ERROR, CRITICAL.")
    return level


def _restored(name: str, extra: dict[str, object], level: int, root_level: int) -> MultiProcessAdapter:
    logger = logging.getLogger(name)
    if level:
        logger.setLevel(level)
    if logging.getLogger().level == logging.WARNING:  # nobody has set it in this process
        logging.getLogger().setLevel(root_level)
    return MultiProcessAdapter(logger, extra)


@contextmanager
def _own_turn() -> Iterator[None]:
    """Run the block when the ranks before have run theirs. Every rank must come here, whatever it has to do."""
    facts = _facts()
    if facts is None:
        yield
        return
    _wait(facts, facts.process_index)
    try:
        yield
    finally:
        _wait(facts, facts.num_processes - facts.process_index)


def _wait(facts: RankFacts, num_turns: int) -> None:
    from .ranks import process_group

    for _ in range(num_turns):
        if process_group.is_open():  # it is closed after the training, and there is none in a process alone
            process_group.barrier(facts.device)


def _facts() -> RankFacts | None:
    """What the state of this process knows; None, and no state is made, when there is none."""
    # Not imported: a process that has not imported it has no state, and need not import torch to log.
    module = sys.modules.get(f"{__package__}.ranks.state")
    facts: RankFacts | None = None if module is None else module.existing_facts()
    return facts


def _rank() -> tuple[int, int]:
    """Number of this rank and of all, as the state says, else the launcher's variables, else a process alone."""
    facts = _facts()
    if facts is not None:
        return facts.process_index, facts.num_processes
    started = environment.read_rank()
    return (0, 1) if started is None else (started.rank, started.world_size)
