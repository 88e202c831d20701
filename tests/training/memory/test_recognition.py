"""Which errors mean that memory ran out."""

from __future__ import annotations

import pytest
import torch

from accel_nb import should_reduce_batch_size


class XlaRuntimeError(RuntimeError):
    """As jaxlib has it."""


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("anything"),
        torch.cuda.OutOfMemoryError("anything"),
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 23.65 GiB"),
        RuntimeError("HIP out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("XPU out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA driver error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
        RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
        RuntimeError(
            "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous"
        ),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        torch.distributed.DistBackendError("NCCL error ... Last error:\nCuda failure 2 'out of memory'"),
        RuntimeError("MPS backend out of memory (MPS allocated: 1 GB, max allowed: 2 GB)"),
        XlaRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes"),
        RuntimeError("Bad StatusOr access: RESOURCE_EXHAUSTED: Error allocating device buffer"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:80] DefaultCPUAllocator: not enough memory: you tried"),
        RuntimeError("FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::1"),
    ],
    ids=lambda error: str(error)[:40] or type(error).__name__,
)
def test_m10_memory_ran_out(error: BaseException) -> None:
    assert should_reduce_batch_size(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("the memory format is wrong"),
        RuntimeError("shared memory object not found"),
        RuntimeError("Expected all tensors to be in channels_last memory"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("It is possible that dataloader's workers are out of shared memory"),
        RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234"),
        ValueError("CUDA out of memory. Tried"),
        KeyboardInterrupt(),
    ],
    ids=str,
)
def test_m10_something_else(error: BaseException) -> None:
    assert not should_reduce_batch_size(error)


def test_m10_a_real_one_of_the_cpu() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)

    assert should_reduce_batch_size(caught.value)
