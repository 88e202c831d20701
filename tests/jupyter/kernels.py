"""A real ipykernel: cells are run in it, and what it publishes is kept with the time it was sent."""

from __future__ import annotations

import contextlib
import queue
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

START_S = 60.0
ROOT = Path(__file__).parents[2]


class Published(NamedTuple):
    """One message on the kernel's IOPub channel."""

    time_s: float
    """Seconds since the epoch."""
    kind: str
    parent: str
    """Id of the message that ran the cell it belongs to."""
    content: dict[str, Any]  # type: ignore[explicit-any, unused-ignore]


class Kernel:
    def __init__(self, client: BlockingKernelClient) -> None:
        self._client = client
        self.published: list[Published] = []

    def run(self, code: str, timeout_s: float = 60.0) -> str:
        """Run a cell until the kernel is idle again; gives the id of its message. Fails when the cell does."""
        cell = self._client.execute(code)
        self._listen(time.monotonic() + timeout_s, until_idle=cell)
        errors = [message.content for message in self.published if message.kind == "error" and message.parent == cell]
        assert not errors, "\n".join(errors[0]["traceback"])
        return str(cell)

    def listen(self, seconds: float) -> None:
        self._listen(time.monotonic() + seconds)

    def of(self, cell: str, *kinds: str) -> list[Published]:
        return [message for message in self.published if message.parent == cell and message.kind in kinds]

    def text_of(self, cell: str) -> str:
        return "".join(message.content["text"] for message in self.of(cell, "stream"))

    def _listen(self, deadline_s: float, until_idle: str | None = None) -> None:
        while (left_s := deadline_s - time.monotonic()) > 0:
            try:
                message = self._client.get_iopub_msg(timeout=left_s)
            except queue.Empty:
                break
            parent = message["parent_header"].get("msg_id", "")
            sent_s = message["header"]["date"].timestamp()
            published = Published(sent_s, message["msg_type"], parent, message["content"])
            self.published.append(published)
            if parent == until_idle and published.kind == "status" and published.content["execution_state"] == "idle":
                return
        assert until_idle is None, "the cell did not end in time"


@contextlib.contextmanager
def running_kernel() -> Iterator[Kernel]:
    """A kernel of this interpreter, in the project's folder."""
    manager = KernelManager(kernel_name="python3")
    spec = manager.kernel_spec
    assert spec is not None
    spec.argv[0] = sys.executable
    manager.start_kernel(cwd=str(ROOT))
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=START_S)
        yield Kernel(client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
        manager.context.term()
