"""What kind of ranks are running."""

from __future__ import annotations

from enum import StrEnum


class DistributedType(StrEnum):
    """Names follow ``accelerate.DistributedType`` (1.15), so that comparisons in moved code keep working: there are
    also names of what this version does not run.
    """

    NO = "NO"
    """One process."""
    MULTI_CPU = "MULTI_CPU"
    """Several ranks on CPUs, gloo or MPI between them."""
    MULTI_GPU = "MULTI_GPU"
    """Several ranks, a CUDA device each, NCCL between them."""
    MULTI_NPU = "MULTI_NPU"
    MULTI_MLU = "MULTI_MLU"
    MULTI_SDAA = "MULTI_SDAA"
    MULTI_MUSA = "MULTI_MUSA"
    MULTI_XPU = "MULTI_XPU"
    DEEPSPEED = "DEEPSPEED"
    FSDP = "FSDP"
    XLA = "XLA"
    MEGATRON_LM = "MEGATRON_LM"
    MULTI_HPU = "MULTI_HPU"
    MULTI_NEURON = "MULTI_NEURON"


CUDA_DISTRIBUTED_TYPES = ["DEEPSPEED", "MULTI_GPU", "FSDP", "MEGATRON_LM", "TP"]
"""``accelerate.utils.constants`` (1.15)."""
TORCH_DISTRIBUTED_OPERATION_TYPES = [
    *CUDA_DISTRIBUTED_TYPES,
    *("MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU", "MULTI_CPU", "MULTI_HPU", "MULTI_NEURON"),
]
"""Those whose operations go through torch.distributed (``accelerate.utils.constants``, 1.15)."""
