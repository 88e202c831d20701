"""What CUDA and its libraries say."""

from __future__ import annotations

from .known import FIND_LINE, Known

CUDA = (
    Known(
        "cuda after fork",
        r"cannot re-initialize cuda in forked subprocess",
        "A process was forked from one that uses CUDA already, and CUDA does not survive a fork: most often a "
        "DataLoader worker that touches the GPU, or ranks started with start_method='fork'.",
        "Keep data on the CPU in datasets and collate functions, or pass multiprocessing_context='forkserver' to the "
        "DataLoader; launch with the default start_method.",
    ),
    Known(
        "gpu out of memory",
        r"(?:cuda|hip|xpu|mps backend|npu|mlu) out of memory|cuda error: out of memory|cublas_status_alloc_failed"
        r"|cudnn_status_alloc_failed|resource_exhausted.*(?:of memory|hbm|trying to allocate)",
        "The model, its optimizer and this batch do not fit into the memory of the rank's device.",
        "Decorate the training function's inner part with accel_nb.find_executable_batch_size, or take a smaller batch "
        "with gradient_accumulation_steps; accel_nb.doctor() shows who else holds memory there.",
    ),
    Known(
        "host out of memory",
        r"defaultcpuallocator: (?:can't allocate memory|not enough memory)|cannot allocate memory"
        r"|^memoryerror|std::bad_alloc",
        "The machine, or the container's limit, has no more main memory; every rank and every DataLoader worker needs "
        "its own share.",
        "Use fewer ranks or fewer workers, a smaller batch (accel_nb.find_executable_batch_size), or data that is read "
        "when it is needed.",
    ),
    Known(
        "invalid device ordinal",
        r"invalid device ordinal|device index out of range|assertionerror: invalid device id",
        "The code asked for a GPU number that this rank cannot see.",
        "Use accelerator.device or LOCAL_RANK instead of a fixed number: ranks see the chosen devices only, counted "
        "from 0.",
    ),
    Known(
        "device-side assert",
        r"device-side assert triggered|cudaerrorassert",
        "A check inside a GPU kernel failed: nearly always a label or index outside its range (a class >= "
        "num_classes, a token >= the vocabulary).",
        f"{FIND_LINE}, or once with device='cpu', where the same error names the index.",
    ),
    Known(
        "illegal memory access",
        r"illegal memory access|misaligned address|unspecified launch failure",
        "A GPU kernel touched memory that is not its own; the line shown is where that was noticed, not where it was "
        "done.",
        f"{FIND_LINE}, and suspect custom kernels, indexes and mixed devices first.",
    ),
    Known(
        "cublas not initialized",
        r"cublas_status_not_initialized|cudnn_status_not_initialized|cusolver_status_not_initialized",
        "A library of CUDA's could not start on the device: most often the memory is nearly full, or an earlier error "
        "(an index out of range) left the device unusable.",
        "Take a smaller batch; if it stays, run once with device='cpu', where an index error is named.",
    ),
    Known(
        "cublas execution failed",
        r"cublas_status_(?:execution_failed|internal_error|invalid_value)|cudnn_status_(?:execution_failed|internal_error)",
        "A matrix product failed on the device: shapes or indexes that do not fit, or memory that ran out.",
        f"{FIND_LINE}, or once with device='cpu', where the shapes are named.",
    ),
    Known(
        "no kernel image",
        r"no kernel image is available|is not compatible with the current pytorch installation",
        "This build of torch has no code for this model of GPU: the GPU is newer, or older, than the build knows.",
        "Install a build of torch for it: the selector on pytorch.org lists them, torch.cuda.get_arch_list() says "
        "what this one has.",
    ),
    Known(
        "driver too old",
        r"nvidia driver on your system is too old|driver version is insufficient for cuda runtime"
        r"|forward compatibility was attempted on non supported hw",
        "The NVIDIA driver of this machine is older than the CUDA that torch was built for.",
        "Update the driver, or install a build of torch for an older CUDA; `nvidia-smi` shows the highest that the "
        "driver knows.",
    ),
    Known(
        "no driver",
        r"found no nvidia driver on your system|torch not compiled with cuda enabled|no cuda gpus are available"
        r"|module 'torch\._c' has no attribute '_cuda_",
        "There is no GPU that torch can use in this rank: no driver, a build of torch without CUDA, or "
        "CUDA_VISIBLE_DEVICES hides it.",
        "Ask accel_nb.doctor() which of them it is; move data with accelerator.device instead of .cuda().",
    ),
    Known(
        "gpu busy or broken",
        r"device\(s\) is/are busy or unavailable|uncorrectable (?:ecc|nvlink) error|gpu is lost"
        r"|cudaerrordevicesunavailable",
        "The GPU is held by another process alone (compute mode exclusive), or is broken.",
        "Look at `nvidia-smi` (compute mode, ECC errors, processes) and choose another with devices=[...].",
    ),
    Known(
        "bf16 unsupported",
        r"doesn't support bf16|bf16 mixed precision requires|bfloat16 is not supported|not implemented for 'bfloat16'",
        "This device, or this operation on it, cannot compute in bfloat16.",
        "Pass mixed_precision='fp16' (GPUs older than Ampere) or 'no'.",
    ),
    Known(
        "fp16 unsupported",
        r"fp16 mixed precision requires a gpu|not implemented for 'half'|doesn't support fp16",
        "This device, or this operation on it, cannot compute in float16; on CPUs that is common.",
        "Pass mixed_precision='bf16' or 'no', and load weights in float32.",
    ),
    Known(
        "devices mixed",
        r"expected all tensors to be on the same device",
        "Tensors of one operation are on different devices.",
        "Take batches from the prepared loader, make new tensors with device=accelerator.device, and prepare the "
        "model.",
    ),
)
