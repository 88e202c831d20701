"""A backend of matplotlib for ranks, in the place of a notebook's inline one: ``plt.show()`` shows figures in the cell.

Chosen by ``MPLBACKEND`` (`accel_nb.protocol.environment`). matplotlib is imported only once somebody has imported it.
"""

from __future__ import annotations

import sys
from typing import Any


def show_open_figures(*, block: bool | None = None) -> None:  # noqa: ARG001  pyplot's argument
    """Show and close all figures that this backend has open, in the order in which they were made."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or not pyplot.get_fignums() or pyplot.get_backend().lower() != _NAME:
        return
    from .displays import display

    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        if figure.axes or figure.lines:
            display(figure)
    pyplot.close("all")


_NAME = f"module://{__name__}"


def __getattr__(name: str) -> Any:  # noqa: ANN401  matplotlib's classes
    """What matplotlib looks for in a backend's module: its canvas, made on demand so that importing this is cheap."""
    if name != "FigureCanvas":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from matplotlib.backend_bases import FigureManagerBase
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    class FigureManager(FigureManagerBase):
        @classmethod
        def pyplot_show(cls, *, block: bool | None = None) -> None:
            show_open_figures(block=block)

    class FigureCanvas(FigureCanvasAgg):
        manager_class = FigureManager

    globals()[name] = FigureCanvas
    globals()["FigureManager"] = FigureManager
    return FigureCanvas
