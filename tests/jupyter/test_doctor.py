"""``accel_nb.doctor()`` in a real kernel."""

from __future__ import annotations

from tests.notebook_kernel import NotebookKernel

from .test_cell_watch import STAND_IN


def test_w23_the_doctor_says_since_when_the_kernel_holds_cuda(kernel: NotebookKernel) -> None:
    kernel.ok("%load_ext accel_nb")
    kernel.ok(STAND_IN + "torch.cuda.init()\ntorch.cuda.is_available = lambda: False")

    shown = kernel.ok("import accel_nb\naccel_nb.doctor(device='cpu')")

    assert shown.result is not None
    assert "hint: torch has initialised CUDA in this process: Cell In[2], line 6." in shown.result
    assert "2 ranks on cpu met over gloo" in shown.result
    assert "Launches of accel_nb work all the same" in shown.result


def test_a_clean_kernel_is_told_clean(kernel: NotebookKernel) -> None:
    kernel.ok("import accel_nb\nfound = accel_nb.doctor(self_test=False)")

    assert kernel.value("{fact.name: fact.value for fact in found.facts}['CUDA']") == "not initialised here"
    assert kernel.value("'torch' in __import__('sys').modules") is False
