"""What only a dry run brings about: its ranks are on the CPU, and end at their first step."""

from __future__ import annotations

from ...protocol.commands import RankOrder
from .known import Known

WITHOUT_DEVICES = Known(
    "dry run without devices",
    r"torch not compiled with cuda enabled|found no nvidia driver|no cuda gpus are available|invalid device ordinal"
    r"|has no attribute '_cuda_|doesn't have nccl built in|processgroupnccl is only supported with gpus"
    r"|attempting to deserialize object on a cuda device|cuda is not available|doesn't support bf16/gpu"
    r"|fp16 mixed precision requires|not implemented for '(?:half|bfloat16)'",
    "This is a dry run, which hides every accelerator from its ranks, and the function insists on one.",
    "Take the device from accelerator.device and leave the backend out of init_process_group, so that the function "
    "runs on either; else launch without dry_run: this tells nothing about the launch itself.",
)
DIFFERENT_PARTS = Known(
    "dry run of different parts",
    r"has returned from the function without calling|\bgloo\b.*(?:connection closed by peer|connection reset by peer)",
    "In a dry run each rank ends at its first optimizer step, and this one waited for a rank that had ended.",
    "If ranks have different parts on purpose (one learns, others collect), a dry run cannot follow them: launch "
    "without it; else this rank calls an operation that the others do not call.",
)


def known_of_dry_runs(order: RankOrder) -> tuple[Known, ...]:
    """What comes before all other explanations of an error in the rank of `order`; empty for ordinary launches."""
    return (WITHOUT_DEVICES,) * order.hides_devices + (DIFFERENT_PARTS,) * order.dry_run
