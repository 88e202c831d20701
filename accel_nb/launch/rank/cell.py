"""A notebook cell in a rank: its code runs as a module's, in ``__main__``; what its last line is worth is shown.

kernel: cell text -> `CellCode` in a carrier function that takes the notebook's variables along -> payload
rank:   the carrier -> `run_cell` -> values of the variables that are wanted back
"""

from __future__ import annotations

import types
from dataclasses import dataclass

from . import displays


class NoSuchVariable(NameError):
    """A variable that is wanted back was not set."""


@dataclass(frozen=True)
class CellCode:
    """A compiled cell."""

    body: types.CodeType
    last: types.CodeType | None
    """Its last line, when that is an expression whose value is to be shown."""
    out: tuple[str, ...] = ()
    """Variables wanted back from rank 0."""


def run_cell(cell: CellCode, namespace: dict[str, object]) -> dict[str, object]:
    """Run `cell` in `namespace`, show what there is to be shown, give the variables that are wanted back.

    Raises what the cell raises, and `NoSuchVariable`. `displays.install` comes before.
    """
    try:
        exec(cell.body, namespace)  # noqa: S102  this is the user's cell
        if cell.last is not None:
            value = eval(cell.last, namespace)  # noqa: S307
            if value is not None:
                displays.display(value)
    finally:
        displays.finish()
    missing = [name for name in cell.out if name not in namespace]
    if missing:
        raise NoSuchVariable(
            f"--out asks for {', '.join(map(repr, missing))}, which the cell has not set on rank 0. "
            "Nothing was brought back."
        )
    return {name: namespace[name] for name in cell.out}
