"""Logged metrics as lines of text, few enough to read: the newest values once a second."""

from __future__ import annotations

from ...protocol.events import MetricsLogged, SettingsLogged

INTERVAL_S = 1.0
"""Between two lines of the same metrics."""
MAX_KINDS = 50
"""Sets of names that are told apart. Of further sets nothing is shown as text."""
MAX_NAMES = 12
"""Values shown in one line."""

_Names = tuple[object, ...]


class MetricLines:
    """What is logged together is shown together, and its newest values win. One thread; `now` in monotonic seconds."""

    def __init__(self) -> None:
        self._waiting: dict[_Names, MetricsLogged] = {}
        self._told_s: dict[_Names, float] = {}

    def add(self, event: MetricsLogged) -> None:
        names = (event.rank, *event.values, *event.texts)
        if names in self._told_s or len(self._told_s) < MAX_KINDS:
            self._told_s.setdefault(names, float("-inf"))
            self._waiting[names] = event

    def due(self, now: float) -> list[tuple[int, str]]:
        """Rank and line of what may be shown now."""
        return self._told([names for names in self._waiting if now - self._told_s[names] >= INTERVAL_S], now)

    def rest(self, now: float) -> list[tuple[int, str]]:
        """The newest values that were not shown yet."""
        return self._told(list(self._waiting), now)

    def _told(self, kinds: list[_Names], now: float) -> list[tuple[int, str]]:
        self._told_s |= dict.fromkeys(kinds, now)
        events = [self._waiting.pop(names) for names in kinds]
        return [(event.rank or 0, metrics_line(event)) for event in events]


def metrics_line(event: MetricsLogged) -> str:
    """``step 120: loss 0.1234, accuracy 0.97``."""
    shown = [f"{name} {_number(value)}" for name, value in event.values.items()]
    shown += [f"{name} {text}" for name, text in event.texts.items()]
    if len(shown) > MAX_NAMES:
        shown[MAX_NAMES:] = [f"{len(shown) - MAX_NAMES:,} more"]
    step = "" if event.step is None else f"step {event.step:,}: "
    return step + ", ".join(shown)


def settings_line(event: SettingsLogged) -> str:
    """``digits: learning_rate=0.01, epochs=3``."""
    shown = [f"{name}={value}" for name, value in event.settings.items()]
    if len(shown) > MAX_NAMES:
        shown[MAX_NAMES:] = [f"{len(shown) - MAX_NAMES:,} more"]
    return f"{event.project}: {', '.join(shown)}"


def _number(value: float | None) -> str:
    if value is None:
        return "not a finite number"
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"  # noqa: PLR2004  beyond, floats are no exact integers
