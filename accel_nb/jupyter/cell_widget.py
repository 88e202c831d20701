"""The widget in the cell: one page's end of one run (anywidget), and whether it can be had here.

LiveView ──ToFrontEnd──▶ CellWidget ═comm═▶ labextension/src/cellWidget.tsx
LiveView ◀─FromFrontEnd─ CellWidget ◀═comm═      (on a subshell's thread, or on the main one)
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from ..protocol.front_end import FromFrontEnd, ToFrontEnd

STATIC = Path(__file__).parent / "static"
"""Made by ``npm run build``; in every wheel, in a checkout only after that."""
MODULE, STYLE = "run_view.js", "run_view.css"
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

OnMessage = Callable[[FromFrontEnd], None]


class Page(Protocol):
    """What shows a run to a person, wherever that is."""

    can_hear: bool
    """Whether this kernel can take in what the person presses while the cell runs."""

    @property
    def is_heard(self) -> bool:
        """Whether a page has opened the way for that: JupyterLab does, not every front end."""

    def send(self, message: ToFrontEnd) -> None: ...

    def data(self, text: str) -> dict[str, str]:
        """What to display, by MIME type; `text` is for front ends without widgets."""

    def close(self) -> None:
        """It shows nothing any more."""


class _Comm(Protocol):
    """What we need of ipykernel's Comm."""

    _reply_subshell_for: Callable[[object, object], object]


def unavailable_because() -> str | None:
    """A sentence for the user; None: the widget can be made."""
    if not (STATIC / MODULE).exists():
        return "it has not been built: run `npm ci && npm run build` in the checkout"
    if importlib.util.find_spec("anywidget") is None:
        return "the package anywidget is missing: pip install anywidget"
    return None


class CellWidget:
    """A `Page` in the front end that shows the cell. Made by one thread; any may send, and calls `on_message`."""

    def __init__(self, on_message: OnMessage) -> None:
        """Raises ImportError without anywidget, OSError without the built module."""
        self._on_message = on_message
        made = _widget_class()(_esm=(STATIC / MODULE).read_text(), _css=(STATIC / STYLE).read_text())
        self._widget = made
        _honour_subshell(made.comm)
        made.on_msg(self._receive)
        self.can_hear = _has_subshells()

    @property
    def is_heard(self) -> bool:
        return bool(_subshells())

    def send(self, message: ToFrontEnd) -> None:
        self._widget.send(msgspec.to_builtins(message, str_keys=True))

    def data(self, text: str) -> dict[str, str]:
        view = {"version_major": 2, "version_minor": 0, "model_id": self._widget.model_id}
        return {_WIDGET_VIEW: json.dumps(view), "text/plain": text}

    def close(self) -> None:
        self._widget.close()

    def _receive(self, _widget: object, content: object, _buffers: object) -> None:
        try:
            message = msgspec.convert(content, cast("type[FromFrontEnd]", FromFrontEnd))
        except msgspec.ValidationError:
            return  # of a newer page: what this version does not know it cannot do
        self._on_message(message)


@functools.cache
def _widget_class() -> Callable[..., Any]:
    """Importing what it is made of takes a while, and is for front ends only."""
    import anywidget
    from traitlets import Unicode

    class RunWidget(anywidget.AnyWidget):
        # Texts given to each widget: of a file anywidget would watch the changes, in a thread of its own.
        _esm = Unicode().tag(sync=True)
        _css = Unicode().tag(sync=True)

    return RunWidget


def _honour_subshell(comm: _Comm) -> None:
    """Let messages of the page arrive while a cell runs.

    ipykernel 7.4 sends what comes on a comm to the shell that sent last on it, which is the busy one, whatever the
    front end asked for (``ipykernel/comm/comm.py``). Until a release has a public way to say so.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda _data, default: default  # noqa: SLF001


def _has_subshells() -> bool:
    """Whether this kernel handles comm messages beside a running cell: ipykernel 7 and newer."""
    return bool(getattr(_kernel(), "_supports_kernel_subshells", False))


def _subshells() -> Sequence[str]:
    """Those that front ends have opened in this kernel."""
    return _kernel().shell_channel_thread.manager.list_subshell() if _has_subshells() else ()


def _kernel() -> Any:  # noqa: ANN401  its parts are those of ipykernel's version
    from ipykernel.kernelapp import IPKernelApp

    return IPKernelApp.instance().kernel if IPKernelApp.initialized() else None
