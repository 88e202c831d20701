"""Which half of the Jupyter face is missing where: the kernel's packages and this extension of the page."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..launch.doctor.software import version_of
from ..protocol.diagnosis import Fact, Finding
from ..protocol.version import __version__
from . import cell_widget

GROUP = "notebook"
NAME = "accel-nb"
"""Of the extension of JupyterLab and Notebook."""
SUBSHELLS_SINCE = 7
"""The first ipykernel that hears buttons of a cell's output while the cell runs."""
_HOW_TO_ENABLE = "jupyter labextension enable accel-nb, then reload the page."


class PageExtension(NamedTuple):
    """The prebuilt extension, as a Jupyter server of this environment finds it."""

    folder: Path
    version: str
    disabled_in: Path | None = None
    """The file that says so; None: nobody does."""


def is_loaded() -> bool | None:
    """Whether ``%load_ext accel_nb`` has run here. None: nobody could, outside IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return None if shell is None else "accel_nb" in shell.extension_manager.loaded


def facts(extension: PageExtension | None, *, is_loaded: bool | None) -> Iterator[Fact]:
    """`is_loaded`: what the function of that name has found."""
    lacks = cell_widget.unavailable_because()
    yield Fact(group=GROUP, name="live view in the cell", value="ready" if lacks is None else f"as text: {lacks}")
    state = "missing" if extension is None else f"{extension.version} in {extension.folder}"
    yield Fact(group=GROUP, name="panel beside the notebook", value=state)
    if is_loaded is not None:
        value = "has run in this kernel" if is_loaded else "has not run in this kernel"
        yield Fact(group=GROUP, name="%load_ext accel_nb", value=value)


def findings(extension: PageExtension | None, *, is_loaded: bool | None) -> Iterator[Finding]:
    """Hints: every launch works without, and is shown as text."""
    yield from _about_widget()
    yield from _about_extension(extension)
    major = (version_of("ipykernel") or "").partition(".")[0]
    if major.isdecimal() and int(major) < SUBSHELLS_SINCE:
        yield Finding(
            severity="hint",
            what=f"ipykernel {version_of('ipykernel')} hears no button in a cell's output while the cell runs.",
            why="Before ipykernel 7 such messages wait for the end of the cell. Stop of the notebook's toolbar and of "
            "the panel work all the same.",
            remedy=f'{sys.executable} -m pip install "ipykernel>=7.4", then restart the kernel.',
        )
    if is_loaded is False:
        yield Finding(
            severity="hint",
            what="The extension is not loaded in this kernel.",
            why="Without it there are no magics (%%accelerate), no warm server, and the panel finds nobody to talk to.",
            remedy="Run %load_ext accel_nb.",
        )


def _about_widget() -> Iterator[Finding]:
    lacks = cell_widget.unavailable_because()
    if lacks is not None:
        what, _, remedy = lacks.partition(": ")
        yield Finding(
            severity="hint",
            what=f"In the kernel's half the live view is missing: {what}.",
            why="Runs are shown as text in their cell.",
            remedy=f"{remedy}.",
        )


def _about_extension(extension: PageExtension | None) -> Iterator[Finding]:
    where = f"the environment of this kernel ({sys.prefix})"
    if extension is None:
        yield Finding(
            severity="hint",
            what=f"The page's half, the extension {NAME} of JupyterLab, is not in {where}.",
            why="A Jupyter server that runs in this environment shows no panel. One that runs in another environment "
            "needs the extension there, which cannot be seen from here.",
            remedy=f"pip install accel-nb=={__version__} where the Jupyter server runs; there, jupyter labextension "
            "list shows it.",
        )
        return
    if extension.version != __version__:
        yield Finding(
            severity="hint",
            what=f"The page's half is {NAME} {extension.version}, the kernel's half accel_nb {__version__}.",
            why=f"{extension.folder} is of another installation; what one half does not know is refused or left out.",
            remedy=f"pip install accel-nb=={__version__} where the Jupyter server runs, then reload the page.",
        )
    if extension.disabled_in is not None:
        yield Finding(
            severity="hint",
            what=f"The page's half, the extension {NAME} of JupyterLab, is disabled.",
            why=f"{extension.disabled_in} says so.",
            remedy=_HOW_TO_ENABLE,
        )


def find_extension() -> PageExtension | None:
    """Where a Jupyter server of this environment would find it first. None: nowhere."""
    from jupyter_core.paths import jupyter_config_path, jupyter_path  # comes with ipykernel

    for folder in jupyter_path("labextensions"):
        package = _read(Path(folder) / NAME / "package.json")
        if package:
            disabled = (_disabled_in(Path(config)) for config in jupyter_config_path())
            return PageExtension(
                folder=Path(folder) / NAME,
                version=str(package.get("version", "of no version")),
                disabled_in=next((file for file in disabled if file is not None), None),
            )
    return None


def _disabled_in(config: Path) -> Path | None:
    """The file under a folder of configuration that disables the extension or one of its plugins, as ``jupyter
    labextension disable`` writes it (``labconfig/page_config.json``).
    """
    folder = config / "labconfig"
    for file in (folder / "page_config.json", *sorted((folder / "page_config.d").glob("*.json"))):
        if any(name.partition(":")[0] == NAME for name in _names_of(_read(file).get("disabledExtensions"))):
            return file
    return None


def _names_of(disabled: object) -> list[str]:
    """Old versions wrote a list, new ones write who is disabled and who is not."""
    if isinstance(disabled, dict):
        return [str(name) for name, is_off in disabled.items() if is_off]
    return [str(name) for name in disabled] if isinstance(disabled, list) else []


def _read(file: Path) -> dict[str, object]:
    """Empty where the file is missing, or holds something else."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
