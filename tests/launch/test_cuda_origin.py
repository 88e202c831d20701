"""What initialised CUDA in a process: stand-ins for torch.cuda and for the driver's open file."""

from __future__ import annotations

import sys
import sysconfig
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from accel_nb.launch.cuda_origin import CudaWatch, Frame, Origin
from accel_nb.launch.planning.planner import make_plan
from accel_nb.protocol.plan import LaunchRequest

from .planning.machines import gpu, gpu_machine

SITE = Path(sysconfig.get_path("purelib"))


class StandInCuda(types.ModuleType):
    """The part of ``torch.cuda`` that is asked."""

    def __init__(self) -> None:
        super().__init__("torch.cuda")
        self.ready = False
        self.queue: list[Callable[[], None]] = []

    def is_initialized(self) -> bool:
        return self.ready

    def _lazy_call(self, call: Callable[[], None]) -> None:
        self.queue.append(call)

    def _lazy_init(self) -> None:
        for call in self.queue:
            call()
        self.ready = True


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> StandInCuda:
    module = StandInCuda()
    monkeypatch.setitem(sys.modules, "torch.cuda", module)
    return module


def watch(*, driver: Callable[[], bool] = lambda: False) -> CudaWatch:
    return CudaWatch(driver)


def test_w23_without_cells_the_line_is_known(cuda: StandInCuda) -> None:
    watching = watch()
    watching.start()
    cuda._lazy_init()

    origin = watching.look()
    assert origin is not None
    assert origin.place.startswith("test_cuda_origin.py, line ")
    assert origin.sentence == f"torch has initialised CUDA in this process: {origin.place}."


def test_w23_nothing_is_known_of_a_process_that_leaves_cuda_alone(cuda: StandInCuda) -> None:
    watching = watch()
    watching.start()
    watching.end()

    assert watching.look() is None
    assert len(cuda.queue) == 1


def test_w23_without_cells_no_finder_of_ours_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.cuda", raising=False)
    before = list(sys.meta_path)

    watch().start()

    assert sys.meta_path == before


def test_w23_who_asks_without_having_looked_learns_that(cuda: StandInCuda) -> None:
    cuda.ready = True

    origin = watch().look()

    assert origin is not None
    assert origin.sentence == "torch has initialised CUDA in this process: before accel_nb was used first."


def test_w23_a_driver_that_torch_did_not_open_is_seen_after_the_cell(cuda: StandInCuda) -> None:
    opened: list[bool] = []
    watching = watch(driver=lambda: bool(opened))
    watching.start()
    watching.end()
    watching.begin()
    opened.append(True)
    watching.end("In[2]")

    origin = watching.look()
    assert origin is not None
    assert (origin.cell, origin.by_torch) == ("In[2]", False)
    assert "by another library than torch or since devices were counted: Cell In[2]." in origin.sentence
    watching.begin()
    cuda._lazy_init()
    watching.end("In[3]")
    later = watching.look()
    assert later is not None
    assert (later.cell, later.by_torch) == ("In[3]", True)


def test_w23_a_half_imported_torch_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.cuda", types.ModuleType("torch.cuda"))
    watching = watch()
    watching.start()
    watching.begin()

    import colorsys  # noqa: F401  any module that has to be looked for

    watching.end()
    assert watching.look() is None
    assert not any(type(finder).__name__ == "_TorchIsComing" for finder in sys.meta_path)


def test_w23_the_library_between_the_user_and_torch_is_named() -> None:
    frames = (
        Frame(str(SITE / "torch" / "cuda" / "__init__.py"), 1),
        Frame(str(SITE / "greedy" / "ops.py"), 2),
        Frame("<frozen importlib._bootstrap>", 3),
        Frame("/home/me/notebook.py", 4),
        Frame(str(SITE / "runner.py"), 5),
    )

    assert Origin("", frames).place == "notebook.py, line 4, through greedy"
    assert Origin("", frames[:1]).place == ""
    assert Origin("In[7]", frames[1:2]).place == "Cell In[7]"


def test_w23_the_plan_names_the_cell_when_the_kernel_holds_memory() -> None:
    hardware = replace(gpu_machine(gpu(0, used_gib=2, kernel_gib=2)), kernel_cuda_origin="Cell In[3], line 2")

    plan = make_plan(LaunchRequest(), hardware, kernel_env={}, run_id="r")

    assert any(
        "holds 2.0 GiB on cuda:0 NVIDIA H100 (CUDA initialised: Cell In[3], line 2)" in told for told in plan.notable
    )
