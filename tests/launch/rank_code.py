"""Functions that tests run on ranks. A module that is cheap to import: ranks import it from disk."""

from __future__ import annotations


def who_i_am() -> tuple[bool, int, list[str]]:
    import sys
    import threading

    import psutil

    poisoned = hasattr(sys.modules.get("torch"), "__poison__")
    parent = psutil.Process().parent()
    assert parent is not None
    return poisoned, threading.active_count(), parent.cmdline()


def states_of_a_rank() -> tuple[bool, bool, str, int]:
    from accelerate import Accelerator as UpstreamAccelerator
    from accelerate.state import AcceleratorState as UpstreamState

    import accel_nb

    ours, upstreams = accel_nb.is_initialized(), bool(UpstreamState._shared_state)
    accelerator = accel_nb.Accelerator()
    UpstreamAccelerator()
    return ours, upstreams, accelerator.mixed_precision, accelerator.num_processes


def devices_seen() -> tuple[str | None, int, str]:
    import os

    import torch

    from accel_nb import Accelerator

    return os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count(), str(Accelerator().device)


ROUNDS = 20


def plain_torch() -> list[float]:
    import torch
    from torch import distributed

    sums = []
    for number in range(ROUNDS):
        distributed.init_process_group("gloo")
        value = torch.tensor([float(distributed.get_rank() + number)])
        distributed.all_reduce(value)
        pair = distributed.new_group([0, 1])
        distributed.all_reduce(value, group=pair)
        sums.append(value.item())
        distributed.destroy_process_group()
    return sums


def upstreams_accelerator() -> list[float]:
    import torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, PartialState
    from torch import distributed

    sums = []
    for number in range(ROUNDS):
        accelerator = Accelerator()
        value = torch.tensor([float(accelerator.process_index + number)])
        value = accelerator.reduce(value, "sum")
        pair = distributed.new_group([0, 1])
        distributed.all_reduce(value, group=pair)
        sums.append(value.item())
        accelerator.end_training()
        PartialState().destroy_process_group()
        AcceleratorState._reset_state(reset_partial_state=True)
    return sums


def our_accelerator() -> list[float]:
    import torch
    from torch import distributed

    from accel_nb import Accelerator, PartialState, reduce, reset_state

    sums = []
    for number in range(ROUNDS):
        accelerator = Accelerator()
        value = torch.tensor([float(accelerator.process_index + number)])
        value = reduce(value, "sum")
        pair = distributed.new_group([0, 1])
        distributed.all_reduce(value, group=pair)
        sums.append(value.item())
        PartialState().destroy_process_group()
        reset_state()
    return sums


def place() -> tuple[int, int, int, int]:
    """Rank, number of ranks, local rank, number of local ranks: as any framework finds them."""
    import os

    rank, size, local_rank, local_size = (
        int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    )
    return rank, size, local_rank, local_size


def gloo_sum() -> tuple[str, int, float]:
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    value = torch.tensor([distributed.get_rank() + 1.0])
    distributed.all_reduce(value)
    return distributed.get_backend(), distributed.get_world_size(), value.item()


def gloo_sum_and_address() -> tuple[float, str, str]:
    import os

    _, _, value = gloo_sum()
    return value, os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]


def read_address_0() -> None:
    import ctypes

    ctypes.string_at(0)


def abort() -> None:
    import os

    os.abort()


def bus_error() -> None:
    """Touch a page of a mapped file that is gone."""
    import mmap
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        view = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        view[0] = 1


def raises() -> None:
    raise ValueError("boom")


def exits() -> None:
    import os

    os._exit(1)


def kills_itself() -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


WAYS = ("print", "sys.stderr", "logging", "warnings", "os.write", "printf", "os.system", "subprocess")


def write_in_every_way(released: str) -> None:
    """One line in each way, then wait until the file `released` is there."""
    import ctypes
    import logging
    import os
    import subprocess
    import sys
    import time
    import warnings
    from pathlib import Path

    def of_rank(way: str) -> str:
        return f"{way} of rank {os.environ['RANK']}"

    print(of_rank("print"))
    sys.stderr.write(of_rank("sys.stderr") + "\n")
    logging.basicConfig(format="%(message)s")
    logging.getLogger("mine").warning(of_rank("logging"))
    warnings.formatwarning = lambda message, *_, **__: f"{message}\n"
    warnings.warn(of_rank("warnings"), stacklevel=1)
    os.write(1, (of_rank("os.write") + "\n").encode())
    libc = ctypes.CDLL(None)
    libc.printf(b"%s\n", of_rank("printf").encode())
    libc.fflush(None)
    os.system(f"echo {of_rank('os.system')}")
    subprocess.run(["echo", of_rank("subprocess")], check=True)
    while not Path(released).exists():
        time.sleep(0.02)


def a_line_per_second() -> int:
    import os
    import time

    rank = int(os.environ["RANK"])
    for number in range(6):
        print(f"line {number} of rank {rank}")
        time.sleep(1)
    return rank


def flood_blocks(rank: int) -> list[bytes]:
    """50 MB: lines, one line of 1 MB without its end, bytes that are no UTF-8."""
    lines = b"".join(b"rank %d line %06d %s\n" % (rank, number, b"." * 80) for number in range(1000))
    blocks = [lines] * (49_000_000 // len(lines))
    blocks[100:100] = [b"x" * (1 << 20), b"\xff\xfe\xc3\x28\n" * 1000]
    return blocks


def flood() -> float:
    """Write `flood_blocks` as fast as possible; the longest write took this many seconds."""
    import os
    import time

    longest = 0.0
    for block in flood_blocks(int(os.environ["RANK"])):
        rest = memoryview(block)
        while rest:
            before = time.monotonic()
            rest = rest[os.write(1, rest) :]
            longest = max(longest, time.monotonic() - before)
    return longest


def print_from_threads() -> None:
    import threading

    def write(letter: str) -> None:
        for number in range(200):
            print(f"{letter * 200}{number}")

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def ask() -> str:
    import time

    try:
        input("your name? ")
    except EOFError as error:
        time.sleep(0.5)
        return type(error).__name__
    return "answered"


def a_small_shared_library() -> str:
    """Path of one that every system with this Python has."""
    import _ctypes

    return _ctypes.__file__


def path_of_libgomp() -> str:
    """The copy that torch uses."""
    import torch

    torch.get_num_threads()
    return _mapped("libgomp")


def hash_with_seed_42() -> int:
    import subprocess
    import sys

    code = "print(hash('a name'))"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": "42"}, capture_output=True, check=True)
    return int(done.stdout)


def effects_of_variables() -> dict[str, object]:
    """What variables have changed in this process, found as far from os.environ as possible."""
    import ctypes
    import logging
    import os
    import sys
    from pathlib import Path

    import numpy as np
    import threadpoolctl
    import torch
    import torch._dynamo
    import torch.distributed

    np.ones((8, 8)) @ np.ones((8, 8))
    openmp = ctypes.CDLL("libgomp.so.1") if "libgomp" not in Path("/proc/self/maps").read_text() else None
    libgomp = openmp or ctypes.CDLL(_mapped("libgomp"))
    kind, chunk = ctypes.c_int(), ctypes.c_int()
    libgomp.omp_get_schedule(ctypes.byref(kind), ctypes.byref(chunk))
    try:
        ctypes.CDLL("libfound_by_path.so.1")
    except OSError:
        library_found = False
    else:
        library_found = True
    raw = Path("/proc/self/environ").read_bytes().decode().split("\0")
    return {
        "in the environment": dict(os.environ),
        "at load": dict(line.split("=", 1) for line in raw if "=" in line),
        "dynamo logs": logging.getLevelName(logging.getLogger("torch._dynamo").getEffectiveLevel()),
        "distributed debug": torch.distributed.get_debug_level().name,  # type: ignore[attr-defined]  # public
        "dynamo disabled": bool(torch._dynamo.config.disable),
        "jit": torch.jit._state._enabled.enabled,
        "torch threads": torch.get_num_threads(),
        "openmp schedule": (kind.value & 0xFF, chunk.value),
        "openblas": {info["architecture"] for info in threadpoolctl.threadpool_info() if "architecture" in info},
        "library found": library_found,
        "malloc arenas": _num_malloc_arenas(),
        "warning filter": "ignore::UnicodeWarning" in sys.warnoptions,
        "optimize": sys.flags.optimize,
        "hash": hash("a name"),
    }


def _mapped(name: str) -> str:
    from pathlib import Path

    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in lines if name in line and ".so" in line)


def _num_malloc_arenas() -> int:
    """Arenas of glibc's malloc after threads have allocated at the same time (malloc_info(3))."""
    import ctypes
    import os
    import tempfile
    import threading

    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.fdopen.restype = ctypes.c_void_p
    libc.fdopen.argtypes = [ctypes.c_int, ctypes.c_char_p]
    libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.fflush.argtypes = [ctypes.c_void_p]
    together = threading.Barrier(4)

    def allocate() -> None:
        together.wait()
        for _ in range(50):
            libc.malloc(100)
        together.wait()

    threads = [threading.Thread(target=allocate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with tempfile.TemporaryFile() as file:
        stream = libc.fdopen(os.dup(file.fileno()), b"w")
        libc.malloc_info(0, stream)
        libc.fflush(stream)
        file.seek(0)
        return file.read().count(b"<heap nr=")


def sizes_of_thread_pools() -> dict[str, list[int]]:
    """By kind of library: how many threads each of its copies would use."""
    import numpy as np
    import scipy.linalg
    import threadpoolctl
    import torch

    scipy.linalg.inv(np.eye(2))
    sizes: dict[str, list[int]] = {"torch": [torch.get_num_threads()]}
    for info in threadpoolctl.threadpool_info():
        sizes.setdefault(info["internal_api"], []).append(info["num_threads"])
    return sizes


def threads_that_multiply() -> int:
    """Threads that take part in NumPy's products until the main one has computed for half a second."""
    import time
    from pathlib import Path

    import numpy as np

    def ticks_by_thread() -> dict[str, int]:
        """User time in hundredths of a second (proc(5), field 14 of stat)."""
        stats = {task.name: (task / "stat").read_text() for task in Path("/proc/self/task").iterdir()}
        return {name: int(stat.rpartition(")")[2].split()[11]) for name, stat in stats.items()}

    matrix = np.ones((1000, 1000))
    before = ticks_by_thread()
    begun = time.thread_time()
    while time.thread_time() - begun < 0.5:
        matrix @ matrix
    return sum(ticks - before.get(name, 0) > 5 for name, ticks in ticks_by_thread().items())


def surroundings() -> dict[str, object]:
    import locale
    import os
    import sys
    import tempfile
    import time
    from pathlib import Path

    mask = os.umask(0)
    os.umask(mask)
    return {
        "cwd": str(Path.cwd()),
        "sys.path": sys.path,
        "argv": sys.argv,
        "umask": mask,
        "locale": locale.setlocale(locale.LC_ALL),
        "stdin": sys.stdin.read() + os.read(0, 10).decode(),
        "main": [sys.modules["__main__"].__name__],
        "mine": os.environ.get("MINE"),
        "time zone": (time.tzname[0], time.localtime(0).tm_hour + time.localtime(0).tm_min / 60),
        "temporary folder": tempfile.gettempdir(),
    }


def who_the_frameworks_think_i_am() -> tuple[dict[str, str], tuple[int, int, int], tuple[int, int, int], float]:
    import os

    import accelerate
    import torch

    import accel_nb

    variables = dict(os.environ)
    ours = accel_nb.PartialState()
    theirs = accelerate.Accelerator()
    value = torch.tensor([ours.process_index + 1.0])
    torch.distributed.all_reduce(value)
    return (
        variables,
        (theirs.process_index, theirs.num_processes, theirs.local_process_index),
        (ours.process_index, ours.num_processes, ours.local_process_index),
        value.item(),
    )


def contract() -> dict[str, str]:
    import os

    starts = (
        "RANK",
        "LOCAL_",
        "WORLD_",
        "GROUP_",
        "ROLE_",
        "MASTER_",
        "TORCHELASTIC_",
        "ACCELERATE_",
        "ACCEL_NB_DEVICE",
    )
    return {name: value for name, value in os.environ.items() if name.startswith(starts)}


def draws() -> dict[str, object]:
    import random
    import secrets
    import uuid

    import numpy as np

    return {
        "random": random.random(),
        "numpy": float(np.random.rand()),  # noqa: NPY002  the global generator is the point
        "uuid": str(uuid.uuid4()),
        "secrets": secrets.token_hex(8),
    }


def tell_the_time(num_lines: int) -> None:
    """By a clock that all processes of this machine share."""
    import os
    import time

    for _ in range(num_lines):
        print(f"rank {os.environ['RANK']} at {time.monotonic():.3f}")
        time.sleep(0.5)
