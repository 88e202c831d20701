"""What `tqdm.notebook` is inside a rank: tqdm's text bar under the notebook's names.

Loaded as `tqdm.notebook` by the hook of `tqdm_notebook.py`, never imported by our own code. It leaves out `IProgress`,
which makes `tqdm.autonotebook` fall back to text without a warning (tqdm 4.66 to 4.70).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tqdm.std import tqdm as text_bar

__all__ = ["tnrange", "tqdm", "tqdm_notebook", "trange"]


class tqdm_notebook(text_bar):  # type: ignore[misc]  # noqa: N801  tqdm has no type information; it is tqdm's name
    """tqdm's text bar with the arguments of the widget."""

    def __init__(self, iterable: Iterable[Any] | None = None, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        kwargs.pop("display", None)  # whether the widget is shown at once; a text bar has no widget to show later
        kwargs["disable"] = bool(kwargs.get("disable"))  # None means "not in a terminal"; the widget ignores that too
        if isinstance(kwargs.get("ncols"), str):
            kwargs["ncols"] = None  # a width in CSS
        super().__init__(iterable, *args, **kwargs)

    def display(
        self,
        msg: str | None = None,
        pos: int | None = None,
        close: bool = False,  # noqa: ARG002  what the widget does with its colour and its closing
        bar_style: str | None = None,  # noqa: ARG002
        check_delay: bool = True,  # noqa: ARG002
    ) -> bool:
        return bool(super().display(msg, pos))


def tnrange(*args: int, **kwargs: Any) -> tqdm_notebook:  # noqa: ANN401
    return tqdm_notebook(range(*args), **kwargs)


tqdm = tqdm_notebook
trange = tnrange
