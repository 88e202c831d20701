"""The life of a rank: wait for an order, become that rank, run the function, report, leave.

keeper --RankOrder, payload--> rank --events, value--> keeper
its stdout and stderr --one pipe--> keeper
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import io
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from msgspec.structs import replace

from ...errors import PayloadError
from ...protocol import environment, ledger, sink
from ...protocol.commands import Confirm, GetReady, RankMessage, RankOrder, RankReady, StoreAddress
from ...protocol.events import RankFailed, RankFinished, RankStarted, RunEvent
from ...protocol.failure import RankFailure
from ...protocol.stack_signal import answer_stack_signal
from ...protocol.wire import frame
from ..channel import BlockingReader, send_with_fds
from ..explanations.dry_runs import known_of_dry_runs
from ..failures import describe, exit_status_of
from ..output import tqdm_notebook
from ..payload.memory_file import Packed
from ..payload.packing import pack_value, unpack
from . import displays, memory_history, surroundings
from .group_shim import SHIM, ShimContext
from .imported import imported_after, third_party
from .kept_cells import DESK
from .one_step import ending_after_one_step
from .standby import get_ready


class Reporter:
    """The rank's end of its channel. Any thread may report."""

    def __init__(self, sock: socket.socket, rank: int) -> None:
        self._socket = sock
        self._rank = rank
        self._lock = threading.Lock()

    def report(self, event: RunEvent, fds: tuple[int, ...] = ()) -> None:
        stamped = replace(event, rank=self._rank, time_s=time.time())
        with self._lock:
            send_with_fds(self._socket, frame(stamped), fds)


def wait_for_order(
    sock: socket.socket, reader: BlockingReader[RankMessage], meanwhile: Iterator[None]
) -> tuple[RankOrder, int]:
    """Block until the keeper's order is here, taking steps of `meanwhile` as long as nothing comes; gives it with the
    payload's memory file. Exits when none will come. `reader` reads from `sock`.
    """
    while (message := reader.next_after(meanwhile)) is not None:
        match message:
            case StoreAddress():
                SHIM.connect(message.host, message.port)
            case GetReady():
                # First, as nobody waits: what is left of it would close the group that is opened here.
                for _ in meanwhile:
                    pass
                get_ready(message)
                send_with_fds(sock, frame(RankReady()))
            case Confirm():
                send_with_fds(sock, frame(RankReady()))
            case RankOrder():
                return message, reader.take_fd()
    os._exit(0)


def run_rank(sock: socket.socket, page: ledger.LedgerPage, meanwhile: Iterator[None]) -> NoReturn:
    """Everything a started process does as a rank. stdout and stderr must be the keeper's pipe already.

    `page`: the run's ledger. `meanwhile`: what it may do step by step while no order comes.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    newest_module = next(reversed(sys.modules))
    reader = BlockingReader[RankMessage](sock, RankMessage)
    order, payload_fd = wait_for_order(sock, reader, meanwhile)
    reporter = Reporter(sock, order.rank_plan.rank)
    DESK.open(reader, reporter.report, order.rank_plan.rank)
    code = 1
    try:
        _settle_in(order)
        _open_ledger(page, order.rank_plan.rank)
        sink.deliver_to(reporter.report)
        reporter.report(RankStarted(pid=os.getpid(), device=order.rank_plan.device_label))
        code = _call(order, payload_fd, reporter, newest_module)
    except KeyboardInterrupt:
        # Stopped outside the function: nothing of the user's to report.
        failure = RankFailure(rank=order.rank_plan.rank, kind="stopped", time_s=time.monotonic())
        reporter.report(RankFailed(failure=failure))
    except BaseException:  # noqa: BLE001  of our own: nobody above could tell it
        traceback.print_exc()
    finally:
        _leave(code)


def _settle_in(order: RankOrder) -> None:
    _open_stdio()
    faulthandler.enable(answer_stack_signal(Path(order.stack_file)), all_threads=True)
    surroundings.take_over(order.surroundings, cpu_threads=order.rank_plan.cpu_threads)
    tqdm_notebook.install()
    displays.install(order.rank_plan.rank)
    SHIM.activate(ShimContext.of(order))


def _open_ledger(page: ledger.LedgerPage, rank: int) -> None:
    """After the environment is the rank's."""
    own = ledger.RankLedger(page, rank)
    own.compares = environment.debug_mode() is not False
    ledger.open_own(own)


def _open_stdio() -> None:
    """Text streams on the keeper's pipe: a whole line is one write, so that lines of threads do not mix."""
    sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115  lives as long as the process
    for fd, name in ((1, "stdout"), (2, "stderr")):
        stream = text_stream(fd)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def text_stream(fd: int) -> io.TextIOWrapper:
    """As user code gets them. Leaves `fd` open."""
    raw = os.fdopen(fd, "wb", buffering=io.DEFAULT_BUFFER_SIZE, closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _call(order: RankOrder, payload_fd: int, reporter: Reporter, newest_module: str) -> int:
    """Load and call the function, report its end; gives the process's exit status."""
    try:
        function, args, kwargs = unpack(payload_fd)
        if order.memory_snapshot_file:
            memory_history.record()
        if order.dry_run:
            function = ending_after_one_step(function)
        _note_life(ledger.RUNNING)
        value = function(*args, **kwargs)
        displays.finish()
    except SystemExit as stop:
        code = exit_status_of(stop)
        if code:
            _report_failure(order, reporter, stop)
            return code
        value = None
    except BaseException as error:  # noqa: BLE001  whatever user code raises is its result
        _report_failure(order, reporter, error)
        return 1
    _note_life(ledger.RETURNED)
    return _report_value(order, reporter, value, newest_module)


def _report_value(order: RankOrder, reporter: Reporter, value: object, newest_module: str) -> int:
    try:
        packed = pack_value(value if order.send_value else None)
    except PayloadError as error:
        _report_failure(order, reporter, error)
        return 1
    _flush()
    modules = third_party(imported_after(newest_module)) if order.rank_plan.rank == 0 else ()
    reporter.report(RankFinished(value_bytes=packed.size_bytes, modules=modules), (packed.fd,))
    packed.close()
    return 0


def _report_failure(order: RankOrder, reporter: Reporter, error: BaseException) -> None:
    failure = describe(error, rank=order.rank_plan.rank, known=known_of_dry_runs(order))
    if order.memory_snapshot_file:  # before the others know: they would have this rank stopped meanwhile
        failure = replace(failure, memory=memory_history.take(Path(order.memory_snapshot_file)))
    _note_life(ledger.FAILED)
    _flush()
    reporter.report(RankFailed(failure=failure))
    # Afterwards: it may take long, and a stop that comes meanwhile is no news.
    with contextlib.suppress(PayloadError, OSError, KeyboardInterrupt):
        _keep_exception(error, order.exception_file)


def _note_life(life: int) -> None:
    """In the ledger, where those see it who wait for this rank."""
    if (own := ledger.own()) is not None:
        own.live(life)


def _keep_exception(error: BaseException, path: str) -> None:
    error.__traceback__ = None
    packed: Packed = pack_value(error)
    with Path(path).open("wb") as file:
        os.sendfile(file.fileno(), packed.fd, 0, packed.size_bytes)
    packed.close()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _leave(code: int) -> NoReturn:
    """End the process as an interpreter would, without returning into the code it was forked from."""

    def at_once(*_: object) -> None:
        _flush()
        os._exit(code)

    # All is reported: an interrupt from here on ends what atexit or a thread still does, without a traceback.
    signal.signal(signal.SIGINT, at_once)
    steps: tuple[Callable[[], object], ...] = (
        *((SHIM.close_groups,) if code == 0 and "torch" in sys.modules else ()),
        threading._shutdown,  # type: ignore[attr-defined]  # noqa: SLF001  what the interpreter itself calls to wait for non-daemon threads
        atexit._run_exitfuncs,  # noqa: SLF001  likewise: multiprocessing's finalizers are registered there
    )
    for step in steps:
        try:
            step()
        except BaseException:  # noqa: BLE001  the value is reported already; the log tells the rest
            sys.excepthook(*sys.exc_info())
            code = code or 1
    if code == 0:
        _note_life(ledger.ENDED)  # only now: what threads and atexit did may have been operations of all ranks
    _flush()
    os._exit(code)
