"""What one measured step tells about the planned launch, as sentences: planned devices, reports of ranks -> findings.

Pure. The estimate is simple on purpose, and can be done by hand: parameters, gradients, what
DistributedDataParallel copies of them and the optimizer's state do not depend on the batch; the tensors that are saved
between forward and backward, and the batch itself, grow with it. What a device's context and communicator take comes on
top. Short-lived tensors and the allocator's fragments are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...protocol.events import DryRunReport
from ...protocol.plan import DryRunPlan, PlannedDevice
from ..failures import rank_ranges
from ..sizes import size_text

MARGIN = 0.9
"""A suggested batch fills this part of the room there is: the estimate leaves things out."""
NAMES_SHOWN = 10
_NO_STEP = (
    "The function returned without an optimizer step, or none had gradients: there is nothing to say about memory. "
    "A dry run is for functions that train with torch's optimizers; this one has run to its end, on the CPU."
)


def step_sentence(report: DryRunReport) -> str:
    """One line on what a rank's step took; alike on ranks that did the same."""
    if not report.stepped:
        return "the function returned without an optimizer step"
    batch = "" if report.batch_size is None else f" with a batch of {report.batch_size:,}"
    total = size_text(report.fixed_bytes + report.growing_bytes)
    return f"one step{batch} takes about {total} ({_parts(report)})"


def findings(planned: DryRunPlan, reports: Mapping[int, DryRunReport], num_ranks: int) -> tuple[str, ...]:
    """What would go wrong in the planned launch, one sentence each; empty when nothing was found.

    `reports`: by rank of the dry run, which had `num_ranks`.
    """
    without_step = [_NO_STEP] if len(_idle(reports)) == num_ranks else []
    return (*without_step, *_unused(reports), *_too_large(planned, reports))


def notes(planned: DryRunPlan, reports: Mapping[int, DryRunReport]) -> tuple[str, ...]:
    """What the user should know and need not change."""
    told = [note for _, report in sorted(reports.items()) for note in report.notes]
    idle = _idle(reports)
    if idle and len(idle) < len(reports):
        told.append(
            f"{_ranks(idle)} returned without an optimizer step, and others made theirs without waiting for that: "
            "right when ranks have different parts, else their models are not trained together."
        )
    told += [
        f"{_ranks(ranks)}: {_names(names)} of {model} got no gradient in the step: not trained, though nothing "
        "waits for it."
        for (model, names, awaited), ranks in _grouped_unused(reports).items()
        if not awaited
    ]
    if any(not device.memory_bytes for device in planned.devices):
        labels = ", ".join(dict.fromkeys(one.label for one in planned.devices if not one.memory_bytes))
        told.append(f"The memory of {labels} is not known: what a step takes was not compared with it.")
    return tuple(dict.fromkeys(told))


def fitting_batch_size(report: DryRunReport, device: PlannedDevice) -> int | None:
    """The largest batch size that the estimate lets fit, with a margin; 0 when not even one does, None when it is not
    known what the batch size was.
    """
    if report.batch_size is None or not report.growing_bytes:
        return None
    room = _free_bytes(device) - device.reserved_bytes - report.fixed_bytes
    return max(0, int(report.batch_size * MARGIN * room / report.growing_bytes))


def _idle(reports: Mapping[int, DryRunReport]) -> list[int]:
    return [rank for rank, report in sorted(reports.items()) if not report.stepped]


_UnusedKey = tuple[str, tuple[str, ...], bool]


def _grouped_unused(reports: Mapping[int, DryRunReport]) -> dict[_UnusedKey, list[int]]:
    groups: dict[_UnusedKey, list[int]] = {}
    for rank, report in sorted(reports.items()):
        for one in report.unused:
            groups.setdefault((one.model, one.names, one.awaited), []).append(rank)
    return groups


def _unused(reports: Mapping[int, DryRunReport]) -> list[str]:
    return [
        f"{_ranks(ranks)}: {_names(names)} of {model} got no gradient in the step. DistributedDataParallel waits for "
        "each parameter on every rank, so the second step would fail. Let the loss depend on all of them, or freeze "
        "those that are not meant to be trained (requires_grad_(False)); where it changes from step to step which are "
        "used, Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])."
        for (model, names, awaited), ranks in _grouped_unused(reports).items()
        if awaited
    ]


def _too_large(planned: DryRunPlan, reports: Mapping[int, DryRunReport]) -> list[str]:
    stepped = {rank: report for rank, report in reports.items() if report.stepped}
    if not stepped:
        return []
    largest = max(stepped.values(), key=lambda report: report.fixed_bytes + report.growing_bytes)
    missing: dict[int, int] = {}
    for rank, device in enumerate(planned.devices):
        lacks = _needed_bytes(stepped.get(rank, largest), device) - _free_bytes(device)
        if device.memory_bytes and lacks > 0:
            missing[rank] = lacks
    if not missing:
        return []
    worst = max(missing, key=lambda rank: missing[rank])
    return [_too_large_text(sorted(missing), worst, stepped.get(worst, largest), planned.devices[worst])]


def _too_large_text(ranks: Sequence[int], worst: int, report: DryRunReport, device: PlannedDevice) -> str:
    where = f" on rank {worst}" if len(ranks) > 1 else ""
    of_which = f", of which {size_text(device.used_bytes)} are in use" if device.used_bytes else ""
    context = f", {size_text(device.reserved_bytes)} for context and communicator" if device.reserved_bytes else ""
    needed = _needed_bytes(report, device)
    figures = (
        f"{_ranks(ranks)} would not fit: a step{where} takes about {size_text(needed)} ({_parts(report)}{context}), "
        f"{size_text(needed - _free_bytes(device))} more than is free on {device.label} "
        f"({size_text(device.memory_bytes)}{of_which})."
    )
    return f"{figures} {_remedy(report, device)}"


def _remedy(report: DryRunReport, device: PlannedDevice) -> str:
    fitting = fitting_batch_size(report, device)
    if fitting is None:
        return "Use less data per step, or a smaller model."
    if fitting == 0:
        return (
            "Not even a batch of 1 would fit: use a smaller model, an optimizer with less state, or a device with more "
            "memory."
        )
    return (
        f"A batch of about {fitting:,} instead of {report.batch_size:,} would fit, by this estimate; "
        "gradient_accumulation_steps keeps the effective batch."
    )


def _needed_bytes(report: DryRunReport, device: PlannedDevice) -> int:
    return report.fixed_bytes + report.growing_bytes + device.reserved_bytes


def _free_bytes(device: PlannedDevice) -> int:
    return max(0, device.memory_bytes - device.used_bytes)


def _parts(report: DryRunReport) -> str:
    parts = {
        "parameters": report.parameter_bytes,
        "gradients": report.gradient_bytes,
        "DistributedDataParallel's copies of gradients": report.bucket_bytes,
        "optimizer state": report.optimizer_bytes,
        "saved for backward": report.activation_bytes,
        "batch": report.batch_bytes,
    }
    return ", ".join(f"{name} {size_text(size)}" for name, size in parts.items() if size)


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(map(repr, names[:NAMES_SHOWN])) + more


def _ranks(ranks: Sequence[int]) -> str:
    return f"Rank{'s' if len(ranks) > 1 else ''} {rank_ranges(ranks)}"
