from __future__ import annotations

import dataclasses
import threading
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch

from accel_nb.errors import TrainingError
from accel_nb.training.data.parcels import LARGE_BYTES, contents_of, pack, unpack


def sent(batch: Any) -> Any:  # noqa: ANN401
    """`batch` as another rank takes it out."""
    parcel = pack(batch)
    contents = contents_of(parcel.description)
    small, large = iter(parcel.small), iter(parcel.large)
    return unpack(parcel.description, contents, [next(large if one.is_large else small).clone() for one in contents])


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.int8, torch.int64, torch.complex64,
     torch.float8_e4m3fn],
)  # fmt: skip
def test_tensors_of_every_dtype_arrive(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(dtype)

    arrived = sent(tensor)

    assert arrived.dtype == dtype
    assert torch.equal(arrived.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(torch.tensor(3.0), id="scalar"),
        pytest.param(torch.empty(0, 4), id="empty"),
        pytest.param(torch.arange(12).reshape(3, 4).t(), id="transposed"),
        pytest.param(torch.arange(12)[::2], id="strided"),
        pytest.param(torch.arange(4).expand(3, 4), id="expanded"),
        pytest.param(torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last), id="channels last"),
        pytest.param(torch.arange(100)[10:20], id="slice"),
        pytest.param(torch.tensor([1 + 2j]).conj(), id="conjugate view"),
        pytest.param(torch.ones(3, requires_grad=True), id="requires grad"),
        pytest.param(torch.eye(3).to_sparse(), id="sparse"),
        pytest.param(torch.nn.Parameter(torch.ones(2)), id="parameter"),
        pytest.param(torch.zeros(LARGE_BYTES), id="large"),
    ],
)
def test_tensors_of_every_form_arrive(tensor: torch.Tensor) -> None:
    arrived = sent({"x": tensor})["x"]

    assert type(arrived) is type(tensor)
    assert arrived.shape == tensor.shape
    assert arrived.requires_grad == tensor.requires_grad
    assert torch.equal(arrived.to_dense(), tensor.to_dense())


def test_the_order_of_dimensions_in_memory_is_kept() -> None:
    images = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)

    assert sent(images).stride() == images.stride()


def test_a_tensor_that_occurs_twice_is_sent_once() -> None:
    tensor = torch.ones(3)

    assert len(pack([tensor, tensor]).small) == 1
    first, second = sent([tensor, tensor])
    assert first is second


def test_tensors_within_objects_are_kept_out_of_the_description() -> None:
    batch = Holder(torch.zeros(10 * LARGE_BYTES))

    parcel = pack(batch)

    assert len(parcel.description) < 1000
    assert parcel.large[0].data_ptr() == batch.tensor.data_ptr()
    assert sent(batch).tensor.shape == batch.tensor.shape


class Holder:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def test_equal_structures_have_equal_descriptions() -> None:
    assert pack({"x": torch.zeros(3)}).description == pack({"x": torch.ones(3)}).description
    assert pack({"x": torch.zeros(3)}).description != pack({"x": torch.zeros(4)}).description


def test_arrays_arrive_and_can_be_written_to() -> None:
    array, read_only = np.arange(5), np.frombuffer(b"abc", dtype=np.uint8)

    arrived, also = sent([array, read_only])
    arrived[0] = 7

    assert arrived.tolist() == [7, 1, 2, 3, 4]
    assert array[0] == 0
    assert also.tolist() == [97, 98, 99]


def test_classes_of_a_cell_travel_by_value() -> None:
    @dataclasses.dataclass
    class Typed:
        x: torch.Tensor
        name: str

    # as in a rank: the class came by value, and is known by that
    typed_class = cloudpickle.loads(cloudpickle.dumps(Typed))

    arrived = sent(typed_class(torch.ones(2), "a"))

    assert type(arrived).__name__ == "Typed"
    assert (arrived.x.tolist(), arrived.name) == ([1.0, 1.0], "a")


def test_d07_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises(TrainingError, match=r"cannot be sent to the other ranks: cannot pickle '_thread.lock' object"):
        pack([threading.Lock()])
