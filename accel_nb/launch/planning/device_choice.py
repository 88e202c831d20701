"""Which kind of device, which of them, how many ranks: the choices of a plan that depend on what the machine has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...devices.device import Device
from ...errors import EngineUnavailable, InvalidArgument, NotEnoughDevices, PlanError, UnknownDevice
from ...protocol.hardware import DeviceInfo, NodeHardware
from ...protocol.plan import LaunchRequest, StartMethod
from .checks import is_whole


def choose_kind(request: LaunchRequest, hardware: NodeHardware, kinds: Mapping[str, Device]) -> Device:
    """The device kind asked for, or for "auto" the most preferred one that is here. Raises `UnknownDevice` or
    `EngineUnavailable`; never falls back to another kind than the one named.
    """
    if request.device == "auto":
        return _automatic_kind(request, hardware, kinds)
    if request.device not in kinds:
        raise UnknownDevice(
            f"device={request.device!r} is not known; allowed: {', '.join(map(repr, ('auto', *sorted(kinds))))}. "
            "Single devices are chosen with devices=[...]."
        )
    kind = kinds[request.device]
    if kind.kind in hardware.unusable:
        raise EngineUnavailable(f"device={kind.kind!r}: {hardware.unusable[kind.kind]}")
    if kind.one_rank_each and not hardware.devices.get(kind.kind):
        raise UnknownDevice(
            f"device={kind.kind!r}: no {kind.kind} device can be used on {hardware.host}"
            f"{_why_none(kind, hardware)}. device='cpu' runs the ranks on the CPU."
        )
    return kind


def choose_devices(request: LaunchRequest, hardware: NodeHardware, kind: Device) -> tuple[DeviceInfo, ...]:
    """The devices of ranks 0, 1, ... in order; () for a kind that ranks share. Raises `UnknownDevice`,
    `NotEnoughDevices` or `InvalidArgument`.
    """
    if request.devices is None and not kind.one_rank_each:
        return ()
    visible = hardware.devices.get(kind.kind, ())
    if request.devices is None:
        chosen = _first_devices(request, hardware, visible, kind)
    else:
        chosen = _named_devices(request, request.devices, visible, kind)
    if refusal := kind.refused_choice(chosen, visible):
        raise PlanError(refusal)
    return chosen


def choose_start_method(request: LaunchRequest, kind: Device) -> tuple[StartMethod, list[str]]:
    """How ranks on `kind` come to be, and a sentence when that is not what was asked. Raises `PlanError`."""
    if request.start_method in kind.start_methods:
        return request.start_method, []
    method = kind.start_methods[0]
    if request.start_method == "fork":
        raise PlanError(
            f"start_method='fork' is not possible on {kind.kind}, which no process can use that was forked from one "
            f"with torch in it; leave it out, and ranks are fresh interpreters."
        )
    return method, [f"Ranks on {kind.kind} are fresh interpreters, not forked from the warm server: they import torch."]


def _first_devices(
    request: LaunchRequest, hardware: NodeHardware, visible: tuple[DeviceInfo, ...], kind: Device
) -> tuple[DeviceInfo, ...]:
    count = request.num_processes or len(visible)
    if count > len(visible):
        raise NotEnoughDevices(
            f"num_processes={count}, but {hardware.host} has {_counted(len(visible), kind)} for this kernel "
            f"({label_all(kind, visible)}), and each rank needs its own{_hidden(kind, hardware)}. Ask for "
            f"{'1' if len(visible) == 1 else f'at most {len(visible)}'}, or pass device='cpu' for {count} CPU ranks."
        )
    return visible[:count]


def check_precision(request: LaunchRequest, kind: Device) -> None:
    """Raises `PlanError` for a precision that `kind` cannot compute in."""
    if request.mixed_precision not in kind.precisions:
        raise PlanError(
            f"mixed_precision={request.mixed_precision!r} is not possible on {kind.kind}; "
            f"allowed there: {', '.join(map(repr, sorted(kind.precisions)))}."
        )


def check_recorder(request: LaunchRequest, kind: Device) -> None:
    """Raises `PlanError` when the memory of `kind` is to be recorded and cannot."""
    if request.memory_snapshot and not kind.records_allocations:
        raise PlanError(
            f"memory_snapshot=True records what is allocated on a GPU, and these ranks compute on {kind.kind}, where "
            "torch keeps no such record; leave memory_snapshot out."
        )


def label(kind: Device, device: DeviceInfo) -> str:
    """``cuda:3 NVIDIA H100``, in the machine's numbering."""
    return f"{kind.kind}:{device.index} {device.name}".rstrip()


def label_all(kind: Device, devices: Sequence[DeviceInfo]) -> str:
    return ", ".join(label(kind, device) for device in devices)


def _automatic_kind(request: LaunchRequest, hardware: NodeHardware, kinds: Mapping[str, Device]) -> Device:
    for kind in sorted(kinds.values(), key=lambda kind: -kind.preference):
        if kind.preference >= 0 and kind.one_rank_each and hardware.devices.get(kind.kind):
            return kind
    for kind in kinds.values():
        if kind.preference >= 0 and kind.kind in hardware.unusable:
            raise EngineUnavailable(f"{hardware.unusable[kind.kind]} Or device='cpu' runs the ranks on the CPU.")
    if request.devices is not None:
        raise UnknownDevice(
            f"devices={list(request.devices)!r}: no accelerator can be used on {hardware.host}"
            f"{''.join(_why_none(kind, hardware) for kind in kinds.values())}. Leave devices out for CPU ranks."
        )
    return max((kind for kind in kinds.values() if not kind.one_rank_each), key=lambda kind: kind.preference)


def _named_devices(
    request: LaunchRequest, names: Sequence[int | str], visible: tuple[DeviceInfo, ...], kind: Device
) -> tuple[DeviceInfo, ...]:
    if not kind.one_rank_each:
        raise InvalidArgument(
            f"devices={list(names)!r} chooses accelerators, and device={kind.kind!r} has none to choose from; "
            "num_processes= says how many ranks share it."
        )
    if not names:
        raise InvalidArgument("devices=[] chooses nothing; leave it out for all visible devices.")
    if request.num_processes not in (None, len(names)):
        raise InvalidArgument(
            f"num_processes={request.num_processes}, but devices={list(names)!r} names {len(names)}; "
            "leave num_processes out, each device named gets one rank."
        )
    chosen = tuple(_named_device(name, visible, kind) for name in names)
    for position, device in enumerate(chosen):
        if device in chosen[:position]:
            raise InvalidArgument(
                f"devices={list(names)!r} names {label(kind, device)} twice; each rank needs a device of its own."
            )
    return chosen


def _named_device(name: int | str, visible: tuple[DeviceInfo, ...], kind: Device) -> DeviceInfo:
    if is_whole(name, least=0) and int(name) < len(visible):
        return visible[int(name)]
    if isinstance(name, str) and name:
        matches = [device for device in visible if device.uuid.lower().startswith(name.lower())]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise UnknownDevice(
                f"devices: {name!r} is the beginning of several ids ({', '.join(match.uuid for match in matches)}); "
                "give more of it."
            )
    listing = "; ".join(
        f"{position} = {label(kind, device)}{f' ({device.uuid})' if device.uuid else ''}"
        for position, device in enumerate(visible)
    )
    raise UnknownDevice(
        f"devices: {name!r} is not among the {kind.kind} devices visible to this kernel. Allowed, by position or id: "
        f"{listing}."
    )


def _counted(count: int, kind: Device) -> str:
    return f"{count} {kind.kind} device{'s' if count != 1 else ''}"


def _hidden(kind: Device, hardware: NodeHardware) -> str:
    """Why fewer may be visible than the user thinks."""
    if kind.kind not in hardware.visible_ids:
        return ""
    return f"; {' and '.join(kind.visibility_variables)}={','.join(hardware.visible_ids[kind.kind])!r} limits them"


def _why_none(kind: Device, hardware: NodeHardware) -> str:
    if hardware.visible_ids.get(kind.kind) is not None:
        shown = ",".join(hardware.visible_ids[kind.kind])
        return f" ({' and '.join(kind.visibility_variables)}={shown!r} is set in this kernel)"
    notes = [note for note in hardware.notes if f" {kind.kind} " in note]
    return f" ({notes[0].rstrip('.')})" if notes else ""
