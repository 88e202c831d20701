"""Leave NCCL's process groups, those of CUDA ranks, while other ranks or this one still wait in them."""

from __future__ import annotations


def abort() -> None:
    """End all groups at once, in any thread: a thread that waits for one of their operations goes on, with wrong
    results or an error. Call `close` afterwards, in the thread that computes.
    """
    from torch import distributed

    if distributed.is_initialized():
        # The one function that aborts all communicators of a process together (torch 2.6 to 2.13): one by one they may
        # wait for each other, pytorch/pytorch#119797.
        distributed.distributed_c10d._abort_process_group()  # noqa: SLF001


def close() -> None:
    """`abort`, and drop torch's record of the groups, so that a new one can be made."""
    from torch import distributed

    abort()
    # Not every torch drops it: 2.11 then refused to initialise twice.
    if distributed.is_initialized():
        distributed.destroy_process_group()
