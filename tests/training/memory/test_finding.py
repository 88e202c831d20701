"""The search for a batch size that fits, in one process."""

from __future__ import annotations

import functools
import gc
import random
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from accel_nb import Accelerator, NoExecutableBatchSize, find_executable_batch_size, release_memory, set_seed
from accel_nb.protocol import sink
from accel_nb.protocol.events import BatchSizeBegun, BatchSizeTried, RunEvent

pytestmark = pytest.mark.faults


def run_out() -> NoReturn:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.10 GiB.\nmore lines")


class Sizes(list[int]):
    """Batch sizes that a function was called with; it runs out of memory above `limit`."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __call__(self, batch_size: int) -> int:
        self.append(batch_size)
        if batch_size > self.limit:
            run_out()
        return batch_size


@pytest.fixture
def events() -> Iterator[list[RunEvent]]:
    emitted: list[RunEvent] = []
    sink.deliver_to(emitted.append)
    yield emitted
    sink.deliver_to(None)


@pytest.fixture(autouse=True)
def _quiet(events: list[RunEvent]) -> None:
    """As in a launch: tries are events, not lines."""


def less_by_ten(first: int) -> Callable[[], int]:
    sizes = iter(range(first - 10, -1, -10))
    return lambda: next(sizes)


def _called(sizes: Sizes) -> Callable[[], int]:
    return find_executable_batch_size(sizes, 128)


def _bare_decorator(sizes: Sizes) -> Callable[[], int]:
    @find_executable_batch_size
    def train(batch_size: int) -> int:
        return sizes(batch_size)

    return train


def _decorator_with_arguments(sizes: Sizes) -> Callable[[], int]:
    @find_executable_batch_size(starting_batch_size=128)
    def train(batch_size: int) -> int:
        return sizes(batch_size)

    return train


@pytest.mark.parametrize("form", [_called, _bare_decorator, _decorator_with_arguments])
def test_m02_all_forms_try_the_same_sizes(form: Callable[[Sizes], Callable[[], int]]) -> None:
    sizes = Sizes(9)

    assert form(sizes)() == 9
    assert sizes == [128, 115, 103, 92, 82, 73, 65, 58, 52, 46, 41, 36, 32, 28, 25, 22, 19, 17, 15, 13, 11, 9]


def test_m02_a_decorator_keeps_its_own_reduction() -> None:
    called, decorated = Sizes(25), Sizes(25)

    @find_executable_batch_size(starting_batch_size=50, reduce_batch_size_fn=less_by_ten(50))
    def train(batch_size: int) -> int:
        return decorated(batch_size)

    assert find_executable_batch_size(called, 50, less_by_ten(50))() == train() == 20
    assert called == decorated == [50, 40, 30, 20]


def test_arguments_are_passed_and_the_value_comes_back() -> None:
    @find_executable_batch_size(starting_batch_size=4)
    def train(batch_size: int, model: str, *, epochs: int = 1) -> tuple[int, str, int]:
        if batch_size > 2:
            run_out()
        return batch_size, model, epochs

    assert train("a model", epochs=3) == (2, "a model", 3)
    assert train.__name__ == "train"


def test_a_later_call_begins_where_the_last_one_ended() -> None:
    sizes = Sizes(8)
    train = find_executable_batch_size(sizes, 32, reduction="halve")
    train()

    train()

    assert sizes == [32, 16, 8, 8]


def test_any_other_error_is_raised_at_once() -> None:
    tries = []

    @find_executable_batch_size
    def train(batch_size: int) -> None:
        tries.append(batch_size)
        raise ValueError("oops")

    with pytest.raises(ValueError, match="oops"):
        train()
    assert tries == [128]


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (((128, "hello", "world"), {}), r"`train\(first='hello', second='world'\)`"),
        ((("hello", "world"), {"batch_size": 3}), r"`train\(first='hello', second='world'\)`"),
    ],
)
def test_a_batch_size_in_the_call_is_refused(arguments: tuple[tuple[Any, ...], dict[str, Any]], instead: str) -> None:
    @find_executable_batch_size
    def train(batch_size: int, first: str, second: str) -> None: ...

    args, kwargs = arguments
    with pytest.raises(TypeError, match=f"^Batch size was passed into `train` when it was called.*{instead}"):
        train(*args, **kwargs)


def test_a_function_without_room_for_a_batch_size_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^<lambda> must take the batch size as its first argument\.$"):
        find_executable_batch_size(lambda: None)()


def test_a_method_is_refused_with_what_to_write_instead() -> None:
    class Trainer:
        def train(self, batch_size: int) -> int:
            return batch_size

        def search(self) -> int:
            size: int = find_executable_batch_size(self.train, 8)()
            return size

    with pytest.raises(
        TypeError, match=r"^train takes `self` first, .* call find_executable_batch_size\(self\.train, "
    ):
        find_executable_batch_size(Trainer.train)
    assert Trainer().search() == 8


def _generator(batch_size: int) -> Iterator[int]:
    yield batch_size


async def _coroutine(batch_size: int) -> int:
    return batch_size


@pytest.mark.parametrize(("function", "what"), [(_generator, "a generator"), (_coroutine, "a coroutine")])
def test_what_computes_only_later_is_refused(function: Callable[..., Any], what: str) -> None:
    with pytest.raises(TypeError, match=rf"gives {what}, which computes only after .* has returned: nothing could be"):
        find_executable_batch_size(function)


@pytest.mark.parametrize("argument", ["starting_batch_size", "minimum_batch_size"])
def test_a_size_must_be_a_whole_number(argument: str) -> None:
    with pytest.raises(TypeError, match=rf"^{argument}='64' must be a whole number\.$"):
        find_executable_batch_size(**{argument: "64"})  # type: ignore[call-overload]


def test_sizes_may_be_numpys() -> None:
    train = Limited(4)

    assert find_executable_batch_size(train, np.int64(8), lambda: np.int64(4))() == 4  # type: ignore[call-overload]
    assert [type(size) for size in train.sizes] == [int, int]


def test_a_function_written_in_c_is_called() -> None:
    assert find_executable_batch_size(range, 2)() == range(2)  # it says nothing of its arguments


def test_m03_a_start_below_the_floor_is_told_as_that() -> None:
    text = r"^No executable batch size found: Limited was to start with 4, which is below minimum_batch_size=8\.$"

    with pytest.raises(NoExecutableBatchSize, match=text):
        find_executable_batch_size(Limited(1), 4, minimum_batch_size=8)()


def test_a_function_of_any_number_of_arguments_is_called() -> None:
    assert find_executable_batch_size(lambda *args: args, 2)("a", "b") == (2, "a", "b")


def test_m04_the_end_of_the_search_says_what_was_tried_and_the_last_error() -> None:
    @find_executable_batch_size(starting_batch_size=4)
    def train(batch_size: int) -> None:
        raise MemoryError(f"no room for {batch_size}")

    with pytest.raises(NoExecutableBatchSize) as caught:
        train()

    what = (
        "No executable batch size found, reached zero. train ran out of memory with 4, 3, 2, 1; the last error was: "
        "no room for 1 (this process held "
    )
    assert str(caught.value).startswith(what)
    assert re.search(r"held \d+\.\d\d GiB of host memory, .* GiB were free\)$", str(caught.value))
    assert isinstance(caught.value, RuntimeError), "as upstream's users catch it"


def test_a_start_at_zero_is_refused() -> None:
    with pytest.raises(NoExecutableBatchSize, match=r"reached zero: .* was to start with 0\.$"):
        find_executable_batch_size(Sizes(1), 0)()


def test_m03_a_reduction_that_stalls_ends_the_search() -> None:
    sizes = Sizes(1)

    with pytest.raises(NoExecutableBatchSize, match=r"gave 7 after 7, which is not smaller\. .* with 8, 7; the last"):
        find_executable_batch_size(sizes, 8, lambda: 7)()
    assert sizes == [8, 7]


def test_m03_each_try_is_an_event(events: list[RunEvent]) -> None:
    def train(batch_size: int) -> None:
        if batch_size > 1:
            run_out()

    find_executable_batch_size(train, 2)()

    begun, failed, begun_again, found = events
    assert begun == BatchSizeBegun(function="train", batch_size=2)
    assert begun_again == BatchSizeBegun(function="train", batch_size=1)
    assert isinstance(failed, BatchSizeTried)
    assert isinstance(found, BatchSizeTried)
    assert (failed.function, failed.batch_size, failed.fits, failed.next_batch_size) == ("train", 2, False, 1)
    assert failed.reason == "CUDA out of memory. Tried to allocate 2.10 GiB."
    assert failed.duration_s >= 0
    assert (found.batch_size, found.fits, found.next_batch_size, found.reason) == (1, True, None, "")


def test_m03_the_last_try_has_no_next_size(events: list[RunEvent]) -> None:
    with pytest.raises(NoExecutableBatchSize):
        find_executable_batch_size(Sizes(0), 1)()

    assert [event.next_batch_size for event in events if isinstance(event, BatchSizeTried)] == [None]


def test_m03_without_a_launch_failed_tries_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    sink.deliver_to(None)

    def train(batch_size: int) -> None:
        if batch_size > 1:
            run_out()

    find_executable_batch_size(train, 2)()
    find_executable_batch_size(train, 1)()

    assert capsys.readouterr().out.splitlines() == [
        "train: batch size 2 does not fit, trying again with 1 (CUDA out of memory. Tried to allocate 2.10 GiB.)",
        "train: batch size 1 fits",
    ]


class Model:
    """Something that holds memory."""


def test_m08_what_a_failed_try_made_is_gone_when_the_next_one_begins() -> None:
    made: list[weakref.ref[Model]] = []
    alive_at_start: list[int] = []
    gc.disable()  # what only the collector finds is the search's business
    try:

        @find_executable_batch_size(starting_batch_size=4)
        def train(batch_size: int) -> None:
            alive_at_start.append(sum(ref() is not None for ref in made))
            model, cycle = Model(), Model()
            cycle.itself = cycle  # type: ignore[attr-defined]
            made.extend([weakref.ref(model), weakref.ref(cycle)])
            if batch_size > 1:
                run_out()

        train()
    finally:
        gc.enable()

    assert alive_at_start == [0, 0, 0, 0]


def test_release_memory_gives_as_many_nones_as_it_was_given_objects() -> None:
    held: list[Any] = [Model()]
    gone = weakref.ref(held[0])

    held[0], other = release_memory(held[0], 3)

    assert (held[0], other, gone()) == (None, None, None)
    assert release_memory() == []


def test_m08_what_the_user_has_kept_of_the_error_holds_nothing() -> None:
    kept: list[Exception] = []
    made: list[weakref.ref[Model]] = []
    alive_at_start: list[int] = []

    @find_executable_batch_size(starting_batch_size=2)
    def train(batch_size: int) -> None:
        alive_at_start.append(sum(ref() is not None for ref in made))
        model = Model()
        made.append(weakref.ref(model))
        try:
            run_out() if batch_size > 1 else None
        except torch.OutOfMemoryError as error:
            kept.append(error)
            raise RuntimeError("CUDA out of memory. Again") from error

    train()

    assert alive_at_start == [0, 0]


def test_m08_an_accelerator_from_outside_lets_go_of_what_the_failed_try_prepared() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=3)
    before = accelerator.prepare(torch.nn.Linear(2, 2))
    made: list[weakref.ref[torch.nn.Module]] = []
    alive_at_start: list[int] = []

    @find_executable_batch_size(starting_batch_size=2)
    def train(batch_size: int) -> None:
        alive_at_start.append(sum(ref() is not None for ref in made))
        model = torch.nn.Linear(1, 1)
        made.append(weakref.ref(model))
        prepared = accelerator.prepare(model)
        with accelerator.accumulate(prepared):
            assert not accelerator.sync_gradients
        if batch_size > 1:
            run_out()

    train()

    assert alive_at_start == [0, 0]
    assert any(model is before for model in accelerator.prepared_lists[0])


class Limited:
    """Runs out of memory above `limit`; gives the size."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.sizes: list[int] = []

    def __call__(self, batch_size: int) -> int:
        self.sizes.append(batch_size)
        if batch_size > self.limit:
            run_out()
        return batch_size


def test_m01_bisection_goes_up_again_and_gives_the_value_of_the_largest(events: list[RunEvent]) -> None:
    train = Limited(98)

    assert find_executable_batch_size(train, 128, reduction="bisect", name="search")() == 96
    assert train.sizes == [128, 64, 96, 112, 104, 100]
    sentences = [event.sentence for event in events if isinstance(event, BatchSizeTried)]
    assert sentences[1] == "search: batch size 64 fits, trying 96"


def test_m01_a_reduction_is_given_the_size_that_failed() -> None:
    train = Limited(100)

    assert find_executable_batch_size(train, 128, reduction=lambda failed: failed - 10)() == 98
    assert train.sizes == [128, 118, 108, 98]


def test_two_reductions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"takes reduction= or reduce_batch_size_fn=, not both\.$"):
        find_executable_batch_size(reduction="halve", reduce_batch_size_fn=lambda: 1)


def test_a_reduction_must_give_a_number() -> None:
    with pytest.raises(TypeError, match=r"^reduce_batch_size_fn must return the next .*; it returned None\.$"):
        find_executable_batch_size(Limited(1), 8, lambda: None)()  # type: ignore[arg-type, return-value]


def test_m03_there_is_a_floor() -> None:
    train = Limited(1)

    with pytest.raises(NoExecutableBatchSize, match=r"reached minimum_batch_size=8\. .* with 64, 32, 16, 8; the last"):
        find_executable_batch_size(train, 64, reduction="halve", minimum_batch_size=8, name="my search")()


def test_m03_the_floor_itself_is_tried() -> None:
    train = Limited(8)

    assert find_executable_batch_size(train, 10, reduction="halve", minimum_batch_size=8)() == 8
    assert train.sizes == [10, 8]


def test_a_floor_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^minimum_batch_size=0 must be 1 or more\.$"):
        find_executable_batch_size(minimum_batch_size=0)


def test_a_search_may_have_a_name(events: list[RunEvent]) -> None:
    find_executable_batch_size(Limited(1), 1, name="evaluation")()

    assert [event.function for event in events if isinstance(event, BatchSizeTried)] == ["evaluation"]


@pytest.mark.parametrize("function", [functools.partial(functools.partial(Limited(2))), Limited(2)])
def test_a_search_without_a_function_name_is_named_alike_on_all_ranks(
    function: Callable[..., int], events: list[RunEvent]
) -> None:
    find_executable_batch_size(function, 2)()

    assert [event.function for event in events if isinstance(event, BatchSizeTried)] == ["Limited"]


def effective_batches(accelerator_outside: bool) -> list[tuple[int, int]]:
    outside = Accelerator(gradient_accumulation_steps=2) if accelerator_outside else None
    tried = []

    @find_executable_batch_size(starting_batch_size=64, reduction="halve", keep_effective_batch=True)
    def train(batch_size: int) -> None:
        accelerator = outside or Accelerator(gradient_accumulation_steps=2)
        tried.append((batch_size, accelerator.gradient_accumulation_steps))
        if batch_size > 16:
            run_out()

    train()
    return tried


@pytest.mark.parametrize("accelerator_outside", [True, False])
def test_m07_the_effective_batch_is_kept(accelerator_outside: bool, capsys: pytest.CaptureFixture[str]) -> None:
    sink.deliver_to(None)

    assert effective_batches(accelerator_outside) == [(64, 2), (32, 4), (16, 8)]
    assert capsys.readouterr().out.splitlines()[-1] == "train: batch size 16 fits with 4 times the accumulation steps"
    assert Accelerator(gradient_accumulation_steps=2).gradient_accumulation_steps == 2, "only within the search"


@pytest.mark.parametrize("accelerator_outside", [True, False])
def test_m07_later_calls_multiply_what_was_asked_for(*, accelerator_outside: bool) -> None:
    kept = [Accelerator(gradient_accumulation_steps=2)] if accelerator_outside else []
    steps = []

    @find_executable_batch_size(starting_batch_size=64, reduction="halve", keep_effective_batch=True)
    def train(batch_size: int) -> None:
        if not kept and batch_size == 16:
            kept.append(Accelerator(gradient_accumulation_steps=2))
        if batch_size > 16:
            run_out()
        steps.append(kept[0].gradient_accumulation_steps)

    train()
    train()
    kept[0].gradient_accumulation_steps = 3
    train()

    assert steps == [8, 8, 12]


def test_m07_a_search_that_does_not_keep_it_leaves_the_steps_of_one_that_did() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    find_executable_batch_size(Limited(16), 64, reduction="halve", keep_effective_batch=True)()

    find_executable_batch_size(Limited(8), 64, reduction="halve")()

    assert accelerator.gradient_accumulation_steps == 8


def test_m07_a_search_within_a_try_leaves_its_steps() -> None:
    steps = []

    @find_executable_batch_size(starting_batch_size=64, reduction="halve", keep_effective_batch=True)
    def train(batch_size: int) -> None:
        if batch_size > 16:
            run_out()
        find_executable_batch_size(lambda _: steps.append(Accelerator().gradient_accumulation_steps), 4)()

    train()

    assert steps == [4]


def test_m07_steps_are_rounded_to_the_nearest() -> None:
    steps = []

    @find_executable_batch_size(starting_batch_size=128, keep_effective_batch=True)
    def train(batch_size: int) -> None:
        steps.append((batch_size, Accelerator().gradient_accumulation_steps))
        if batch_size > 65:
            run_out()

    train()

    assert steps == [(128, 1), (115, 1), (103, 1), (92, 1), (82, 2), (73, 2), (65, 2)]


def test_m07_the_steps_are_as_before_when_nothing_fits() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)

    with pytest.raises(NoExecutableBatchSize):
        find_executable_batch_size(Limited(0), 16, reduction="halve", keep_effective_batch=True)()

    assert accelerator.gradient_accumulation_steps == 2


def test_m07_without_it_the_steps_stay() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)

    find_executable_batch_size(Limited(4), 16)()

    assert accelerator.gradient_accumulation_steps == 2


def test_m11_a_probe_is_called_first_and_counts() -> None:
    calls: list[tuple[str, int]] = []

    def longest_batch(batch_size: int, model: str) -> None:
        calls.append(("probe", batch_size))
        assert model == "a model"
        if batch_size > 8:
            run_out()

    @find_executable_batch_size(starting_batch_size=16, reduction="halve", probe=longest_batch)
    def train(batch_size: int, model: str) -> None:
        assert model == "a model"
        calls.append(("train", batch_size))

    train("a model")

    assert calls == [("probe", 16), ("probe", 8), ("train", 8)]


def test_m04_a_late_failure_is_announced_as_a_start_from_the_beginning(events: list[RunEvent]) -> None:
    @find_executable_batch_size(starting_batch_size=2)
    def train(batch_size: int) -> None:
        accelerator = Accelerator()
        model = torch.nn.Linear(1, 1)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(3):
            accelerator.backward(model(torch.ones(1, 1)).sum())
            optimizer.step()
        if batch_size > 1:
            run_out()

    train()

    first = next(event for event in events if isinstance(event, BatchSizeTried))
    assert first.sentence == (
        "train: batch size 2 ran out of memory after 3 steps, starting it from its beginning with 1 "
        "(CUDA out of memory. Tried to allocate 2.10 GiB.)"
    )


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(()).item()  # noqa: NPY002  the global generators


def test_each_try_begins_with_the_same_random_numbers() -> None:
    def train(batch_size: int) -> tuple[float, float, float]:
        numbers = drawn()
        if batch_size > 2:
            run_out()
        return numbers

    set_seed(3)
    fresh = drawn()
    set_seed(3)

    assert find_executable_batch_size(train, 8, reduction="halve")() == fresh
    assert find_executable_batch_size(train, 2)() != fresh, "a later call goes on"


def test_a_loader_from_before_begins_each_try_with_the_same_pass() -> None:
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(range(4), shuffle=True))  # type: ignore[arg-type]
    passes = []

    @find_executable_batch_size(starting_batch_size=2)
    def train(batch_size: int) -> None:
        passes.append(loader.iteration)
        list(loader)
        if batch_size > 1:
            run_out()

    train()

    assert passes == [0, 0]
    assert loader.iteration == 1
