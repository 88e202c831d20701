"""Whether ranks may stand by: nobody else uses their devices, and enough memory is free. Asked before and meanwhile.

A rank in standby holds what `Device.rank_overhead_bytes` says of its device, and some of the machine's memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...devices import find_devices
from ...devices.device import Device
from ...protocol.commands import StandbyOrder
from ...protocol.hardware import DeviceFigures
from .host_memory import read_usage

RANK_BYTES = 100 << 20
"""Of the machine's memory. A fork shares most of its pages with the server; this much is allowed for what
it writes to, and for a group of gloo."""
UNUSED_BYTES = 256 << 20
"""A device that nobody uses may show this much as used: the driver's own. The smallest context takes more."""
GROWTH_BYTES = 64 << 20
"""So much more in use than when the ranks were ready is somebody else's."""
LEAST_TIMES = 2.0
"""Later on this many times the ranks' share must stay free."""


class StandbyRoom:
    """What one set takes, and whether it may. In the keeper: its devices' figures may start threads."""

    def __init__(self, order: StandbyOrder, device: Device | None = None) -> None:
        """`device`: the plan's kind; None looks it up."""
        plan = order.like.plan
        self._order = order
        self._num_ranks = plan.num_ranks
        self._device = device or next(one for one in find_devices() if one.kind == plan.device_kind)
        self._labels = [rank.device_label for rank in plan.ranks]
        self._used_bytes: list[int] = []
        """By device, when the ranks were ready."""

    def refusal(self) -> str:
        """Why ranks must not get ready now; empty when they may."""
        figures = self._figures()
        if self._device.one_rank_each and len(figures) < self._num_ranks:
            return "nothing is known of how the devices are used"
        if self._order.alone:
            for label, device in zip(self._labels, figures, strict=False):
                if device.holders or device.memory_used_bytes > UNUSED_BYTES:
                    return f"{label} is in use"
        return self._shortage(figures, self._order.free_times)

    def settle(self) -> None:
        """The ranks are ready: what the devices show now is theirs."""
        self._used_bytes = [device.memory_used_bytes for device in self._figures()]

    def need(self) -> str:
        """Why the ranks must go; empty when they may stay."""
        figures = self._figures()
        if self._order.alone:
            for label, device, used_bytes in zip(self._labels, figures, self._used_bytes, strict=False):
                if len(device.holders) > 1 or device.memory_used_bytes > used_bytes + GROWTH_BYTES:
                    return f"somebody else has begun to use {label}"
        return self._shortage(figures, min(LEAST_TIMES, self._order.free_times))

    def _figures(self) -> Sequence[DeviceFigures]:
        return self._device.figures(self._order.like.plan.env) if self._device.one_rank_each else ()

    def _shortage(self, figures: Sequence[DeviceFigures], times: float) -> str:
        cost_bytes = self._device.rank_overhead_bytes
        for label, device in zip(self._labels, figures, strict=False):
            if device.memory_bytes - device.memory_used_bytes < times * cost_bytes:
                return f"{label} has less than {_gib(times * cost_bytes)} free"
        usage = read_usage()
        wanted_bytes = times * RANK_BYTES * self._num_ranks
        if usage.limit_bytes - usage.used_bytes < wanted_bytes:
            return f"less than {_gib(wanted_bytes)} of memory is free ({usage.of})"
        return ""


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
