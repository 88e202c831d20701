"""``display(...)`` in a rank: rank 0's arrive in the cell, in order with what it prints; others' only in their logs.

    display(fig) ──> MIME bundle ──event──> keeper ──> view of the cell
    IPython.display.display, plt.show() ──^

`install` makes ``display`` a builtin, as IPython does, and answers for IPython's own functions of that name once a rank
imports them: there is no IPython shell in a rank that could.
"""

from __future__ import annotations

import builtins
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ...protocol import sink
from ...protocol.events import Display
from .mime import Shown, limited, method_of, shown_as

MAX_DISPLAYS = 1000
"""Of one run; further ones are in the log as text. A page does not take more."""
UPDATE_INTERVAL_S = 0.1
"""Updates of one display that come faster wait for the next one, or for the end."""
IPYTHON_MODULE = "IPython.core.display_functions"
"""Where IPython defines what `_REPLACED` names (8.0 to 9.18)."""


class DisplayHandle:
    """What ``display(..., display_id=True)`` gives, as IPython's."""

    def __init__(self, display_id: str) -> None:
        self.display_id = display_id

    def display(self, value: object, **options: Any) -> None:  # noqa: ANN401  passed on
        display(value, display_id=self.display_id, **options)

    def update(self, value: object, **options: Any) -> None:  # noqa: ANN401  passed on
        display(value, display_id=self.display_id, update=True, **options)


class _Displays:
    """Those of this rank. The main thread's, or any one thread's at a time."""

    def __init__(self) -> None:
        self.shown = True
        """In the cell; else only as text in the log."""
        self.num_sent = 0
        self.sent_s: dict[str, float] = {}
        self.held_back: dict[str, Display] = {}

    def send(self, event: Display) -> None:
        """What the rank has printed so far comes before it."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if not self.shown:
            event = Display(data={"text/plain": event.data.get("text/plain", "")})
        if event.update:
            self.held_back[event.display_id] = event
            if time.monotonic() < self.sent_s.get(event.display_id, 0.0) + UPDATE_INTERVAL_S:
                return
            event = self.held_back.pop(event.display_id)
        else:
            self.num_sent += 1
            if self.num_sent > MAX_DISPLAYS:
                self._refuse(event)
                return
        self.sent_s[event.display_id] = time.monotonic()
        sink.emit(event)

    def flush(self) -> None:
        while self.held_back:
            sink.emit(self.held_back.popitem()[1])

    def _refuse(self, event: Display) -> None:
        if self.num_sent == MAX_DISPLAYS + 1:
            print(f"accel_nb: displays after the first {MAX_DISPLAYS:,} are shown as text", file=sys.stderr)  # noqa: T201  the rank's own output
        print(event.data.get("text/plain", ""))  # noqa: T201  likewise


_DISPLAYS = _Displays()


def display(
    *values: object,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] | None = None,
    metadata: Mapping[str, object] | None = None,
    transient: Mapping[str, object] | None = None,
    display_id: str | bool | None = None,
    raw: bool = False,
    clear: bool = False,
    update: bool = False,
) -> DisplayHandle | None:
    """Show `values` in the cell that launched this rank, if it is rank 0; else as text in its log.

    The arguments are those of IPython 9's ``display``. Raises TypeError or ValueError for what cannot be honoured.
    """
    if clear or transient:
        name = "clear" if clear else "transient"
        raise ValueError(f"display({name}=...) is not possible in a rank: its output is shared with the other ranks.")
    if update and not isinstance(display_id, str):
        raise TypeError("display(update=True) needs the display_id of what is to be replaced.")
    if not values and display_id is None:
        return None
    if len(values) > 1 and display_id not in (None, False):
        raise TypeError(f"display_id={display_id!r} names one display, and {len(values)} objects were given.")
    name = display_id if isinstance(display_id, str) else uuid.uuid4().hex
    for value in values:
        if not raw and (shows_itself := method_of(value, "_ipython_display_")) is not None:
            shows_itself()
            continue
        shown = _raw(value, metadata) if raw else shown_as(value)
        data = _chosen(shown.data, include, exclude)
        _DISPLAYS.send(Display(data=data, metadata=shown.metadata, display_id=name, update=update))
    return DisplayHandle(name) if display_id else None


def update_display(value: object, *, display_id: str, **options: Any) -> None:  # noqa: ANN401  passed on
    display(value, display_id=display_id, update=True, **options)


def publish_display_data(
    data: Mapping[str, object],
    metadata: Mapping[str, object] | None = None,
    *,
    transient: Mapping[str, object] | None = None,
    **options: Any,  # noqa: ANN401  passed on
) -> None:
    known = str((transient or {}).get("display_id") or "")
    display(data, raw=True, metadata=metadata, display_id=known or None, **options)


def clear_output(wait: bool = False) -> None:  # noqa: ARG001  IPython's argument
    """Nothing is cleared: the output is shared with the other ranks. Said once, in the rank's own output."""
    if _DISPLAYS.sent_s.setdefault("clear_output", 0.0) == 0.0:
        _DISPLAYS.sent_s["clear_output"] = 1.0
        print("accel_nb: clear_output() clears nothing in a rank, whose output is shared with the others")  # noqa: T201  the rank's own output


_REPLACED = {
    "display": display,
    "update_display": update_display,
    "publish_display_data": publish_display_data,
    "clear_output": clear_output,
}


def install(rank: int) -> None:
    """For rank number `rank`, before user code runs."""
    show_here(wanted=rank == 0)
    builtins.display = display  # type: ignore[attr-defined]  # as IPython does for cells
    _replace(sys.modules.get(IPYTHON_MODULE))
    _replace(sys.modules.get("IPython.display"))
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def show_here(*, wanted: bool) -> None:
    """Whether what this rank displays is to be shown; a new count of displays begins."""
    _DISPLAYS.shown = wanted
    _DISPLAYS.num_sent = 0
    _DISPLAYS.sent_s.clear()


def finish() -> None:
    """The function or cell is over: show figures that are still open, and the last updates."""
    from .figures import show_open_figures

    show_open_figures()
    _DISPLAYS.flush()


def _raw(value: object, metadata: Mapping[str, object] | None) -> Shown:
    if not isinstance(value, Mapping):
        raise TypeError(f"display(raw=True) takes a dict of MIME types, not {type(value).__name__}.")
    return limited(value, metadata or {})


def _chosen(data: dict[str, str], include: Iterable[str] | None, exclude: Iterable[str] | None) -> dict[str, str]:
    wanted = set(data) if include is None else {"text/plain", *include}
    return {mime: content for mime, content in data.items() if mime in wanted - set(exclude or ())}


def _replace(module: ModuleType | None) -> None:
    if module is not None:
        vars(module).update(_REPLACED)


class _Finder(MetaPathFinder):
    """Lets IPython's module be found as usual, and puts our functions into it once it has run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != IPYTHON_MODULE:
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((found for found in others if found is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, original: Loader) -> None:
        self._original = original

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._original.exec_module(module)
        _replace(module)
