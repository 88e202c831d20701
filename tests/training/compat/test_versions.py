"""Versions of libraries and of the system's kernel."""

from __future__ import annotations

import platform
import types

import pytest
import torch
from packaging.version import Version

from accel_nb.training.compat.versions import check_os_kernel, compare_versions, is_torch_version


def test_versions_are_compared_as_versions() -> None:
    assert compare_versions(Version("1.10"), ">", "1.9")
    assert not compare_versions(Version("1.10"), "==", "1.9")
    assert compare_versions("torch", ">=", "2.6")
    assert is_torch_version("==", Version(torch.__version__).base_version)


def test_an_unknown_comparison_is_refused() -> None:
    with pytest.raises(ValueError, match="operation='~=' is unknown; choose one of '>', '>=', '==', '!=', '<=', '<'"):
        compare_versions("torch", "~=", "2")


def kernel(monkeypatch: pytest.MonkeyPatch, system: str, release: str) -> None:
    monkeypatch.setattr(platform, "uname", lambda: types.SimpleNamespace(system=system, release=release))


def test_an_old_linux_is_told_once_with_its_version(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernel(monkeypatch, "Linux", "5.4.17-35-generic")

    check_os_kernel()
    check_os_kernel()

    [record] = caplog.records
    assert record.getMessage().startswith("This machine's Linux kernel is 5.4.17. Before 5.5.0 distributed training")


@pytest.mark.parametrize(
    ("system", "release"), [("Linux", "5.15.0-35-generic"), ("Linux", "6.1"), ("Darwin", "5.4.0"), ("Linux", "odd")]
)
def test_other_systems_are_not_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, system: str, release: str
) -> None:
    kernel(monkeypatch, system, release)

    check_os_kernel()

    assert caplog.records == []
