"""A rank that is kept from cell to cell: it waits for one, runs it in its ``__main__``, says how it went, waits again.

    keeper --RunCell, payload--> serve_cells --CellEnded, value--> keeper

Its function, as far as the launch is concerned, is `serve_cells`. An interrupt ends the cell; between cells, the rank.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable

from msgspec.structs import replace

from ...devices import gloo_groups, nccl_groups
from ...protocol import ledger, lockstep
from ...protocol.commands import CloseGroups, EndCells, RankMessage, RunCell
from ...protocol.events import CellEnded, RunEvent
from ...protocol.failure import RankFailure
from ..channel import BlockingReader
from ..failures import describe
from ..payload.packing import pack_value, unpack
from . import displays
from .group_shim import SHIM

LATE_INTERRUPT_S = 1.0
"""An interrupt that was meant for a cell may come so long after its end."""
OWN_STATE = "accel_nb.training.ranks.state"
"""Where the training layer, if the rank has imported it, keeps what belongs to a process group."""
ACCELERATES_STATE = "accelerate.state"
"""Likewise Hugging Face Accelerate (1.15)."""

_CLOSE: dict[str, Callable[[], None]] = {"gloo": gloo_groups.close, "nccl": nccl_groups.close}
"""How ranks that wait in an operation of this backend are freed. Any other is closed as always."""

Report = Callable[[RunEvent, tuple[int, ...]], None]


class CellDesk:
    """This rank's end of the channel, from which cells come. Filled in by the rank's main, before the function runs."""

    def __init__(self) -> None:
        self._reader: BlockingReader[RankMessage] | None = None
        self._report: Report | None = None
        self._rank = 0
        self._owned: set[str] = set()
        self._ended_s = float("-inf")

    def open(self, reader: BlockingReader[RankMessage], report: Report, rank: int) -> None:
        self._reader, self._report, self._rank = reader, report, rank

    def serve(self) -> None:
        """Until no cell follows. Raises KeyboardInterrupt when the rank is stopped between cells."""
        assert self._reader is not None
        while True:
            match self._next(self._reader):
                case RunCell() as order:
                    self._run(order, self._reader.take_fd())
                case CloseGroups(epoch=epoch):
                    close_groups(epoch)
                case EndCells() | None:
                    return
                case _:
                    pass  # of a later version

    def _next(self, reader: BlockingReader[RankMessage]) -> object:
        while True:
            try:
                return reader.next()
            except KeyboardInterrupt:
                if time.monotonic() > self._ended_s + LATE_INTERRUPT_S:
                    raise

    def _run(self, order: RunCell, payload_fd: int) -> None:
        ended, fds = CellEnded(cell=order.cell), tuple[int, ...]()
        try:
            try:
                value = self._called(order, payload_fd)
                packed = pack_value(value) if order.sends_value else None
            finally:
                # From here on the cell is over, and an interrupt of it comes too late.
                before = signal.signal(signal.SIGINT, signal.SIG_IGN)
            if packed is not None:
                ended, fds = replace(ended, value_bytes=packed.size_bytes), (packed.fd,)
        except BaseException as error:  # noqa: BLE001  whatever a cell raises is its result, and the rank stays
            packed = None
            ended = replace(ended, failure=self._failure(error))
        own = ledger.own()
        num_calls = 0 if own is None else own.page.number(self._rank)
        ended = replace(ended, owned=tuple(sorted(self._owned)), num_calls=num_calls, lockstep=lockstep.standing())
        self._tell(ended, fds)
        if packed is not None:
            packed.close()
        gc.collect()
        self._ended_s = time.monotonic()
        signal.signal(signal.SIGINT, before)

    def _called(self, order: RunCell, payload_fd: int) -> object:
        """Call the payload's function. The variables that cells have set stay as they are, unless they are pushed."""
        namespace = vars(sys.modules["__main__"])
        self._owned.difference_update(order.pushed)
        owned = {name: namespace[name] for name in self._owned if name in namespace}
        try:
            function, args, kwargs = unpack(payload_fd)
        finally:
            os.close(payload_fd)
        namespace.update(owned)
        before = dict(namespace)
        displays.show_here(wanted=order.is_first)
        if (own := ledger.own()) is not None:
            own.cell = order.cell
        try:
            return function(*args, **kwargs)
        finally:
            changed = {name for name, value in namespace.items() if name not in before or before[name] is not value}
            self._owned = {name for name in self._owned | changed if name in namespace and not name.startswith("__")}

    def _failure(self, error: BaseException) -> RankFailure:
        failure = describe(error, rank=self._rank)
        is_stop = isinstance(error, KeyboardInterrupt)
        # Nothing may keep the frames of the cell, and with them its variables.
        error.__traceback__ = None
        return replace(failure, kind="stopped") if is_stop else failure

    def _tell(self, event: CellEnded, fds: tuple[int, ...]) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        assert self._report is not None
        self._report(event, fds)


DESK = CellDesk()
"""One per rank."""


def serve_cells() -> None:
    """The function of ranks that are kept."""
    DESK.serve()


def close_groups(epoch: int) -> None:
    """Close the default process group, and forget what training layers knew of it. `epoch` is the same on all ranks."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        close = _CLOSE.get(distributed.get_backend(), distributed.destroy_process_group)
        close()
    SHIM.realign(epoch)
    lockstep.begin_epoch(epoch)
    state = sys.modules.get(OWN_STATE)
    if state is not None:
        state.reset_state()
    accelerate = sys.modules.get(ACCELERATES_STATE)
    if accelerate is not None:
        accelerate.AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001  as its own tests do
