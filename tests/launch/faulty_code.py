"""Functions that go wrong on ranks, deep inside libraries. A module that is cheap to import."""

from __future__ import annotations


def broadcast_other_sizes() -> None:
    """Rank 1 waits for fewer bytes than rank 0 sends: gloo ends the process."""
    import time

    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    distributed.broadcast(torch.ones(4 - 2 * distributed.get_rank()), 0)
    time.sleep(60)


def meet() -> None:
    from torch import distributed

    distributed.init_process_group("gloo")


def wrong_numbers(limit_s: float) -> float:
    import os

    raise RuntimeError(f"rank {os.environ['RANK']} got wrong numbers after {limit_s:g}")


def never_meets(limit_s: float) -> float:
    import time

    time.sleep(600 + limit_s)
    return limit_s
