"""The kernel that the tests run in is the one they were told to run in."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import ipykernel
from ipykernel._version import __version__ as imported_release
from packaging.requirements import Requirement


def test_the_imported_ipykernel_is_the_installed_release_and_is_supported() -> None:
    assert imported_release == metadata.version("ipykernel")
    assert Path(ipykernel.__file__).parent.name == "ipykernel"
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (needed,) = [found for found in map(Requirement, project["dependencies"]) if found.name == "ipykernel"]
    assert needed.specifier.contains(imported_release)
