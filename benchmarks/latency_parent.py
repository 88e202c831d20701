"""What `launch_latency.py` runs in notebook kernels: prepare, launch, say how long that took.

    driver process                       a notebook kernel, one per side             its ranks
    launch_latency.py  -- cell ----->    prepare(), then launch the function  -->    function(folder)
                       <-- JSON ----     figures                              <--    a time stamp in a file

Time stamps are those of ``time.monotonic``, which on Linux is one clock for all processes.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

REINITIALISATIONS = 20


def first_all_reduce(folder: str) -> None:
    """The least that ranks can do together. Runs in each rank."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    Path(folder, f"rank_{dist.get_rank()}").write_text(repr(time.monotonic()))
    dist.destroy_process_group()


def all_reduce_and_maths(folder: str) -> None:
    """As `first_all_reduce`, then maths on several threads: where a fork of a threaded parent goes wrong."""
    import torch

    first_all_reduce(folder)
    torch.set_num_threads(2)
    weight = torch.rand(512, 512, requires_grad=True)
    (weight @ torch.rand(512, 512)).sum().backward()


def all_reduce_with_trainer(folder: str) -> None:
    """As `first_all_reduce`, in a function that needs a library which takes seconds to import."""
    from transformers import Trainer

    assert Trainer.__name__ == "Trainer"
    first_all_reduce(folder)


def initialise_again_and_again(folder: str) -> None:
    """Open and close the process group, with a subgroup each time; the stamp comes after the last."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    for _ in range(REINITIALISATIONS):
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total, group=dist.new_group(list(range(dist.get_world_size()))))
        assert total.item() == dist.get_world_size()
        dist.destroy_process_group()
    Path(folder, f"rank_{rank}").write_text(repr(time.monotonic()))


FUNCTIONS: dict[str, Callable[[str], None]] = {
    "first_all_reduce": first_all_reduce,
    "all_reduce_and_maths": all_reduce_and_maths,
    "all_reduce_with_trainer": all_reduce_with_trainer,
    "initialise_again_and_again": initialise_again_and_again,
}


def nothing() -> None:
    """Prepare nothing: a process in which no cell has run yet."""


def import_as_quickstart() -> None:
    """What the first cell of notebooks/quickstart.ipynb imports."""
    import matplotlib.pyplot as plt
    import torch
    from sklearn.datasets import load_digits

    assert torch.__version__
    assert plt.get_backend()
    assert callable(load_digits)


def use_torch_threads() -> None:
    """What a cell does that trains a little on the CPU."""
    import torch

    torch.set_num_threads(2)
    weight = torch.rand(1024, 1024, requires_grad=True)
    for _ in range(5):
        (weight @ torch.rand(1024, 1024)).sum().backward()


def import_trainer() -> None:
    from transformers import Trainer

    assert Trainer.__name__ == "Trainer"


PREPARATIONS: dict[str, Callable[[], None]] = {
    "nothing": nothing,
    "import_as_quickstart": import_as_quickstart,
    "use_torch_threads": use_torch_threads,
    "import_trainer": import_trainer,
}


def launch_ours(function: Callable[[str], None], folder: str, num_processes: int) -> None:
    from accel_nb import notebook_launcher

    notebook_launcher(function, args=(folder,), num_processes=num_processes, device="cpu")


def launch_upstream(function: Callable[[str], None], folder: str, num_processes: int) -> None:
    from accelerate import notebook_launcher

    notebook_launcher(function, args=(folder,), num_processes=num_processes, use_port=str(_free_port()))


LAUNCHERS = {"ours": launch_ours, "upstream": launch_upstream}


def _free_port() -> int:
    """A port for upstream, which wants to be given one. Its default may be taken by another run of this script."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def timed_launch(side: str, function_name: str, num_processes: int) -> dict[str, float]:
    """Launch once. Seconds from the call, the launcher's import included, to the last rank's stamp and to the end."""
    with tempfile.TemporaryDirectory() as folder:
        called = time.monotonic()
        LAUNCHERS[side](FUNCTIONS[function_name], folder, num_processes)
        returned = time.monotonic()
        stamps = [float(path.read_text()) for path in Path(folder).iterdir()]
    assert len(stamps) == num_processes, f"{len(stamps)} of {num_processes} ranks did their work"
    return {"all_reduce_s": max(stamps) - called, "return_s": returned - called}


def launched(side: str, function_name: str, preparation: str, num_processes: int) -> str:
    """Prepare, launch once, and tell how it went, as JSON."""
    PREPARATIONS[preparation]()
    try:
        reply: dict[str, object] = {"figures": timed_launch(side, function_name, num_processes)}
    except Exception as error:  # noqa: BLE001  whatever a launcher raises is its outcome, and is reported
        reply = {"error": f"{type(error).__name__}: {error}"}
    return json.dumps(reply)
