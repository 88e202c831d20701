"""A flood of output from real ranks in a cell with a page: few messages, little text, every byte in the files."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from accel_nb.jupyter import cell_widget
from accel_nb.launch.views.flow_limit import BURST_BYTES, BYTES_PER_S
from tests.notebook_kernel import NotebookKernel

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(cell_widget.unavailable_because() is not None, reason="needs `npm ci && npm run build`"),
]

NUM_RANKS = 8
NUM_LINES = 30_000
MESSAGES_PER_S = 10
MAX_GROWTH_BYTES = 50 << 20
FLOOD = f"""
from accel_nb import notebook_launcher
import os, time, psutil

def flood():
    import os, sys
    rank = int(os.environ["RANK"])
    for first in range(0, {NUM_LINES}, 200):
        sys.stdout.write("".join(f"rank {{rank}} line {{number}}\\n" for number in range(first, first + 200)))
        sys.stdout.flush()
"""
LAUNCH = f"""
begun_s = time.monotonic()
notebook_launcher(flood, num_processes={NUM_RANKS}, device="cpu")
print("SECONDS", time.monotonic() - begun_s)
"""


@pytest.fixture(name="kernel")
def _kernel() -> Iterator[NotebookKernel]:
    started = NotebookKernel()
    started.ok(FLOOD)
    started.ok("notebook_launcher(print, ('warm',), num_processes=2, device='cpu')")
    yield started
    started.shutdown()


def test_o13_a_flood_costs_few_messages_and_little_memory_and_loses_no_byte(kernel: NotebookKernel) -> None:
    rss = "psutil.Process().memory_info().rss"
    before_bytes = kernel.value(rss)

    cell = kernel.start(LAUNCH, metadata={"cellId": "a"})
    executed = kernel.collect(cell, 100)

    assert executed.ename is None, executed.described()
    took_s = float(executed.stdout.split("SECONDS")[1])
    sent = [message for message in kernel.comm_messages if "type" in message.data.get("content", {})]
    num_bytes = sum(len(str(message.data)) for message in sent)
    assert len(sent) <= MESSAGES_PER_S * took_s + 5
    assert num_bytes < 4 * (BURST_BYTES + BYTES_PER_S * took_s), "text, and what is said about it"
    assert len(executed.displays) == 2, "the widget, and what stays"

    grown_bytes = int(str(kernel.value(rss))) - int(str(before_bytes))
    assert grown_bytes < MAX_GROWTH_BYTES

    newest = max(kernel.log_dir.glob("run-*"), key=os.path.getmtime)
    for rank in range(NUM_RANKS):
        expected = b"".join(b"rank %d line %d\n" % (rank, number) for number in range(NUM_LINES))
        assert (newest / f"rank_{rank}.log").read_bytes() == expected
