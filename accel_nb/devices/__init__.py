"""Every kind of hardware, one file each. A new file that ends in ``DEVICE = ...`` is found without any list."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points

from .device import Device

ENTRY_POINTS = "accel_nb.devices"


@lru_cache(maxsize=1)
def find_devices() -> tuple[Device, ...]:
    """The kinds of this folder and of other packages, the most preferred first. Imports no torch.

    Warns about another package's device that cannot be loaded, or whose kind is taken, and leaves it out.
    """
    found: dict[str, Device] = {}
    for origin, device in (*own_devices().items(), *_foreign(entry_points(group=ENTRY_POINTS))):
        if device.kind in found:
            warnings.warn(f"{origin} is left out: a device of kind {device.kind!r} exists already.", stacklevel=2)
            continue
        found[device.kind] = device
    return tuple(sorted(found.values(), key=lambda device: -device.preference))


def find_device(kind: str) -> Device | None:
    """The kind of this name; None when there is none. Other packages are looked at only for what is not ours."""
    own = {device.kind: device for device in own_devices().values()}
    everything = own if kind in own else {device.kind: device for device in find_devices()}
    return everything.get(kind)


def count_devices() -> dict[str, int]:
    """Kind -> how many devices torch can use, of the kinds that ranks do not share and torch can be asked about.

    Only for a throw-away child of the server, under the kernel's environment: see `Device.count`.
    """
    return {
        device.kind: device.count() for device in find_devices() if device.one_rank_each and device.counted_by_torch
    }


@cache
def own_devices() -> dict[str, Device]:
    """The kinds of this folder, by module. Once asked, it costs nothing: servers ask before they fork."""
    modules = [importlib.import_module(module.name) for module in pkgutil.iter_modules(__path__, f"{__name__}.")]
    return {module.__name__: module.DEVICE for module in modules if hasattr(module, "DEVICE")}


def _foreign(offers: Iterable[EntryPoint]) -> Iterator[tuple[str, Device]]:
    for offer in offers:
        try:
            device = offer.load()
        except Exception as error:  # noqa: BLE001  another package's import may raise anything; it is reported
            warnings.warn(f"The device {offer.value!r} cannot be loaded: {type(error).__name__}: {error}", stacklevel=3)
            continue
        if not isinstance(device, Device):
            warnings.warn(f"{offer.value!r} is left out: it lacks members of a Device.", stacklevel=3)
            continue
        yield offer.value, device
