"""Whatever the kernel has done before, a launch works, and nothing of it is in the ranks."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import accelerate
import psutil
import pytest
import torch
from accelerate.state import AcceleratorState as UpstreamState

import accel_nb
from tests.notebook_kernel import NotebookKernel

from . import rank_code
from .launching import on_ranks

OPTIONAL = {"accelerate", "bitsandbytes", "deepspeed", "lightning", "matplotlib", "mpi4py", "peft", "ray", "sklearn",
            "spacy", "torch_xla", "tqdm", "transformers"}  # fmt: skip


def in_a_script(source: str, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """A plain script in a process of its own, as a user would start it."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(source))
    command = [sys.executable, *flags, str(script)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=90, check=False)


def test_l01_nothing_of_the_kernel_is_in_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__poison__", 1, raising=False)
    over = threading.Event()
    background = threading.Thread(target=over.wait)
    background.start()

    try:
        ranks = on_ranks(rank_code.who_i_am)
    finally:
        over.set()
        background.join()

    for poisoned, num_threads, parent in ranks:
        assert not poisoned
        assert num_threads == 1
        assert parent != psutil.Process().cmdline()


def test_l02_importing_us_imports_no_optional_package_and_no_torch() -> None:
    code = f"import accel_nb, sys; print(sorted(({OPTIONAL!r} | {{'torch'}}) & set(sys.modules)))"

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert shown.strip() == "[]"


def test_l02_a_kernel_that_launches_needs_no_torch(kernel: NotebookKernel) -> None:
    loaded = f"sorted(({OPTIONAL!r} | {{'torch'}}) & set(sys.modules))"

    kernel.ok("import sys\nfrom accel_nb import notebook_launcher\n%load_ext accel_nb")
    assert kernel.value(loaded) == []

    kernel.ok(
        "def f(x):\n    import os\n    return int(os.environ['RANK']) + x\n"
        "result = list(notebook_launcher(f, (5,), num_processes=2))"
    )
    assert kernel.value("result") == [5, 6]
    assert kernel.value(loaded) == []


def test_l08_a_kernel_busy_with_torch_threads_is_never_forked(tmp_path: Path) -> None:
    done = in_a_script(
        """
        import os, sys, threading, torch
        from accel_nb.jupyter.launcher import notebook_launcher

        forks = []
        sys.addaudithook(lambda event, args: forks.append(event) if event in ("os.fork", "os.forkpty") else None)

        def compute():
            return torch.einsum("ij,jk,kl->il", *(torch.ones(400, 400) for _ in range(3))).sum().item()

        def on_rank():
            torch.set_num_threads(4)
            return compute(), os.environ["RANK"]

        torch.set_num_threads(4)
        expected = compute()
        over = threading.Event()

        def keep_busy():
            while not over.is_set():
                compute()

        threads = [threading.Thread(target=keep_busy) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            result = notebook_launcher(on_rank, num_processes=2, device="cpu")
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert list(result) == [(expected, "0"), (expected, "1")], list(result)
        assert not forks
        print("good")
        """,
        tmp_path,
        "-W",
        "error:This process:DeprecationWarning",
    )

    assert done.stdout.splitlines()[-1:] == ["good"], done.stdout + done.stderr
    assert "DeprecationWarning" not in done.stderr


def test_l11_a_rank_executes_no_cells(kernel: NotebookKernel) -> None:
    kernel.ok("from accel_nb import notebook_launcher")
    kernel.ok("open('cells.txt', 'a').write('cell\\n'); counted = 1")
    kernel.ok("def f():\n    import os\n    return os.getpid() + 0 * counted")
    for start_method in ("forkserver", "spawn"):
        executed = kernel.ok(f"len(set(notebook_launcher(f, num_processes=2, start_method={start_method!r})))")
        assert executed.result == "2"

    assert (kernel.dir / "cells.txt").read_text() == "cell\n"


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_l11_a_script_needs_no_main_guard(tmp_path: Path, start_method: str) -> None:
    done = in_a_script(
        f"""
        from pathlib import Path
        from accel_nb import notebook_launcher

        with Path("runs.txt").open("a") as file:
            file.write("top level\\n")

        class Offset:
            value = 10

        def f(x):
            import os
            return Offset.value + int(os.environ["RANK"]) + x

        print(list(notebook_launcher(f, (100,), num_processes=2, device="cpu", start_method={start_method!r})))
        """,
        tmp_path,
    )

    assert done.stdout.splitlines()[-1:] == ["[110, 111]"], done.stdout + done.stderr
    assert done.returncode == 0
    assert (tmp_path / "runs.txt").read_text() == "top level\n"


@pytest.fixture
def _accelerators_in_the_kernel() -> Any:  # noqa: ANN401  a generator of nothing
    accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    accel_nb.Accelerator(cpu=True, mixed_precision="bf16")
    yield
    UpstreamState._reset_state(reset_partial_state=True)
    accel_nb.reset_state()


@pytest.mark.usefixtures("_accelerators_in_the_kernel")
def test_l16_an_accelerator_in_the_kernel_is_none_in_the_ranks() -> None:
    assert accel_nb.is_initialized()
    assert on_ranks(rank_code.states_of_a_rank) == [(False, False, "no", 2)] * 2


def test_l16_a_launch_leaves_the_kernel_without_an_accelerator() -> None:
    on_ranks(rank_code.states_of_a_rank)

    assert not accel_nb.is_initialized()
    assert not UpstreamState._shared_state


@pytest.mark.parametrize("place", ["first", "after an accelerator in the kernel", "again"])
def test_l17_a_cpu_launch_hides_every_gpu_wherever_it_comes(
    place: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    if place != "first":
        request.getfixturevalue("_accelerators_in_the_kernel")

    assert on_ranks(rank_code.devices_seen) == [("", 0, "cpu")] * 2
