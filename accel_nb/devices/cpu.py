"""Ranks that compute on the CPU, over gloo. Always there, any number of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..protocol.hardware import DeviceFigures, DeviceInfo


class CpuDevice:
    kind = "cpu"
    process_group = "gloo"
    preference = 0
    one_rank_each = False
    precisions = frozenset({"no", "bf16", "fp16"})
    visibility_variables: tuple[str, ...] = ()
    # c10/core/impl/alloc_cpu.cpp: of POSIX, of Windows
    out_of_memory_texts = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")
    rank_overhead_bytes = 0
    records_allocations = False

    def probe(self) -> tuple[DeviceInfo, ...]:
        """None: CPU ranks share the machine, whose figures `NodeHardware` holds."""
        return ()

    def figures(self, variables: Mapping[str, str]) -> tuple[DeviceFigures, ...]:  # noqa: ARG002  no such device
        return ()

    def count(self) -> int:
        return 0

    def visible_ids(self, variables: Mapping[str, str]) -> tuple[str, ...] | None:  # noqa: ARG002  no such variable
        return None

    def env_for(self, chosen: Sequence[DeviceInfo]) -> dict[str, str]:  # noqa: ARG002  nothing to show or hide
        return {}


DEVICE = CpuDevice()
