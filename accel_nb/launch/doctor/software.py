"""Which Python, which packages: read from what is installed. Nothing of it is imported."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ...devices import nvml
from ...protocol.diagnosis import Fact, Finding
from ...protocol.version import __version__

if TYPE_CHECKING:
    from packaging.requirements import Requirement

GROUP = "software"
PACKAGES = (
    "torch", "torch_xla", "accelerate", "transformers", "lightning", "deepspeed", "cloudpickle", "msgspec", "ipython",
    "ipykernel", "ipywidgets", "jupyterlab", "notebook", "anywidget", "mpi4py",
)  # fmt: skip
"""Told when they are there."""
NEEDED = ("torch", "ipykernel", "ipywidgets", "jupyterlab", "anywidget", "msgspec", "cloudpickle")
"""Told also when they are missing."""
_EXCLUDED_BECAUSE = {
    "ipykernel": "7.0 to 7.3 lose a request now and then: a cell waits for ever in an idle kernel "
    "(ipython/ipykernel#1554).",
}
"""By package: what is wrong with the releases between those that we take."""


def facts() -> Iterator[Fact]:
    yield _fact("accel_nb", __version__)
    yield _fact("Python", f"{platform.python_version()} ({sys.executable})")
    for name in PACKAGES:
        found = version_of(name)
        if found is not None or name in NEEDED:
            more = _torch_build() if name == "torch" and found is not None else ""
            yield _fact(name, f"{found or 'missing'}{more}")
    for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        found = version_of(name)
        if found is not None:
            yield _fact("NCCL", f"{found} ({name})")
    driver = nvml.driver_version(nvml.load())
    yield _fact("NVIDIA driver", driver or "none")


def findings(requirements: list[str] | None = None) -> Iterator[Finding]:
    """What accel_nb needs and is missing, too old or excluded. `requirements`: None for the installed accel_nb's."""
    from packaging.requirements import Requirement  # comes with ipykernel

    for text in _own_requirements() if requirements is None else requirements:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        found = version_of(requirement.name)
        if found is not None and requirement.specifier.contains(found, prereleases=True):
            continue
        yield _unmet(requirement, found)


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _unmet(requirement: Requirement, found: str | None) -> Finding:
    why = f"accel_nb {__version__} needs {requirement.name}{requirement.specifier}."
    state = "missing" if found is None else f"{found}, too old"
    if found is not None and _is_excluded(requirement, found):
        state = f"{found}, which is excluded"
        why += f" {_EXCLUDED_BECAUSE.get(requirement.name, '')}".rstrip()
    return Finding(
        severity="problem",
        what=f"{requirement.name} is {state}.",
        why=why,
        remedy=f'{sys.executable} -m pip install "{requirement.name}{requirement.specifier}"',
    )


def _is_excluded(requirement: Requirement, found: str) -> bool:
    """Whether that release is named by ``!=``, and not merely out of the bounds."""
    named = [part for part in requirement.specifier if part.operator == "!="]
    return not all(part.contains(found, prereleases=True) for part in named)


def _own_requirements() -> list[str]:
    """Where accel_nb itself is not installed but found on a path, what no launch can do without."""
    try:
        return importlib.metadata.requires("accel-nb") or []
    except importlib.metadata.PackageNotFoundError:
        return ["torch"]


def _torch_build() -> str:
    """``, built for CUDA 12.6``; torch/version.py is read, for importing torch takes seconds."""
    spec = find_spec("torch")
    file = None if spec is None or spec.origin is None else Path(spec.origin).parent / "version.py"
    if file is None or not file.is_file():
        return ""
    text = file.read_text(encoding="utf-8")
    for name, label in (("cuda", "CUDA"), ("hip", "ROCm")):
        found = re.search(rf"^{name}\b[^=]*= '([^']+)'", text, re.MULTILINE)
        if found is not None:
            return f", built for {label} {found[1]}"
    return ", built for CPUs only"


def _fact(name: str, value: str) -> Fact:
    return Fact(group=GROUP, name=name, value=value)
