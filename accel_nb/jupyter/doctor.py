"""``accel_nb.doctor()``: what is here, what works, and what to do about what does not."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ..launch.doctor.examination import examine
from ..protocol.diagnosis import Diagnosis
from . import front_end
from .cell_watch import watch_cells


def doctor(
    num_processes: int | None = None,
    device: str = "auto",
    devices: Sequence[int | str] | None = None,
    *,
    self_test: bool = True,
) -> Diagnosis:
    """Look at this machine, this kernel and what pages need, and let the chosen devices exchange some numbers.

    Args:
        num_processes, device, devices: as in `notebook_launcher`; left out: what it would take, but two CPU ranks
            where there is no accelerator.
        self_test: False starts no ranks, and does not ask torch what it can use.

    Gives a `Diagnosis`, whose text a notebook shows. Raises InvalidArgument for an argument that is never right.
    """
    watch_cells()
    found = examine(num_processes, device, devices, with_self_test=self_test)
    extension = front_end.find_extension()
    loaded = front_end.is_loaded()
    return replace(
        found,
        facts=(*found.facts, *front_end.facts(extension, is_loaded=loaded)),
        findings=(*found.findings, *front_end.findings(extension, is_loaded=loaded)),
    )
