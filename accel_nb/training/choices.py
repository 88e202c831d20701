"""Names that settings choose among. Members and values are those of ``accelerate.utils.dataclasses`` (1.15)."""

from __future__ import annotations

import enum


class EnumWithContains(enum.EnumMeta):
    """Enums in which ``value in Kind`` tells whether `value` belongs to one of its members, also before Python 3.12."""

    def __contains__(cls, item: object) -> bool:
        try:
            cls(item)
        except ValueError:
            return False
        return True


class BaseEnum(enum.Enum, metaclass=EnumWithContains):
    """An enum whose members print as their values."""

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def list(cls) -> list[str]:
        """All values, in the order of definition."""
        return [str(member) for member in cls]


class PrecisionType(str, BaseEnum):
    """What `Accelerator(mixed_precision=...)` may be."""

    NO = "no"
    FP8 = "fp8"
    FP16 = "fp16"
    BF16 = "bf16"


class DDPCommunicationHookType(BaseEnum):
    """How DistributedDataParallel compresses gradients on their way to the other ranks."""

    NO = "no"
    FP16 = "fp16"
    BF16 = "bf16"
    POWER_SGD = "power_sgd"
    BATCHED_POWER_SGD = "batched_power_sgd"


class DynamoBackend(str, BaseEnum):
    """What ``torch.compile`` compiles with. Those that torch does not bring itself need their own packages."""

    NO = "NO"
    EAGER = "EAGER"
    AOT_EAGER = "AOT_EAGER"
    INDUCTOR = "INDUCTOR"
    AOT_TS_NVFUSER = "AOT_TS_NVFUSER"
    NVPRIMS_NVFUSER = "NVPRIMS_NVFUSER"
    CUDAGRAPHS = "CUDAGRAPHS"
    OFI = "OFI"
    FX2TRT = "FX2TRT"
    ONNXRT = "ONNXRT"
    TENSORRT = "TENSORRT"
    AOT_TORCHXLA_TRACE_ONCE = "AOT_TORCHXLA_TRACE_ONCE"
    TORCHXLA_TRACE_ONCE = "TORCHXLA_TRACE_ONCE"
    TVM = "TVM"
    HPU_BACKEND = "HPU_BACKEND"
    NEURON = "NEURON"


TORCH_DYNAMO_MODES = ["default", "reduce-overhead", "max-autotune"]
"""What upstream's users are offered as ``TorchDynamoPlugin(mode=...)``; torch may know more, and says so."""


class LoggerType(BaseEnum):
    """Experiment trackers that `Accelerator(log_with=...)` knows by name. "all" stands for those that are installed."""

    ALL = "all"
    AIM = "aim"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    TRACKIO = "trackio"
    COMETML = "comet_ml"
    MLFLOW = "mlflow"
    CLEARML = "clearml"
    DVCLIVE = "dvclive"
    SWANLAB = "swanlab"


class RNGType(BaseEnum):
    """Random number generators. `randomness.RNG_TYPES` are those that this version can synchronise."""

    TORCH = "torch"
    CUDA = "cuda"
    MLU = "mlu"
    SDAA = "sdaa"
    MUSA = "musa"
    NPU = "npu"
    XLA = "xla"
    XPU = "xpu"
    HPU = "hpu"
    NEURON = "neuron"
    GENERATOR = "generator"


class ComputeEnvironment(enum.StrEnum):
    """Where a configuration file says that ranks run."""

    LOCAL_MACHINE = "LOCAL_MACHINE"
    AMAZON_SAGEMAKER = "AMAZON_SAGEMAKER"


class CustomDtype(enum.Enum):
    """Element types that torch has no dtype for."""

    FP8 = "fp8"
    INT4 = "int4"
    INT2 = "int2"
