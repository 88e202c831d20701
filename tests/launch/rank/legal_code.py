"""Programs that are right however odd they look: what they do on each rank, and how many calls are noted of them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from accel_nb import PartialState


def counted() -> dict[str, int]:
    """How many calls each program notes."""
    from accel_nb.protocol import ledger

    distributed.init_process_group("gloo")
    own = ledger.own()
    assert own is not None
    counts = {}
    for name, (program, _) in PROGRAMS.items():
        before = own.page.number(own.rank)
        program(distributed.get_rank(), distributed.get_world_size())
        counts[name] = own.page.number(own.rank) - before
    return counts


def rank_dependent_lists(rank: int, num_ranks: int) -> None:
    tensor = torch.ones(4)
    distributed.gather(tensor, [torch.empty(4) for _ in range(num_ranks)] if rank == 0 else None, dst=0)
    distributed.scatter(torch.empty(2), [torch.ones(2)] * num_ranks if rank == 1 else None, src=1)


def uneven_splits(rank: int, num_ranks: int) -> None:
    given = [index + 1 for index in range(num_ranks)] if rank == 0 else [1] * num_ranks
    got = [rank + 1, *[1] * (num_ranks - 1)]
    distributed.all_to_all_single(torch.empty(sum(got)), torch.ones(sum(given)), got, given)


def asynchronous(rank: int, num_ranks: int) -> None:
    """Work is waited for at different points."""
    del num_ranks
    works = [distributed.all_reduce(torch.ones(2 + index), async_op=True) for index in range(3)]
    if rank == 0:
        time.sleep(0.05)
        works[0].wait()
    distributed.all_reduce(torch.ones(9))
    for work in works[::-1]:
        work.wait()


def barriers_of_two_names(rank: int, num_ranks: int) -> None:
    del num_ranks
    PartialState(cpu=True).wait_for_everyone() if rank else distributed.barrier()


def groups_of_some(rank: int, num_ranks: int) -> None:
    del num_ranks
    alone, pair = distributed.new_group([0]), distributed.new_group([0, 1])
    if rank == 0:
        for _ in range(3):
            distributed.all_reduce(torch.ones(2), group=alone)
    if rank < 2:
        distributed.all_reduce(torch.ones(5), group=pair)
        distributed.broadcast(torch.ones(5), src=0, group=pair)


def barriers(rank: int, num_ranks: int) -> None:
    del rank, num_ranks
    distributed.barrier()
    distributed.barrier(group=distributed.group.WORLD)
    distributed.monitored_barrier()


def objects(rank: int, num_ranks: int) -> None:
    distributed.all_gather_object([None] * num_ranks, {"rank": rank, "text": "a" * rank})
    distributed.gather_object([rank] * rank, [None] * num_ranks if rank == 0 else None)
    distributed.broadcast_object_list([rank, rank], src=0)
    distributed.scatter_object_list([None], [1] * num_ranks if rank == 0 else [None], src=0)


def other_shapes_of_as_many(rank: int, num_ranks: int) -> None:
    del num_ranks
    distributed.broadcast(torch.ones(2, 3) if rank else torch.ones(6), src=0)
    distributed.all_reduce(torch.ones(3, 2).t() if rank else torch.ones(6), op=distributed.ReduceOp.SUM)


def by_either_name(rank: int, num_ranks: int) -> None:
    """torch 2.13 has two names for one operation."""
    names = ("all_gather_into_tensor", "all_gather_single" if hasattr(distributed, "all_gather_single") else "")
    gather = getattr(distributed, names[rank % 2] or names[0])
    gather(torch.empty(num_ranks), torch.ones(1))
    distributed.broadcast(torch.ones(1), 0) if rank else distributed.broadcast(torch.ones(1), group_src=0)


def from_one_to_another(rank: int, num_ranks: int) -> None:
    del num_ranks
    if rank == 0:
        distributed.send(torch.ones(2), 1)
    elif rank == 1:
        distributed.recv(torch.empty(2), 0)


def a_thread_with_a_group_of_its_own(rank: int, num_ranks: int) -> None:
    del rank
    group = distributed.new_group(list(range(num_ranks)))

    def work() -> None:
        for _ in range(50):
            distributed.all_reduce(torch.ones(3), group=group)

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(5):
        distributed.all_reduce(torch.ones(5))
    thread.join()


def wrong_arguments_of_one(rank: int, num_ranks: int) -> None:
    """A call that torch refuses is no call."""
    del num_ranks
    if rank == 1:
        calls: list[Callable[..., object]] = [distributed.all_reduce, distributed.broadcast]
        for call, arguments in zip(calls, [(), ("text", 0)], strict=True):
            with contextlib.suppress(TypeError):
                call(*arguments)
    distributed.barrier()


def a_root_in_a_hurry(rank: int, num_ranks: int) -> None:
    """Rank 1 comes to the gather only after a message that its other peers send when they have left it."""
    tensor = torch.ones(1)
    if rank != 1 or num_ranks == 2:
        distributed.gather(tensor, [torch.empty(1) for _ in range(num_ranks)] if rank == 0 else None, dst=0)
    if num_ranks == 2:
        return
    if rank == 2:
        distributed.send(tensor, 1)
    if rank == 1:
        distributed.recv(tensor, 2)
        distributed.gather(tensor, None, dst=0)


def train(model: DistributedDataParallel, num_steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(num_steps):
        model(torch.ones(8, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def averaged_gradients(rank: int, num_ranks: int) -> None:
    del rank, num_ranks
    train(DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))), 3)


def hooks_with_callbacks(rank: int, num_ranks: int) -> None:
    """Their callbacks run at once, in the function's thread, where the operation is over already; else in torch's."""
    del num_ranks

    def hook(state: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:  # noqa: ANN401  in no list of torch's
        del state
        buffer: torch.Tensor = bucket.buffer()
        first = distributed.all_reduce(torch.ones(2), async_op=True).get_future()
        if rank == 0:
            time.sleep(0.05)

        def second(_: object) -> torch.Tensor:
            distributed.all_reduce(buffer, async_op=True).get_future().wait()
            return buffer

        return first.then(second)  # type: ignore[no-any-return]

    hook.__annotations__.clear()  # torch compares them with its classes, not with their names
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model.register_comm_hook(None, hook)
    train(model, 3)
    distributed.all_reduce(torch.ones(3))


def uneven_inputs(rank: int, num_ranks: int) -> None:
    del num_ranks
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    with Join([model]):
        train(model, 2 + rank)


def spread_parameters(rank: int, num_ranks: int) -> None:
    from torch.distributed.fsdp import fully_shard

    del rank, num_ranks
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7):
        return  # it could not do so on CPUs yet
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    train(model, 2)  # type: ignore[arg-type]  # it is called like the other


def compiled(rank: int, num_ranks: int) -> None:
    """The compiler takes an operation over, leaves functions with others in pieces, and keeps out of ours."""

    @torch.compile(backend="eager")
    def traced(value: torch.Tensor) -> torch.Tensor:
        doubled = value * 2
        distributed.all_reduce(doubled)
        return doubled + 1

    @torch.compile(backend="eager")
    def in_pieces(value: torch.Tensor) -> torch.Tensor:
        doubled = value * 2
        distributed.barrier()
        distributed.all_gather_object([None] * num_ranks, rank)
        return doubled + 1

    for _ in range(3):
        assert traced(torch.ones(1)).item() == 2 * num_ranks + 1
        in_pieces(torch.ones(1))


PROGRAMS: dict[str, tuple[Callable[[int, int], None], int | None]] = {
    "lists on the root alone": (rank_dependent_lists, 2),
    "uneven splits": (uneven_splits, 1),
    "asynchronous": (asynchronous, 4),
    "barriers of two names": (barriers_of_two_names, 1),
    "groups of some": (groups_of_some, 0),
    "barriers": (barriers, 3),
    "objects": (objects, 4),
    "other shapes of as many": (other_shapes_of_as_many, 2),
    "by either name": (by_either_name, 2),
    "from one to another": (from_one_to_another, 0),
    "a thread with a group of its own": (a_thread_with_a_group_of_its_own, 5),
    "wrong arguments of one": (wrong_arguments_of_one, 1),
    "a root in a hurry": (a_root_in_a_hurry, 1),
    "averaged gradients": (averaged_gradients, 0),
    "hooks with callbacks": (hooks_with_callbacks, 1),
    "uneven inputs": (uneven_inputs, None),
    "spread parameters": (spread_parameters, None),
    "compiled": (compiled, None),
}
"""Function, and the number of its calls that are noted on every rank; None: as many as torch makes, alike on all."""
