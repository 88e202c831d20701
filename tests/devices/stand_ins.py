"""Namespaces of torch for hardware that no machine of ours has: what our files call there, with the same meaning."""

from __future__ import annotations

import torch


class FakeNamespace:
    """``torch.xpu`` with two devices, or ``torch.mps``, which has fewer functions and one device."""

    def __init__(self, num_devices: int = 2) -> None:
        self._num_devices = num_devices
        self._current = 0
        self._states = [torch.tensor([index]) for index in range(num_devices)]
        self.opened = False
        self.emptied = 0

    def is_available(self) -> bool:
        return self._num_devices > 0

    def device_count(self) -> int:
        return self._num_devices

    def is_initialized(self) -> bool:
        return self.opened

    def current_device(self) -> int:
        return self._current

    def set_device(self, device: int | torch.device) -> None:
        self.opened = True
        self._current = device.index if isinstance(device, torch.device) else device

    def is_bf16_supported(self) -> bool:
        return True

    def empty_cache(self) -> None:
        self.emptied += 1

    def mem_get_info(self) -> tuple[int, int]:
        return 6 << 30, 16 << 30

    def memory_allocated(self) -> int:
        return 1 << 30

    def memory_reserved(self) -> int:
        return 2 << 30

    def driver_allocated_memory(self) -> int:
        return 2 << 30 if self.opened else 0

    def current_allocated_memory(self) -> int:
        return 1 << 30

    def recommended_max_memory(self) -> int:
        return 16 << 30

    def get_rng_state(self, device: torch.device | None = None) -> torch.Tensor:
        return self._states[0 if device is None else device.index].clone()

    def set_rng_state(self, state: torch.Tensor, device: torch.device | None = None) -> None:
        self._states[0 if device is None else device.index] = state.clone()

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [state.clone() for state in self._states]
