"""Versions of libraries and of the system's kernel."""

from __future__ import annotations

import functools
import importlib.metadata
import operator
import platform
import re
from typing import TYPE_CHECKING

import torch

from ..rank_logging import get_logger

if TYPE_CHECKING:
    from packaging.version import Version

STR_OPERATION_TO_FUNC = {
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    "<": operator.lt,
}

OLDEST_KERNEL = (5, 5)
"""Before it, processes that use CUDA and shared memory may hang (huggingface/accelerate#1929)."""

_logger = get_logger(__name__)


def compare_versions(library_or_version: str | Version, operation: str, requirement_version: str) -> bool:
    """Whether the version of an installed library, or a version itself, compares so to `requirement_version`.

    ValueError for an operation other than > >= == != <= <. PackageNotFoundError for a library that is not installed.
    """
    if operation not in STR_OPERATION_TO_FUNC:
        known = ", ".join(map(repr, STR_OPERATION_TO_FUNC))
        raise ValueError(f"operation={operation!r} is unknown; choose one of {known}.")
    # Comes with ipykernel, and is needed by nothing else here.
    from packaging.version import Version

    version = library_or_version
    if isinstance(version, str):
        version = Version(importlib.metadata.version(version))
    return bool(STR_OPERATION_TO_FUNC[operation](version, Version(requirement_version)))


def is_torch_version(operation: str, version: str) -> bool:
    """Whether torch's version, without what follows its "+", compares so to `version`."""
    from packaging.version import Version

    return compare_versions(Version(Version(torch.__version__).base_version), operation, version)


def check_os_kernel() -> None:
    """Warn, on the main process and once, about a Linux kernel on which distributed training may hang."""
    system = platform.uname()
    found = re.match(r"(\d+)\.(\d+)(\.\d+)?", system.release)
    if system.system == "Linux" and found is not None and (int(found[1]), int(found[2])) < OLDEST_KERNEL:
        _warn_about(found[0])


@functools.cache
def _warn_about(release: str) -> None:
    _logger.warning(
        f"This machine's Linux kernel is {release}. Before 5.5.0 distributed training may hang "  # noqa: G004
        "(huggingface/accelerate#1929): update it if ranks stop without an error."
    )
