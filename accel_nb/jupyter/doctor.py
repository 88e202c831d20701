"""``accel_nb.doctor()``: what is here, what works, and what to do about what does not."""

from __future__ import annotations

from collections.abc import Sequence

from ..launch.doctor.examination import examine
from ..protocol.diagnosis import Diagnosis
from .cell_watch import watch_cells


def doctor(
    num_processes: int | None = None,
    device: str = "auto",
    devices: Sequence[int | str] | None = None,
    *,
    self_test: bool = True,
) -> Diagnosis:
    """Look at this machine and this kernel, and let the chosen devices exchange some numbers.

    Args:
        num_processes, device, devices: as in `notebook_launcher`; left out: what it would take, but two CPU ranks
            where there is no accelerator.
        self_test: False starts no ranks, and does not ask torch what it can use.

    Gives a `Diagnosis`, whose text a notebook shows. Raises InvalidArgument for an argument that is never right.
    """
    watch_cells()
    return examine(num_processes, device, devices, with_self_test=self_test)
