"""U04: which half of the Jupyter face is missing where."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from accel_nb.jupyter import cell_widget, front_end
from accel_nb.jupyter.front_end import NAME, PageExtension, find_extension, findings
from accel_nb.protocol.version import __version__
from tests.notebook_kernel import NotebookKernel


@pytest.fixture
def jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment's ``share/jupyter`` and ``etc/jupyter`` that are searched before all others."""
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share"))
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(tmp_path / "etc"))
    return tmp_path


def install(jupyter: Path, version: str = __version__) -> Path:
    folder = jupyter / "share" / "labextensions" / NAME
    folder.mkdir(parents=True)
    (folder / "package.json").write_text(json.dumps({"name": NAME, "version": version}))
    return folder


def configure(jupyter: Path, disabled: object, name: str = "page_config.json") -> Path:
    file = jupyter / "etc" / "labconfig" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"disabledExtensions": disabled}))
    return file


def told(extension: PageExtension | None, *, is_loaded: bool | None = True) -> list[str]:
    return [finding.what for finding in findings(extension, is_loaded=is_loaded)]


@pytest.fixture
def _complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is missing in the kernel's half."""
    monkeypatch.setattr(cell_widget, "unavailable_because", lambda: None)
    monkeypatch.setattr(front_end, "version_of", lambda _: "7.4.0")


@pytest.mark.usefixtures("_complete")
def test_u04_an_extension_that_is_there_and_enabled_is_no_finding(jupyter: Path) -> None:
    folder = install(jupyter)
    configure(jupyter, {"another": True, NAME: False})

    extension = find_extension()

    assert extension == PageExtension(folder, __version__)
    assert told(extension) == []


@pytest.mark.usefixtures("_complete")
def test_u04_an_extension_that_is_missing_where_the_kernel_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_core.paths.jupyter_path", lambda *_: [])

    [finding] = findings(find_extension(), is_loaded=True)

    assert finding.what == (
        f"The page's half, the extension accel-nb of JupyterLab, is not in the environment of this kernel "
        f"({sys.prefix})."
    )
    assert "pip install accel-nb" in finding.remedy
    assert "where the Jupyter server runs" in finding.remedy


@pytest.mark.usefixtures("_complete")
def test_u04_an_extension_of_another_version(jupyter: Path) -> None:
    install(jupyter, "0.0.1")

    assert told(find_extension()) == [f"The page's half is accel-nb 0.0.1, the kernel's half accel_nb {__version__}."]


@pytest.mark.usefixtures("_complete")
@pytest.mark.parametrize("name", ["page_config.json", "page_config.d/mine.json"])
@pytest.mark.parametrize("disabled", [{NAME: True}, {f"{NAME}:panel": True}, [NAME]], ids=["all", "plugin", "list"])
def test_u04_an_extension_that_is_disabled(jupyter: Path, disabled: object, name: str) -> None:
    install(jupyter)
    (jupyter / "etc" / "labconfig" / "page_config.d").mkdir(parents=True)
    file = configure(jupyter, disabled, name)

    [finding] = findings(find_extension(), is_loaded=True)

    assert finding.what == "The page's half, the extension accel-nb of JupyterLab, is disabled."
    assert finding.why == f"{file} says so."


def test_u04_a_package_that_cannot_be_read_is_no_extension(jupyter: Path) -> None:
    folder = install(jupyter)
    (folder / "package.json").write_text("{")

    extension = find_extension()

    assert extension is None or extension.folder != folder


def test_u04_what_the_kernels_half_lacks(monkeypatch: pytest.MonkeyPatch, jupyter: Path) -> None:
    install(jupyter)
    monkeypatch.setattr(front_end, "version_of", lambda _: "6.31.0")
    monkeypatch.setattr(
        cell_widget, "unavailable_because", lambda: "the package anywidget is missing: pip install anywidget"
    )

    found = list(findings(find_extension(), is_loaded=False))

    assert [finding.what for finding in found] == [
        "In the kernel's half the live view is missing: the package anywidget is missing.",
        "ipykernel 6.31.0 hears no button in a cell's output while the cell runs.",
        "The extension is not loaded in this kernel.",
    ]
    assert [found[0].remedy, found[2].remedy] == ["pip install anywidget.", "Run %load_ext accel_nb."]
    assert {finding.severity for finding in found} == {"hint"}, "launches work without"


def test_u04_the_magic_and_the_function_tell_both_halves(kernel: NotebookKernel) -> None:
    before = kernel.ok("import accel_nb\naccel_nb.doctor(self_test=False)")
    after = kernel.ok("%load_ext accel_nb\n%accel_doctor --no-self-test")

    assert before.result is not None
    assert after.result is not None
    assert "hint: The extension is not loaded in this kernel." in before.result
    assert "hint: The extension is not loaded in this kernel." not in after.result
    for shown in (before.result, after.result):
        assert "live view in the cell" in shown
        assert "panel beside the notebook" in shown
