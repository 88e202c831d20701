"""What was asked for is what is started, and it is said before the function runs."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import accelerate
import psutil
import pytest

from accel_nb import debug_launcher, notebook_launcher
from accel_nb.errors import InvalidArgument, PlanError, UnknownDevice
from tests.layering import MODULES

from . import rank_code
from .launching import launch, on_ranks, start

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_l12_as_many_ranks_as_asked_and_the_banner_says_so(count: int) -> None:
    launched = launch(rank_code.place, num_processes=count)

    assert launched.values == [(rank, count, rank, count) for rank in range(count)]
    banner = launched.text.splitlines()[0]
    ranks = "1 rank" if count == 1 else f"{count} ranks"
    assert banner.startswith(f"accel_nb: place: {ranks} on cpu (asked: {count}), gloo, ")


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True])
def test_l12_a_count_that_is_none_is_refused_and_nothing_is_started(count: object) -> None:
    def servers_and_runs() -> tuple[list[psutil.Process], set[Path]]:
        return psutil.Process().children(), set(Path(os.environ["ACCEL_NB_LOG_DIR"]).iterdir())

    before = servers_and_runs()

    with pytest.raises(InvalidArgument, match=rf"^num_processes={count!r}: give a whole number of at least 1"):
        start(rank_code.place, num_processes=count)

    assert servers_and_runs() == before


def test_l13_the_default_without_accelerators_is_one_cpu_rank_told_before_the_function_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    launched = launch(lambda: print("the function runs"), num_processes=None, device="auto")

    assert launched.values == [None]
    banner, line = launched.text.splitlines()
    assert "1 rank on cpu (asked: default)" in banner
    assert line == "the function runs"


def test_l13_a_device_that_is_not_there_is_no_silent_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    with pytest.raises(UnknownDevice, match=r"^device='cuda': no cuda device can be used on .*device='cpu' runs"):
        start(rank_code.place, device="cuda")


FAKE_GPUS = '''
"""Four GPUs that this machine lacks: accel_nb's own CUDA device over a stand-in for NVIDIA's library."""
import os
from accel_nb.devices.cuda import CudaDevice
from tests.devices.fake_nvml import FakeGpu, FakeNvml

class FakeGpus(CudaDevice):
    kind = "fakegpu"
    process_group = "gloo"
    preference = 200

    def count(self):
        return len(self.probe())

DEVICE = FakeGpus(lambda: FakeNvml(*(FakeGpu(f"GPU-{n}f3c", name="Fake") for n in range(4))))
'''

CHOOSING = """
    import json, os
    from accel_nb import notebook_launcher

    def seen():
        import os
        return os.environ["CUDA_VISIBLE_DEVICES"], os.environ["LOCAL_RANK"]

    before = dict(os.environ)
    answers = []
    for options in ({}, {"devices": [3, 1]}, {"devices": ["GPU-2f"]}, {"num_processes": 3}):
        answers.append(list(notebook_launcher(seen, **options)))
    os.environ["CUDA_VISIBLE_DEVICES"] = "3,0,1"
    answers.append(list(notebook_launcher(seen, devices=[2, 0])))
    assert os.environ.pop("CUDA_VISIBLE_DEVICES") == "3,0,1"
    assert dict(os.environ) == before
    print("ANSWERS", json.dumps(answers))
"""


def test_l14_ranks_see_the_chosen_devices_in_the_given_order(tmp_path: Path) -> None:
    (tmp_path / "fake_gpus.py").write_text(FAKE_GPUS)
    metadata = tmp_path / "fake_gpus-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-gpus\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[accel_nb.devices]\nfakegpu = fake_gpus:DEVICE\n")
    (tmp_path / "script.py").write_text(textwrap.dedent(CHOOSING))
    variables = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    variables.pop("CUDA_VISIBLE_DEVICES", None)

    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        env=variables, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip

    lines = done.stdout.splitlines()
    assert lines, done.stderr
    assert lines[-1].startswith("ANSWERS "), done.stdout + done.stderr
    everything, reversed_two, by_id, first_three, composed = ast.literal_eval(lines[-1].removeprefix("ANSWERS "))
    assert everything == [["GPU-0f3c,GPU-1f3c,GPU-2f3c,GPU-3f3c", str(rank)] for rank in range(4)]
    assert reversed_two == [["GPU-3f3c,GPU-1f3c", "0"], ["GPU-3f3c,GPU-1f3c", "1"]]
    assert by_id == [["GPU-2f3c", "0"]]
    assert first_three == [["GPU-0f3c,GPU-1f3c,GPU-2f3c", str(rank)] for rank in range(3)]
    # Positions count among what the kernel sees: "3,0,1", of which the last and the first.
    assert composed == [["GPU-1f3c,GPU-3f3c", "0"], ["GPU-1f3c,GPU-3f3c", "1"]]
    banners = [line for line in lines if line.startswith("accel_nb: seen:")]
    assert banners[1].startswith("accel_nb: seen: 2 ranks on fakegpu:3 Fake, fakegpu:1 Fake (asked: default), gloo")


def imported_by(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {f"{node.module}.{name.name}" for name in node.names}
    return names


def test_l15_torchs_own_launchers_are_not_used() -> None:
    launchers = (
        "distributed.elastic.agent",
        "distributed.elastic.multiprocessing",
        "distributed.launcher",
        "distributed.launch",
        "distributed.run",
        "multiprocessing",
    )
    imported = {name for path in MODULES for name in imported_by(path)}

    assert "torch.distributed.TCPStore" in imported
    assert not [name for name in imported for part in launchers if f"{name}.".startswith(f"torch.{part}.")]


def test_l18_one_line_says_where_the_settings_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")

    launched = launch(lambda: os.environ["ACCELERATE_MIXED_PRECISION"], returns="main")

    assert launched.values == ["no"]
    assert launched.text.splitlines()[1:] == [
        "accel_nb: Settings: num_processes, device and returns from the call, the rest are defaults.",
        "accel_nb: Ignored: ACCELERATE_MIXED_PRECISION=fp16 of the kernel's environment; mixed_precision='no' decides.",
    ]


def test_l18_a_variable_of_accelerates_that_decides_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "3")

    def steps() -> int:
        from accel_nb import Accelerator

        return Accelerator().gradient_accumulation_steps

    launched = launch(steps, returns="main")

    assert launched.values == [3]
    assert launched.text.splitlines()[1:] == [
        (
            "accel_nb: Settings: num_processes, device and returns from the call, "
            "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=3 from the kernel's environment, the rest are defaults."
        ),
    ]


def test_l18_nothing_is_shown_of_settings_when_the_call_alone_decides() -> None:
    launched = launch(lambda: None)

    assert not any("Settings" in line for line in launched.text.splitlines())
    assert "Settings: num_processes and device from the call, the rest are defaults." in launched.run.plan.reasons


def test_n01_two_cpu_processes_are_two_gloo_ranks() -> None:
    assert on_ranks(rank_code.gloo_sum) == [("gloo", 2, 3.0), ("gloo", 2, 3.0)]


def test_n01_the_debug_launcher_of_upstream_gives_two_cpu_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(debug_launcher(rank_code.gloo_sum)) == [("gloo", 2, 3.0)] * 2
    assert list(debug_launcher(lambda x: x, (5,), 3)) == [5, 5, 5]
    assert "gloo_sum: 2 ranks on cpu" in capsys.readouterr().out


def test_arguments_stand_where_upstreams_stand() -> None:
    ours = list(inspect.signature(notebook_launcher).parameters.values())
    upstreams = list(inspect.signature(accelerate.notebook_launcher).parameters.values())

    positional = [parameter for parameter in ours if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    assert [parameter.name for parameter in positional] == [parameter.name for parameter in upstreams]


def test_a_rank_that_launches_is_refused() -> None:
    def nested() -> str:
        from accel_nb.launch.run import start_run
        from accel_nb.launch.views.view import TextView
        from accel_nb.protocol.plan import LaunchRequest

        try:
            start_run(LaunchRequest(), print, (), {}, TextView(print))
        except PlanError as error:
            return str(error)
        return "it started"

    assert (
        on_ranks(nested) == ["This process is a rank of a run: a rank cannot launch ranks. Launch from the kernel."] * 2
    )
