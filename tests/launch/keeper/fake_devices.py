"""Two devices for ranks in standby, whose use a test decides."""

from __future__ import annotations

from collections.abc import Mapping

from accel_nb.devices.base import DeviceBase
from accel_nb.protocol.hardware import DeviceFigures

GIB = 1 << 30


class FakeDevice(DeviceBase):
    """Two devices of 24 GiB, of which a rank takes 1 GiB; what is in use, and by whom, is set by the test."""

    kind = "fake"
    torch_type = "cpu"
    preference = 0
    rank_overhead_bytes = GIB

    def __init__(self, variables: Mapping[str, str]) -> None:
        """`variables`: by which it must be asked."""
        self.used_bytes = [0, 0]
        self.holders: list[tuple[tuple[int, int], ...]] = [(), ()]
        self._variables = variables

    def figures(self, variables: Mapping[str, str]) -> tuple[DeviceFigures, ...]:
        assert variables == self._variables
        return tuple(
            DeviceFigures(memory_bytes=24 * GIB, memory_used_bytes=used_bytes, holders=holders)
            for used_bytes, holders in zip(self.used_bytes, self.holders, strict=True)
        )
