"""numpy.memmap arrays travel as the name of their file: a rank maps the file itself, whatever its size."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

Arguments: TypeAlias = "tuple[str, np.dtype[Any], str, int, tuple[int, ...], str]"
"""Those of numpy.memmap: file, type, mode, offset in bytes, shape, order."""

_REOPENED_AS = {"r": "r", "r+": "r+", "w+": "r+"}
"""Mode -> mode for a second map. "c" is missing: what was written into a private map is nowhere but in it."""


def reopening(array: np.memmap[Any, np.dtype[Any]]) -> Arguments | None:
    """How to map the same part of the same file again; None when that would not give the same values."""
    import numpy as np

    area, mode = array._mmap, _REOPENED_AS.get(array.mode)  # type: ignore[attr-defined]  # noqa: SLF001  its only link
    order = "C" if array.flags.c_contiguous else "F" if array.flags.f_contiguous else None
    if area is None or mode is None or order is None or array.filename is None or not Path(array.filename).is_file():
        return None
    area_address = np.frombuffer(area, np.uint8).__array_interface__["data"][0]
    area_offset = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY  # as numpy.memmap.__new__ chooses it
    offset = area_offset + array.__array_interface__["data"][0] - area_address
    return str(array.filename), array.dtype, mode, offset, array.shape, order
