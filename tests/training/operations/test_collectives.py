from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from accel_nb.errors import DistributedOperationException
from accel_nb.training.accelerator import Accelerator
from accel_nb.training.operations.collectives import (
    broadcast,
    broadcast_object_list,
    chained_operation,
    copy_tensor_to_devices,
    gather,
    gather_object,
    pad_across_processes,
    reduce,
)
from accel_nb.training.operations.transport import CannotPadNestedTensorWarning
from accel_nb.training.ranks.state import PartialState

RunRanks = Callable[..., list[Any]]

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64,
]  # fmt: skip
REDUCED_DTYPES = [torch.bool, torch.int16, torch.int64, torch.bfloat16, torch.float32]


def gathered() -> dict[str, Any]:
    rank = PartialState().process_index
    nested = {"a": [torch.full((2, 3), rank)], "b": (torch.tensor(float(rank)), None)}
    transposed = torch.arange(6).reshape(2, 3).t() + 10 * rank
    return {
        **{str(dtype): gather(torch.tensor([[rank, 1]]).to(dtype)) for dtype in DTYPES},
        "nested": gather(nested),
        "transposed": gather(transposed),
        "empty": gather(torch.empty(0, 2)),
        "with_grad": gather(torch.ones(1, requires_grad=True)),
        "objects": gather_object([rank, {"rank": rank}]),
        "unchanged": nested,
    }


def of_a_row_with_a_stride() -> list[torch.Tensor]:
    rank = PartialState().process_index
    column = torch.tensor([[rank + 1.0, 0.0, 0.0]])[:, 0]
    return [gather(column), broadcast(column, 1), reduce(column, "sum")]


def test_a_column_of_a_batch_of_one_row_travels(run_ranks: RunRanks) -> None:
    for gathered_column, from_last, total in run_ranks(of_a_row_with_a_stride, 2):
        assert gathered_column.tolist() == [1.0, 2.0]
        assert from_last.tolist() == [2.0]
        assert total.tolist() == [3.0]


def sum_of_eight_bits() -> tuple[torch.dtype, list[float]]:
    result = reduce(torch.tensor([1.5]).to(torch.float8_e4m3fn), "mean", 2.0)
    return result.dtype, result.float().tolist()


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_k06_floats_of_eight_bits_are_added_up_in_more(run_ranks: RunRanks, num_ranks: int) -> None:
    for result in run_ranks(sum_of_eight_bits, num_ranks):
        assert result == (torch.float8_e4m3fn, [3.0])


def test_k07_gather_joins_every_dtype_and_structure_by_rank(run_ranks: RunRanks) -> None:
    for rank, result in enumerate(run_ranks(gathered, 2)):
        for dtype in DTYPES:
            assert torch.equal(result[str(dtype)], torch.tensor([[0, 1], [1, 1]]).to(dtype)), dtype
        assert result["nested"]["a"][0].tolist() == [[0] * 3, [0] * 3, [1] * 3, [1] * 3]
        assert result["nested"]["b"][0].tolist() == [0.0, 1.0]
        assert result["nested"]["b"][1] is None
        assert result["transposed"].tolist() == [[0, 3], [1, 4], [2, 5], [10, 13], [11, 14], [12, 15]]
        assert result["empty"].shape == (0, 2)
        assert not result["with_grad"].requires_grad
        assert result["objects"] == [0, {"rank": 0}, 1, {"rank": 1}]
        assert result["unchanged"]["b"][0].tolist() == float(rank)


def test_one_process_gives_the_same_shapes() -> None:
    PartialState(cpu=True)

    result = gathered()

    assert result["nested"]["b"][0].shape == (1,)
    assert result["transposed"].shape == (3, 2)
    assert result["objects"] == [0, {"rank": 0}]
    assert not result["with_grad"].requires_grad


def broadcasted() -> tuple[Any, ...]:
    rank = PartialState().process_index
    own = {"x": torch.tensor([rank], dtype=torch.int16), "y": [torch.tensor(rank == 1)]}
    items: list[object] = [rank, None]
    same = broadcast_object_list(items, from_process=1)
    return broadcast(own, from_process=1), own, items, same is items


def test_broadcast_gives_every_rank_the_source_and_changes_no_tensor(run_ranks: RunRanks) -> None:
    for rank, (received, own, items, same) in enumerate(run_ranks(broadcasted, 2)):
        assert received == {"x": torch.tensor([1], dtype=torch.int16), "y": [torch.tensor(True)]}
        assert own["x"].tolist() == [rank]
        assert items == [1, None]
        assert same


def reduced() -> list[Any]:
    rank = PartialState().process_index
    results: list[Any] = []
    for dtype in REDUCED_DTYPES:
        for own in (torch.tensor([rank, 1, 2]).to(dtype), torch.tensor(rank + 1).to(dtype)):
            before = own.clone()
            results += [(dtype, name, own.shape, reduce([own], name)[0]) for name in ("sum", "mean", "max", "min")]
            assert torch.equal(own, before)
    return results


def expected_reduction(dtype: torch.dtype, name: str, rows: list[torch.Tensor]) -> torch.Tensor:
    stacked = torch.stack([row.to(dtype) for row in rows]).to(torch.float64)
    combined = {"sum": stacked.sum(0), "mean": stacked.mean(0), "max": stacked.amax(0), "min": stacked.amin(0)}[name]
    if name == "mean" and not dtype.is_floating_point:
        return combined.to(torch.float32)
    return combined.to(torch.int64 if name == "sum" and dtype == torch.bool else dtype)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_k06_reduce_equals_the_reference_on_every_rank(run_ranks: RunRanks, num_ranks: int) -> None:
    for results in run_ranks(reduced, num_ranks):
        for dtype, name, shape, result in results:
            vectors = [torch.tensor([rank, 1, 2]) for rank in range(num_ranks)]
            scalars = [torch.tensor(rank + 1) for rank in range(num_ranks)]
            expected = expected_reduction(dtype, name, vectors if len(shape) else scalars)
            assert result.shape == shape
            assert result.dtype == expected.dtype, (dtype, name)
            assert torch.equal(result, expected), (dtype, name)


def test_reduce_scales() -> None:
    Accelerator(cpu=True)

    assert reduce(torch.tensor([2.0]), "sum", scale=0.5).tolist() == [1.0]
    assert reduce(torch.tensor([3]), "sum", scale=0.5).tolist() == [1.5]
    assert Accelerator().reduce(torch.tensor([2.0])).tolist() == [2.0]


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ValueError, match="reduction='median' is unknown; choose one of 'sum', 'max', 'min', 'mean'"):
        reduce(torch.ones(1), "median")


def test_gather_object_refuses_what_is_no_list() -> None:
    with pytest.raises(TypeError, match=r"got float\. For one value per rank, .*gather_object\(\[value\]\)"):
        gather_object(1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("operation", [gather, broadcast, reduce, pad_across_processes])
def test_k07_values_that_would_stay_each_ranks_own_are_refused(operation: Callable[[Any], Any]) -> None:
    PartialState(cpu=True)

    name = f"{operation.__name__} works on tensors, also nested ones; it was given a str \\('text'\\)"
    with pytest.raises(TypeError, match=name):
        operation({"x": torch.ones(1), "y": ["text"]})


@pytest.mark.parametrize("source", [-1, 1])
def test_a_source_that_is_no_rank_is_refused(source: int) -> None:
    PartialState(cpu=True)

    message = f"from_process={source} is no rank: there are 1, counted from 0"
    with pytest.raises(ValueError, match=message):
        broadcast(torch.ones(1), source)
    with pytest.raises(ValueError, match=message):
        broadcast_object_list([1], source)


def padded(dtypes: list[torch.dtype]) -> list[Any]:
    rank = PartialState().process_index
    results: list[Any] = []
    for dtype in dtypes:
        own = torch.ones(2 + rank, 3 - rank).to(dtype)
        results += [
            pad_across_processes({"x": own})["x"],
            pad_across_processes(own, dim=-1, pad_first=True),
            pad_across_processes(own[: 2 * rank], dim=0, pad_index=1),
        ]
    return results


def test_k09_padding_keeps_the_dtype(run_ranks: RunRanks) -> None:
    dtypes = [dtype for dtype in DTYPES if dtype != torch.complex64]

    first, second = run_ranks(padded, 2, dtypes)

    for index, dtype in enumerate(dtypes):
        at_end, at_beginning, from_nothing = first[3 * index : 3 * index + 3]
        assert {at_end.dtype, at_beginning.dtype, from_nothing.dtype} == {dtype}
        assert at_end.tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]
        assert second[3 * index].tolist() == [[1, 1]] * 3
        assert at_beginning.tolist() == [[1, 1, 1]] * 2
        assert second[3 * index + 1].tolist() == [[0, 1, 1]] * 3
        assert from_nothing.tolist() == [[1, 1, 1]] * 2


def test_padding_leaves_alone_what_needs_none() -> None:
    PartialState(cpu=True)
    tensor = torch.ones(2, 3)
    ragged = torch.nested.nested_tensor([torch.ones(3), torch.ones(1)], layout=torch.jagged)

    assert pad_across_processes(tensor) is tensor
    assert pad_across_processes(tensor, dim=2) is tensor
    assert pad_across_processes(tensor, dim=-3) is tensor
    with pytest.warns(CannotPadNestedTensorWarning, match="its rows have no common length"):
        assert pad_across_processes(ragged) is ragged


def padded_with_different_dimensions() -> str:
    rank = PartialState().process_index
    with pytest.raises(DistributedOperationException) as raised:
        pad_across_processes({"x": torch.ones([2] * (rank + 1))})
    return str(raised.value)


def test_padding_what_has_different_dimensions_is_refused_on_all_ranks_without_checks(run_ranks: RunRanks) -> None:
    for message in run_ranks(padded_with_different_dimensions, 2):
        assert "accel_nb.utils.pad_across_processes needs the same structure" in message
        assert "rank 0: {'x': 1-d float32}\n  rank 1: {'x': 2-d float32}" in message


def copied() -> list[Any]:
    rank = PartialState().process_index
    own = torch.tensor([[1, 2]], dtype=torch.int16) if rank == 1 else None
    with pytest.raises(ValueError, match=r"exactly one rank, but it is given by \[\]"):
        copy_tensor_to_devices()
    return [copy_tensor_to_devices(own)]


def test_a_tensor_of_one_rank_is_copied_to_all(run_ranks: RunRanks) -> None:
    for [tensor] in run_ranks(copied, 2):
        assert torch.equal(tensor, torch.tensor([[1, 2]], dtype=torch.int16))


def test_a_chained_operation_is_named_too() -> None:
    @chained_operation
    def accuracy() -> None:
        raise DistributedOperationException("shapes")

    with pytest.raises(DistributedOperationException, match="shapes") as raised:
        accuracy()

    assert raised.value.__notes__[0].endswith("test_a_chained_operation_is_named_too.<locals>.accuracy.")
