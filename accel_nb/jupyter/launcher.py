"""The public launchers: Hugging Face Accelerate's signatures, this launcher's behaviour."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ..errors import AccelNbError
from ..launch.payload.packing import function_name
from ..launch.planning.checks import check_arguments, plain_int
from ..launch.result import RunResult
from ..launch.run import Run, draw_in_background, start_run
from ..protocol.plan import LaunchRequest, OnFailure, Returns, StartMethod, Timeouts
from .asked import LeftOutNumber, LeftOutText, asked_by_call, naming_the_file
from .cell_watch import watch_cells
from .display import choose_view
from .known_runs import KNOWN

Function = Callable[..., Any]  # the user's own: nothing is known of its values
Config = dict[str, str | int | float | bool]
_NO, _AUTO, _STATIC, _LOOPBACK = LeftOutText("no"), LeftOutText("auto"), LeftOutText("static"), LeftOutText("127.0.0.1")
_FIRST, _ONE = LeftOutNumber(0), LeftOutNumber(1)


def notebook_launcher(
    function: Function,
    args: Sequence[object] = (),
    num_processes: int | None = None,
    mixed_precision: str = _NO,
    use_port: int | None = None,
    master_addr: str = _LOOPBACK,
    node_rank: int = _FIRST,
    num_nodes: int = _ONE,
    rdzv_backend: str = _STATIC,
    rdzv_endpoint: str = "",
    rdzv_conf: Config | None = None,
    rdzv_id: str = "none",
    max_restarts: int = 0,
    monitor_interval: float = 0.1,
    log_line_prefix_template: str | None = None,
    *,
    kwargs: Mapping[str, object] | None = None,
    devices: Sequence[int | str] | None = None,
    device: str = _AUTO,
    backend: str = _AUTO,
    hostfile: str | None = None,
    block: bool = True,
    env: Mapping[str, str] | None = None,
    debug: bool | None = None,
    on_failure: OnFailure = "raise",
    start_method: StartMethod = "forkserver",
    returns: Returns = "all",
    dry_run: bool = False,
    memory_snapshot: bool = False,
    timeouts: Timeouts | None = None,
) -> Any:  # noqa: ANN401  a RunResult, or a Run with block=False: the caller knows which
    """Run ``function(*args, **kwargs)`` on every rank and give back what each rank returned, in order.

    The positional parameters are those of Accelerate 1.15's ``notebook_launcher``. What is left out is taken from the
    settings file of ``accel-nb launch``, where there is one (see `accel_nb.launch.settings.settings_file`).

    Args:
        function: any callable, from a cell or a module. It is pickled by value; nothing of the kernel's state follows.
        num_processes: number of ranks. None: one per visible accelerator, else 1.
        mixed_precision: "no", "bf16" or "fp16": what an `Accelerator` in the function uses by default.
        use_port: a fixed port for the ranks' store. None: one that is free, held from the start.
        max_restarts: how often all ranks are started again after a failure.
        monitor_interval: seconds between two looks at the ranks' output. Their end is noticed at once.
        log_line_prefix_template: prefix of output lines, with ``${rank}``, ``${local_rank}``, ``${role_name}``.
        devices: which accelerators, in the order of the ranks: positions among the visible ones, or ids.
        device: "auto", "cuda" or "cpu". Asking for one that is not there is an error.
        backend: the engine that starts ranks: "local", "mpi" (mpirun), "ray", "elastic" (several machines, each with
            a call of its own). "auto" is the last one where `num_nodes` is above 1, else the first.
        hostfile: with "mpi", the file of the hosts that run ranks, as any mpirun reads it. None: this machine.
        block: True gives a `RunResult` (or a `DryRun`, which is one); False gives a `Run` at once, whose output goes on
            in this cell.
        env: variables for the ranks, on top of the kernel's own.
        on_failure: "raise", or "return" to get a result whose ``failures`` say what happened.
        start_method: "forkserver" (the warm server), "spawn" (fresh interpreters) or "fork" (of this kernel).
        returns: "main" brings back rank 0's value only.
        dry_run: run the first step on CPU ranks instead and tell what would go wrong: a `DryRun` comes back, whose repr
            begins with that. No device is taken.
        memory_snapshot: have ranks on GPUs record where memory is allocated; when one fails, the lines that held most
            of it are told, and the whole record is in the run's folder.
        timeouts: deadlines; see `accel_nb.Timeouts`.

    Raises:
        PlanError, PayloadError: nothing was started; the message says what to change.
        RunFailed: a rank failed. Its last lines are the rank's own traceback.
        KeyboardInterrupt: the cell was interrupted; the ranks and all they started are gone.

    May be called from any thread, several times at once. Arguments of Accelerate's that need several machines are
    refused by name.
    """
    refused: AccelNbError | None = None
    watch_cells()
    try:
        check_arguments(args=args, kwargs=kwargs, devices=devices, env=env, timeouts=timeouts)
        kept_too = {
            "num_processes": plain_int(num_processes), "mixed_precision": mixed_precision, "use_port": use_port,
            "master_addr": master_addr, "node_rank": node_rank, "num_nodes": num_nodes, "rdzv_backend": rdzv_backend,
            "devices": None if devices is None else tuple(map(plain_int, devices)), "device": device,
            "backend": backend, "hostfile": hostfile, "env": None if env is None else dict(env), "debug": debug,
        }  # fmt: skip
        request = replace(
            asked_by_call(kept_too),
            function_name=function_name(function),
            rdzv_endpoint=rdzv_endpoint,
            rdzv_conf=rdzv_conf,
            rdzv_id=rdzv_id,
            max_restarts=plain_int(max_restarts),
            monitor_interval=monitor_interval,
            log_line_prefix_template=log_line_prefix_template,
            block=block,
            on_failure=on_failure,
            start_method=start_method,
            returns=returns,
            dry_run=dry_run,
            memory_snapshot=memory_snapshot,
            timeouts=Timeouts() if timeouts is None else timeouts,
        )
        run = launch(request, function, args, kwargs or {})
    except AccelNbError as error:
        refused = error.with_traceback(None)
    # A notebook keeps the last exception, with its frames: they must not keep the user's objects alive.
    del function, args, kwargs
    if refused is not None:
        raise refused
    return waited_for(run) if block else _shown_meanwhile(run)


def launch(
    request: LaunchRequest, function: Function, args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
) -> Run:
    """Start a run that belongs to the cell which runs now. Raises as `accel_nb.launch.run.start_run`."""
    view = choose_view()
    with naming_the_file(request):
        run = start_run(request, function, args, kwargs or {}, view)
    view.serve(run, raises=request.block and request.on_failure == "raise")
    KNOWN.add(run)
    return run


def _shown_meanwhile(run: Run) -> Run:
    draw_in_background(run)
    return run


def waited_for(run: Run) -> RunResult[Any]:
    """Show `run` in its cell until it is over; an interrupt ends it. Raises as `notebook_launcher`."""
    try:
        run.draw_interruptibly()
    except KeyboardInterrupt:
        # Interrupted on the way in: the run must not go on without anybody who waits for it.
        run.stop(0.0, by="interrupt")
        raise
    return run.result()


def debug_launcher(function: Function, args: Sequence[object] = (), num_processes: int = 2) -> RunResult[Any]:
    """Run `function` on CPU ranks, as Accelerate's ``debug_launcher`` does for tests; accelerators are not touched, and
    no settings file is read.
    """
    refused: AccelNbError | None = None
    watch_cells()
    try:
        check_arguments(args=args, kwargs=None, devices=None, env=None, timeouts=None)
        name, count = function_name(function), plain_int(num_processes)
        run = launch(LaunchRequest(function_name=name, num_processes=count, device="cpu"), function, args)
    except AccelNbError as error:
        refused = error.with_traceback(None)
    del function, args
    if refused is not None:
        raise refused
    return waited_for(run)
