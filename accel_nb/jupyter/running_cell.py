"""Which cell runs now, in the words of people and of the front end."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_NEWEST = 20
"""Cells among which one that runs is looked for: several run at once in subshells."""


class RunningCell(NamedTuple):
    label: str = ""
    """``In[3]``; empty when it is not counted, or nothing is known."""
    cell_id: str = ""
    """The notebook's own id of it, when the front end tells it: JupyterLab 4 and Notebook 7 do, as ``cellId`` in the
    metadata of the request (``OutputArea.execute`` of @jupyterlab/outputarea 4).
    """


def running_cell() -> RunningCell:
    """The cell of the calling thread, of the main shell or of a subshell. Outside an ipykernel nothing is known."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    kernel = getattr(shell, "kernel", None)
    if shell is None or kernel is None:
        return RunningCell()
    parent = kernel.get_parent("shell") or {}
    content, metadata = parent.get("content"), parent.get("metadata")
    code = content.get("code") if isinstance(content, Mapping) else None
    cell_id = metadata.get("cellId") if isinstance(metadata, Mapping) else None
    return RunningCell(
        label=_label(shell.history_manager.input_hist_raw, code) if isinstance(code, str) else "",
        cell_id=cell_id if isinstance(cell_id, str) else "",
    )


def _label(history: Sequence[str], code: str) -> str:
    """By the text: the shell's `execution_count` is that of the next cell already, since IPython 9."""
    for number in range(len(history) - 1, max(0, len(history) - 1 - _NEWEST), -1):
        if code.strip() and history[number].strip() == code.strip():
            return f"In[{number}]"
    return ""
