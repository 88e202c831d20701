"""Which cell, line and library initialised CUDA in a kernel: a real one, with a stand-in below torch for the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.notebook_kernel import NotebookKernel

pytestmark = pytest.mark.kernels

STAND_IN = (
    "import torch\n"
    "torch._C._cuda_getDeviceCount = lambda: 1\n"
    "torch._C._cuda_init = lambda: None\n"
    "torch.cuda._cudart = object()\n"
    "torch.version.cuda = None\n"
)
"""What torch.cuda._lazy_init needs of a CUDA build: the rest of it is torch's own."""
LOOK = "from accel_nb.launch.cuda_origin import WATCH; seen = WATCH.look()"


def origin(kernel: NotebookKernel) -> object:
    kernel.ok(LOOK)
    return kernel.value("None if seen is None else [seen.cell, seen.place]")


def test_w23_the_cell_and_line_that_initialised_cuda_are_known(kernel: NotebookKernel) -> None:
    kernel.ok("%load_ext accel_nb")
    kernel.ok(STAND_IN)
    assert origin(kernel) is None
    kernel.ok("def to_gpu():\n    torch.cuda.init()\n\nto_gpu()")  # the fifth: two were spent on looking

    assert origin(kernel) == ["In[5]", "Cell In[5], line 2"]
    kernel.ok("torch.cuda.init()")
    assert origin(kernel) == ["In[5]", "Cell In[5], line 2"]
    assert kernel.value("torch.cuda.is_initialized()") is True


def test_w23_torch_imported_and_used_in_one_cell_has_its_line(kernel: NotebookKernel) -> None:
    kernel.ok("%load_ext accel_nb")
    kernel.ok(STAND_IN + "x = 1\ntorch.cuda.init()")

    assert origin(kernel) == ["In[2]", "Cell In[2], line 7"]
    assert (
        kernel.value("[type(finder).__name__ for finder in __import__('sys').meta_path].count('_TorchIsComing')") == 0
    )


def test_w23_l02_an_import_that_initialised_cuda_is_named(kernel: NotebookKernel, tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(STAND_IN + "torch.cuda.init()\n")
    kernel.ok("%load_ext accel_nb")
    kernel.ok(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        f"import accel_nb.launch.cuda_origin as origin; origin._SITES += ({str(tmp_path)!r},)\n"
        f"origin._LIBRARIES += ({str(tmp_path)!r},)"  # installed, as far as it matters
    )
    kernel.ok("a = 1\nimport greedy")

    assert origin(kernel) == ["In[3]", "Cell In[3], line 2, through greedy"]


def test_w23_what_was_before_the_first_use_is_told_as_that(kernel: NotebookKernel) -> None:
    kernel.ok(STAND_IN + "torch.cuda.init()")
    kernel.ok("%load_ext accel_nb")

    assert origin(kernel) == ["In[2]", "before accel_nb was used first, in Cell In[2] or earlier"]


def test_w23_a_launch_begins_to_look_too(kernel: NotebookKernel) -> None:
    kernel.ok(
        "import accel_nb\ndef one():\n    return 1\n"
        "assert list(accel_nb.notebook_launcher(one, num_processes=2, device='cpu')) == [1, 1]"
    )
    kernel.ok(STAND_IN + "torch.cuda.init()")

    assert origin(kernel) == ["In[2]", "Cell In[2], line 6"]


def test_w23_an_unloaded_extension_looks_no_more(kernel: NotebookKernel) -> None:
    kernel.ok("%load_ext accel_nb")
    kernel.ok("%unload_ext accel_nb")

    callbacks = "sum(len(get_ipython().events.callbacks[name]) for name in ('pre_run_cell', 'post_run_cell'))"
    with_ext = kernel.value(callbacks)
    kernel.ok("%load_ext accel_nb")
    assert kernel.value(callbacks) == int(str(with_ext)) + 2
    kernel.ok("%load_ext accel_nb\nfrom accel_nb.jupyter.cell_watch import watch_cells; watch_cells(); watch_cells()")
    assert kernel.value(callbacks) == int(str(with_ext)) + 2
