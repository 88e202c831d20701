"""The kernel that the tests run in is the one they were told to run in."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import ipykernel
from ipykernel._version import __version__ as imported_release
from packaging.version import Version


def test_the_imported_ipykernel_is_the_installed_release_and_is_supported() -> None:
    assert imported_release == metadata.version("ipykernel")
    assert Path(ipykernel.__file__).parent.name == "ipykernel"
    assert Version(imported_release) >= Version("6.31")
