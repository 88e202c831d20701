"""Settings that are kept in a file: what calls, magics and the panel make of them, and say of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accel_nb import debug_launcher, notebook_launcher
from accel_nb.errors import ConfigError, InvalidArgument
from accel_nb.protocol.panel import Choice
from tests.jupyter.panel_page import PanelPage
from tests.jupyter.test_panel_kernel import asked
from tests.notebook_kernel import NotebookKernel

TWO_BF16 = "distributed_type: MULTI_CPU\nmixed_precision: bf16\nnum_processes: 2\nuse_cpu: true\n"
SEES = "lambda: (os.environ['WORLD_SIZE'], os.environ['ACCELERATE_MIXED_PRECISION'])"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    named = tmp_path / "settings.yaml"
    monkeypatch.setenv("ACCEL_NB_CONFIG", str(named))
    return named


def seen_by_ranks() -> tuple[str, str]:
    return os.environ["WORLD_SIZE"], os.environ["ACCELERATE_MIXED_PRECISION"]


def test_l18_a_call_a_magic_and_the_panel_obey_the_file_and_say_so_once(tmp_path: Path) -> None:
    file = tmp_path / "accelerate" / "default_config.yaml"
    file.parent.mkdir()
    file.write_text(TWO_BF16 + "fsdp_config:\n  fsdp_version: 2\n")
    kernel = NotebookKernel(env={"HF_HOME": str(tmp_path), "ACCEL_NB_CONFIG": "", "XDG_CONFIG_HOME": str(tmp_path)})
    try:
        kernel.ok("%load_ext accel_nb\nimport os\nfrom accel_nb import notebook_launcher")
        called = kernel.ok(f"print(list(notebook_launcher({SEES})))").stdout
        overruled = kernel.ok(f"print(list(notebook_launcher({SEES}, num_processes=1, mixed_precision='no')))").stdout
        cell = kernel.ok("%%accelerate\nimport os\nprint(os.environ['ACCELERATE_MIXED_PRECISION'])").stdout
        without = kernel.ok("%accel_plan --no-config").stdout
        page = PanelPage(kernel)
        facts = page.hello()
        answer, chosen = asked(page, 1), asked(page, 2, mixed_precision="no")
    finally:
        kernel.shutdown()

    told = f"Settings: num_processes, device and mixed_precision from {file}, the rest are defaults."
    notice = f"{file}: fsdp_config: no effect, distributed_type is not FSDP."
    assert "[('2', 'bf16'), ('2', 'bf16')]" in called
    assert (called.count(told), called.count(notice)) == (1, 1)
    assert "[('1', 'no')]" in overruled
    assert "Settings: num_processes and mixed_precision from the call, the rest are defaults." in overruled
    assert "] bf16\n" in cell
    assert f"num_processes, device and mixed_precision from {file}" in cell
    assert str(file) not in without
    assert facts.settings is not None
    assert facts.settings.path == str(file)
    assert facts.settings.choice == Choice(num_processes=2, device="cpu", mixed_precision="bf16")
    assert answer.line.startswith("2 ranks on cpu (asked: 2)")
    assert told in answer.reasons
    assert chosen.line.endswith("precision no")
    assert any(f"num_processes and device from {file}, mixed_precision from the call" in one for one in chosen.reasons)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("distributed_type: FSDP\n", "sharded models (FSDP) are not part of this version"),
        ("distributed_type: DEEPSPEED\n", "DeepSpeed is not part of this version"),
        ("num_proceses: 2\n", "'num_proceses' (nearest: 'num_processes') is no key of a configuration"),
        (None, "there is no such configuration file"),
    ],
)
def test_l18_a_file_that_cannot_be_obeyed_is_refused_with_the_way_to_launch_without(
    file: Path, content: str | None, why: str
) -> None:
    if content is not None:
        file.write_text(content)

    with pytest.raises(ConfigError) as refused:
        notebook_launcher(seen_by_ranks)

    assert why in str(refused.value)
    assert str(file) in str(refused.value)
    assert "To launch without that file: --no-config" in str(refused.value)


def test_l18_what_is_refused_of_a_file_is_said_to_come_from_it(file: Path) -> None:
    file.write_text("mixed_precision: fp17\nuse_cpu: true\n")

    with pytest.raises(InvalidArgument) as refused:
        notebook_launcher(seen_by_ranks)

    assert str(refused.value).endswith(f"From {file}: device, mixed_precision.")


def test_l18_without_a_file_and_in_the_launcher_for_tests_nothing_changes(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(TWO_BF16)
    assert list(debug_launcher(seen_by_ranks, num_processes=1)) == [("1", "no")]

    monkeypatch.setenv("ACCEL_NB_CONFIG", os.devnull)

    assert list(notebook_launcher(seen_by_ranks, device="cpu")) == [("1", "no")]
    assert "Settings" not in capsys.readouterr().out
