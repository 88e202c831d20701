"""What `relaunch.py` runs in a process of its own per side: launch when told, say how long it took, or what is left.

relaunch.py ── a line of JSON: {"do": "launch"} ──▶ this process ──▶ its ranks ── time stamps in files
            ◀─ a line of JSON ────────────────────

Time stamps are those of ``time.monotonic``, which on Linux is one clock for all processes.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAYLOAD_BYTES = 1 << 20
READY_S = 60.0
UP_S = 120.0


def opens_group(backend: str) -> tuple[Any, Any]:
    """Open the group on this rank's device and reduce once. Gives torch.distributed and a tensor on the device."""
    import torch
    from torch import distributed

    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    distributed.init_process_group(backend)
    value = torch.ones(1, device=device)
    distributed.all_reduce(value)
    assert value.item() == distributed.get_world_size()
    return distributed, value


def first_all_reduce(payload: bytes, folder: str, backend: str) -> None:
    """The least that ranks can do together. Runs in each rank."""
    assert len(payload) == PAYLOAD_BYTES
    distributed, _ = opens_group(backend)
    Path(folder, f"rank_{distributed.get_rank()}").write_text(repr(time.monotonic()))
    distributed.destroy_process_group()


def ends(way: str, folder: str, backend: str) -> str:
    """Hold a gigabyte of the device, then end in one of five ways. Runs in each rank."""
    import torch

    distributed, value = opens_group(backend)
    held = torch.ones((1 << 28) if backend == "nccl" else (1 << 20), device=value.device)
    Path(folder, f"up_{distributed.get_rank()}").touch()
    if way == "success":
        return "success"
    if distributed.get_rank() == 1 or way == "interrupt":
        if way == "user error":
            raise ValueError("an error of the user's")
        if way == "kill":
            os.kill(os.getpid(), 9)
        if way == "out of memory":
            torch.empty(1 << 50, device=value.device)
        time.sleep(600)
    distributed.all_reduce(held)
    if backend == "nccl":
        torch.cuda.synchronize()
    return "came through"


def launch_upstream(folder: str, num_ranks: int, backend: str) -> None:
    from accelerate import notebook_launcher

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = (bytes(PAYLOAD_BYTES), folder, backend)
    notebook_launcher(first_all_reduce, args=arguments, num_processes=num_ranks, use_port=str(port))


def launch_ours(folder: str, num_ranks: int, backend: str) -> None:
    from accel_nb import notebook_launcher

    device = "cuda" if backend == "nccl" else "cpu"
    arguments = (bytes(PAYLOAD_BYTES), folder, backend)
    notebook_launcher(first_all_reduce, args=arguments, num_processes=num_ranks, device=device)


LAUNCHERS: dict[str, Callable[[str, int, str], None]] = {"upstream": launch_upstream, "ours": launch_ours}


def timed(side: str, num_ranks: int, backend: str) -> dict[str, float]:
    """Launch once. Seconds from the call to the last rank's stamp, and to the return."""
    with tempfile.TemporaryDirectory() as folder:
        called = time.monotonic()
        LAUNCHERS[side](folder, num_ranks, backend)
        returned = time.monotonic()
        stamps = [float(path.read_text()) for path in Path(folder).iterdir()]
    assert len(stamps) == num_ranks, f"{len(stamps)} of {num_ranks} ranks did their work"
    return {"all_reduce_s": max(stamps) - called, "return_s": returned - called}


def outcome(way: str, num_ranks: int, backend: str) -> dict[str, str]:
    """Launch, have it end so, and say how the run has ended."""
    from accel_nb import notebook_launcher

    device = "cuda" if backend == "nccl" else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        run = notebook_launcher(
            ends, (way, folder, backend), num_ranks, device=device, block=False, on_failure="return"
        )
        if way == "interrupt":
            end = time.monotonic() + UP_S
            while len(list(Path(folder).glob("up_*"))) < num_ranks and time.monotonic() < end:
                time.sleep(0.01)
            run.stop(by="interrupt")
        run.wait()
    failures = run.state.failures
    first = failures[0] if failures else None
    return {"status": run.status, "cause": "" if first is None else first.type_name or first.signal or first.kind}


def is_ready() -> bool:
    """Wait until the next launch's ranks are in standby."""
    from accel_nb.launch.servers.standby import STANDBY

    return STANDBY.is_ready(READY_S)


def let_go() -> str:
    """What ``%accel_stop`` does to them."""
    from accel_nb.launch.servers.standby import STANDBY

    return STANDBY.let_go()


COMMANDS: dict[str, Callable[..., object]] = {"launch": timed, "outcome": outcome, "ready": is_ready, "let go": let_go}


def main() -> None:
    """Obey lines of stdin. What launchers and ranks print must not get between the answers."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import torch  # as a notebook would have

    assert torch.__version__
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer: dict[str, object] = {"answer": COMMANDS[request.pop("do")](**request)}
        except Exception as error:  # noqa: BLE001  whatever a launcher raises is its outcome, and is reported
            answer = {"problem": f"{type(error).__name__}: {error}".partition("\n")[0]}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
