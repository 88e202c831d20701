"""What the operations of ``torch.distributed`` are given, as far as ranks must give the same. Imports no torch.

Each function here has the parameters of torch's function (torch 2.6 to 2.13). Compared are elements and dtypes where
all ranks need the same; where they may differ by right (the lists of gather and scatter, splits of all_to_all, objects)
only what the operation is and who its root is.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

Objects = list[object]
Waits = Literal["for all", "for some", "by itself"]
"""How long torch's operation blocks: until all ranks have come to it; maybe only until some have, since it goes from or
to a root; as its own arguments say.
"""


class Given(NamedTuple):
    """One call."""

    text: str
    """What is compared."""
    group: object
    """None: the default group."""
    tensor: Tensor | None = None
    """One that says on which device the operation takes place; None: where the group likes it."""
    is_async: bool = False
    timeout: timedelta | None = None
    """None: the group's."""


class Operation(NamedTuple):
    name: str
    """How it is called in the ledger, whichever of its names was used."""
    given: Callable[..., Given]
    """Raises TypeError or AttributeError for arguments that torch will refuse, too."""
    waits: Waits = "for all"


def _elements(tensor: Tensor) -> str:
    return f"{tensor.numel()} {str(tensor.dtype).removeprefix('torch.')}"


def _reduction(op: object) -> str:
    """``sum`` for ReduceOp.SUM, whichever of torch's two classes it is of; None is torch's default."""
    kind = getattr(op, "op", op)
    return "sum" if kind is None else str(getattr(kind, "name", kind)).rpartition(".")[2].lower()


def _root(rank: int | None, rank_in_group: int | None) -> int:
    return next((one for one in (rank, rank_in_group) if one is not None), 0)


def _all_reduce(tensor: Tensor, op: object = None, group: object = None, async_op: bool = False) -> Given:
    return Given(f"{_elements(tensor)}, {_reduction(op)}", group, tensor, async_op)


def _broadcast(
    tensor: Tensor, src: int | None = None, group: object = None, async_op: bool = False, group_src: int | None = None
) -> Given:
    return Given(f"{_elements(tensor)}, src={_root(src, group_src)}", group, tensor, async_op)


def _reduce(
    tensor: Tensor, dst: int | None = None, op: object = None, group: object = None, async_op: bool = False,
    group_dst: int | None = None,
) -> Given:  # fmt: skip
    given = f"{_elements(tensor)}, dst={_root(dst, group_dst)}, {_reduction(op)}"
    return Given(given, group, tensor, async_op)


def _all_gather(tensor_list: list[Tensor], tensor: Tensor, group: object = None, async_op: bool = False) -> Given:
    del tensor_list
    # NCCL takes tensors of unequal length.
    return Given(_elements(tensor) if tensor.device.type == "cpu" else "", group, tensor, async_op)


def _all_gather_single(
    output_tensor: Tensor, input_tensor: Tensor, group: object = None, async_op: bool = False
) -> Given:  # fmt: skip
    del output_tensor
    return Given(_elements(input_tensor), group, input_tensor, async_op)


def _reduce_scatter_single(
    output: Tensor, input: Tensor, op: object = None, group: object = None, async_op: bool = False  # noqa: A002  torch's
) -> Given:  # fmt: skip
    del output
    return Given(f"{_elements(input)}, {_reduction(op)}", group, input, async_op)


def _reduce_scatter(
    output: Tensor, input_list: list[Tensor], op: object = None, group: object = None, async_op: bool = False
) -> Given:
    del input_list
    return Given(_reduction(op), group, output, async_op)


def _gather(
    tensor: Tensor, gather_list: list[Tensor] | None = None, dst: int | None = None, group: object = None,
    async_op: bool = False, group_dst: int | None = None,
) -> Given:  # fmt: skip
    del gather_list
    return Given(f"dst={_root(dst, group_dst)}", group, tensor, async_op)


def _scatter(
    tensor: Tensor, scatter_list: list[Tensor] | None = None, src: int | None = None, group: object = None,
    async_op: bool = False, group_src: int | None = None,
) -> Given:  # fmt: skip
    del scatter_list
    return Given(f"src={_root(src, group_src)}", group, tensor, async_op)


def _all_to_all(
    output_tensor_list: list[Tensor], input_tensor_list: list[Tensor], group: object = None, async_op: bool = False
) -> Given:
    del output_tensor_list
    return Given("", group, input_tensor_list[0], async_op)


def _all_to_all_single(
    output: Tensor, input: Tensor, output_split_sizes: list[int] | None = None,  # noqa: A002  torch's name
    input_split_sizes: list[int] | None = None, group: object = None, async_op: bool = False,
) -> Given:  # fmt: skip
    del output, output_split_sizes, input_split_sizes
    return Given("", group, input, async_op)


def _coalesced(tensors: list[Tensor], op: object = None, group: object = None, async_op: bool = False) -> Given:
    return Given(_reduction(op), group, tensors[0], async_op)


def _barrier(group: object = None, async_op: bool = False, device_ids: object = None, timeout: object = None) -> Given:
    del device_ids
    return Given("", group, None, async_op, timeout if isinstance(timeout, timedelta) else None)


def _monitored_barrier(group: object = None, timeout: object = None, wait_all_ranks: bool = False) -> Given:
    del timeout, wait_all_ranks
    return Given("", group)


def _all_gather_object(object_list: Objects, obj: object, group: object = None) -> Given:
    del object_list, obj
    return Given("", group)


def _gather_object(
    obj: object, object_gather_list: Objects | None = None, dst: int | None = None, group: object = None,
    group_dst: int | None = None,
) -> Given:  # fmt: skip
    del obj, object_gather_list
    return Given(f"dst={_root(dst, group_dst)}", group)


def _broadcast_object_list(
    object_list: Objects, src: int | None = None, group: object = None, device: object = None,
    group_src: int | None = None,
) -> Given:  # fmt: skip
    del object_list, device
    return Given(f"src={_root(src, group_src)}", group)


def _scatter_object_list(
    scatter_object_output_list: Objects, scatter_object_input_list: Objects | None = None, src: int | None = None,
    group: object = None, group_src: int | None = None,
) -> Given:  # fmt: skip
    del scatter_object_output_list, scatter_object_input_list
    return Given(f"src={_root(src, group_src)}", group)


_HOME = "torch.distributed."

OPERATIONS = {
    "all_reduce": Operation(f"{_HOME}all_reduce", _all_reduce),
    "all_reduce_coalesced": Operation(f"{_HOME}all_reduce_coalesced", _coalesced),
    "broadcast": Operation(f"{_HOME}broadcast", _broadcast, "for some"),
    "reduce": Operation(f"{_HOME}reduce", _reduce, "for some"),
    "all_gather": Operation(f"{_HOME}all_gather", _all_gather),
    "all_gather_into_tensor": Operation(f"{_HOME}all_gather_into_tensor", _all_gather_single),
    "all_gather_single": Operation(f"{_HOME}all_gather_into_tensor", _all_gather_single),
    "reduce_scatter": Operation(f"{_HOME}reduce_scatter", _reduce_scatter),
    "reduce_scatter_tensor": Operation(f"{_HOME}reduce_scatter_tensor", _reduce_scatter_single),
    "reduce_scatter_single": Operation(f"{_HOME}reduce_scatter_tensor", _reduce_scatter_single),
    "gather": Operation(f"{_HOME}gather", _gather, "for some"),
    "scatter": Operation(f"{_HOME}scatter", _scatter, "for some"),
    "all_to_all": Operation(f"{_HOME}all_to_all", _all_to_all),
    "all_to_all_single": Operation(f"{_HOME}all_to_all_single", _all_to_all_single),
    "barrier": Operation(f"{_HOME}barrier", _barrier),
    "monitored_barrier": Operation(f"{_HOME}monitored_barrier", _monitored_barrier, "by itself"),
    "all_gather_object": Operation(f"{_HOME}all_gather_object", _all_gather_object),
    # It begins with gathering lengths on all ranks.
    "gather_object": Operation(f"{_HOME}gather_object", _gather_object),
    "broadcast_object_list": Operation(f"{_HOME}broadcast_object_list", _broadcast_object_list, "for some"),
    "scatter_object_list": Operation(f"{_HOME}scatter_object_list", _scatter_object_list, "for some"),
}
"""By the function's name in ``torch.distributed.distributed_c10d``; those that a torch does not have are left out."""

ACTIVITIES = {"send": "to", "recv": "from", "send_object_list": "to", "recv_object_list": "from", "new_group": ""}
"""Functions that wait for other ranks, but not for the same call of all: not numbered. Their second argument is a rank;
what it is to them.
"""


def peer_text(relation: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """`` from rank 1``; empty where it is not said, as for any rank."""
    given = args[1] if len(args) > 1 else kwargs.get({"to": "dst", "from": "src"}.get(relation, ""))
    return f" {relation} rank {given}" if relation and isinstance(given, int) else ""
