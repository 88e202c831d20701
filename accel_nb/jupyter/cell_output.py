"""Writes into the output of one cell, from any thread, whatever cells run meanwhile.

Jupyter puts an output where its parent header points. ipykernel 6 keeps one header per process and ipykernel 7 one per
context, so that the prints of a thread land in whatever cell ran last. Here the header is taken once, when the cell
starts the run, and sent along explicitly. The parts of ipykernel used are the same in 6.31 and 7.4:
``Kernel.get_parent``, ``iopub_socket`` (hands messages to the thread that does I/O) and ``Session.send``.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from typing import Protocol, cast

Content = Mapping[str, object]

_OF_FRONT_ENDS = frozenset({"cellId", "colab"})
"""What front ends put into the metadata of a cell's request: JupyterLab 4, Notebook 7 and VS Code the cell's id
(``OutputArea.execute`` of @jupyterlab/outputarea 4; vscode-jupyter), Colab its own. nbclient 0.10 puts nothing.
"""


class _Session(Protocol):
    def send(self, stream: object, msg_or_type: str, content: Content, parent: Content, ident: bytes) -> object: ...


class _Kernel(Protocol):
    """What we need of `ipykernel.kernelbase.Kernel`."""

    session: _Session
    iopub_socket: object

    def get_parent(self, channel: str) -> Content: ...


class CellOutput:
    """The output area of the cell that runs when this is made, in the thread that makes it. Any thread may write."""

    def __init__(self, kernel: _Kernel) -> None:
        self._kernel = kernel
        self._thread = threading.get_ident()
        # The header is enough, and the message holds the cell's code and buffers.
        parent = kernel.get_parent("shell")
        self._parent: Content = {"header": parent["header"]} if parent else {}
        metadata = parent.get("metadata") if parent else None
        self.has_front_end = isinstance(metadata, Mapping) and not _OF_FRONT_ENDS.isdisjoint(metadata)
        """Whether a front end with a page has sent the cell, and no batch tool."""

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is the cell itself, which then goes on, or a thread that outlives it."""
        return threading.get_ident() == self._thread

    def write(self, text: str) -> None:
        """As if the cell had written `text` to its stdout. What the cell itself printed before comes before."""
        self._send("stream", {"name": "stdout", "text": text})

    def display(self, display_id: str, data: Mapping[str, str], metadata: str = "") -> None:
        """Show `data`, by MIME type, as a new output of the cell that `update` can replace.

        Kinds of JSON are given as JSON text, and so is `metadata`.
        """
        self._send_display("display_data", display_id, data, metadata)

    def update(self, display_id: str, data: Mapping[str, str], metadata: str = "") -> None:
        """Replace what `display` showed under `display_id`."""
        self._send_display("update_display_data", display_id, data, metadata)

    def _send_display(self, kind: str, display_id: str, data: Mapping[str, str], metadata: str) -> None:
        content = {
            "data": {mime: json.loads(text) if mime.endswith("json") else text for mime, text in data.items()},
            "metadata": json.loads(metadata) if metadata else {},
            "transient": {"display_id": display_id},
        }
        self._send(kind, content)

    def _send(self, kind: str, content: Content) -> None:
        if self.is_own_thread:
            sys.stdout.flush()
            sys.stderr.flush()
        kernel = self._kernel
        kernel.session.send(kernel.iopub_socket, kind, content, parent=self._parent, ident=kind.encode())


def current_cell() -> CellOutput | None:
    """The output of the cell that runs now; None outside an ipykernel, or where stdout is captured (``%%capture``)."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    kernel = getattr(shell, "kernel", None)
    if kernel is None or not _prints_into_cell():
        return None
    return CellOutput(cast("_Kernel", kernel))


def _prints_into_cell() -> bool:
    """Whether stdout is ipykernel's own stream, and not something that a user put in its place."""
    iostream = sys.modules.get("ipykernel.iostream")
    return iostream is not None and isinstance(sys.stdout, iostream.OutStream)
