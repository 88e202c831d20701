"""Intel GPUs: counted and used through ``torch.xpu``, visibility by ``ZE_AFFINITY_MASK``, collectives by XCCL.

No rank has run on such a GPU yet: what follows is written after torch's and Level Zero's documents, and tested against
the contract of a device and a stand-in for ``torch.xpu``. The mask numbers devices or tiles ("0", "1.0"), as Level
Zero's "Environment Variables" say.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol.hardware import DeviceInfo
from .base import NamespaceDevice


class XpuDevice(NamespaceDevice):
    """`probe` knows nothing: without torch there is no binding that tells these GPUs from a processor's own."""

    kind = "xpu"
    torch_type = "xpu"
    process_group = "xccl"  # of torch itself since 2.8; before, oneccl_bind_pt called it ccl
    distributed_type = "MULTI_XPU"
    preference = 80
    visibility_variables = ("ZE_AFFINITY_MASK",)
    out_of_memory_texts = ("UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",)  # of the driver

    def env_for(self, chosen: Sequence[DeviceInfo]) -> dict[str, str]:
        """Of none, nothing: an empty mask shows all. CPU ranks leave accelerators alone all the same, since they are
        told to (``ACCELERATE_USE_CPU``).
        """
        return super().env_for(chosen) if chosen else {}


DEVICE = XpuDevice()
