"""The search on several ranks: they agree, also when one runs out of memory while the others wait for it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is public, says the documentation
from torch.nn.parallel import DistributedDataParallel

from accel_nb import Accelerator, NoExecutableBatchSize, PartialState, find_executable_batch_size, set_seed
from accel_nb.errors import AnotherRankFailed, TrainingError
from accel_nb.protocol import environment, sink
from accel_nb.protocol.events import Notice
from accel_nb.training.checkpoints.meeting import LOOK_S
from accel_nb.training.memory import agreement
from accel_nb.training.operations.group_store import read_keys

from .one_rank_out import LIMIT, accelerator_inside, accelerator_outside

pytestmark = pytest.mark.faults

RunRanks = Callable[..., list[Any]]


def run_out(text: str = "CUDA out of memory. Tried to allocate 2.10 GiB.") -> None:
    raise torch.OutOfMemoryError(text)


def rank() -> int:
    started = environment.read_rank()
    assert started is not None
    return started.rank


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("function", [accelerator_outside, accelerator_inside])
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_m05_one_rank_runs_out_while_the_others_wait_for_it(
    run_ranks: RunRanks, function: Callable[..., Any], where: str, num_ranks: int
) -> None:
    results = run_ranks(function, num_ranks, where)

    assert [result["tried"] for result in results] == [[16, LIMIT]] * num_ranks
    assert len({result["total"] for result in results}) == 1
    assert [result["after"] for result in results] == [num_ranks] * num_ranks


@pytest.mark.slow
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("turn", range(20))
def test_m05_twenty_times_in_a_row(run_ranks: RunRanks, where: str, turn: int) -> None:
    function = (accelerator_outside, accelerator_inside)[turn % 2]

    results = run_ranks(function, 2, where, 64)

    assert [result["tried"] for result in results] == [[64, 32, 16, LIMIT]] * 2
    assert len({result["total"] for result in results}) == 1


def all_run_out_alike() -> tuple[list[int], bool]:
    Accelerator()
    group = distributed.group.WORLD
    tried = []

    @find_executable_batch_size(starting_batch_size=8, reduction="halve")
    def train(batch_size: int) -> None:
        distributed.all_reduce(torch.ones(1))
        tried.append(batch_size)
        if batch_size > 2:
            run_out()

    train()
    return tried, group is distributed.group.WORLD


def test_m05_ranks_that_run_out_alike_keep_their_group(run_ranks: RunRanks) -> None:
    assert run_ranks(all_run_out_alike, 2) == [([8, 4, 2], True)] * 2


def one_runs_out_between_collectives() -> tuple[list[int], float]:
    state = PartialState()
    tried = []

    @find_executable_batch_size(starting_batch_size=8, reduction="halve")
    def train(batch_size: int) -> float:
        tried.append(batch_size)
        if state.is_main_process and batch_size > 4:
            run_out()
        return 2.0 * batch_size

    return tried, train()


def test_m05_a_rank_that_fits_waits_for_the_others(run_ranks: RunRanks) -> None:
    assert run_ranks(one_runs_out_between_collectives, 2) == [([8, 4], 8.0)] * 2


def without_any_group() -> list[int]:
    tried = []

    @find_executable_batch_size(starting_batch_size=8, reduction="halve")
    def train(batch_size: int) -> None:
        tried.append(batch_size)
        if rank() == 1 and batch_size > 4:
            run_out()

    train()
    assert not distributed.is_initialized()
    return tried


def test_m05_ranks_agree_without_a_process_group(run_ranks: RunRanks) -> None:
    assert run_ranks(without_any_group, 2) == [[8, 4]] * 2


def makes_its_accelerator_within() -> tuple[list[int], float]:
    """Memory ends on rank 1 before it has made one, while the others wait for it to connect; then on all, after."""
    tried = []

    @find_executable_batch_size(starting_batch_size=16, reduction="halve")
    def train(batch_size: int) -> float:
        tried.append(batch_size)
        if rank() == 1 and batch_size == 16:
            time.sleep(0.5)
            run_out()
        accelerator = Accelerator(cpu=True)
        if batch_size == 8:
            run_out()
        return float(accelerator.reduce(torch.ones(1)))

    return tried, train()


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_m05_memory_runs_out_before_the_ranks_are_connected(run_ranks: RunRanks, num_ranks: int) -> None:
    assert run_ranks(makes_its_accelerator_within, num_ranks) == [([16, 8, 4], float(num_ranks))] * num_ranks


def store_served_by_rank_0() -> tuple[list[int], float]:
    """As with ``env://`` where no agent serves a store: it would end with the first group."""
    host, port = environment.read_rendezvous()
    shared = TCPStore(host, port, is_master=False)
    if rank() == 0:
        own = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        shared.set("port", str(own.port))
    else:
        own = TCPStore("127.0.0.1", int(shared.get("port")), is_master=False)
    distributed.init_process_group("gloo", store=own, rank=rank(), world_size=2)
    del own
    with environment.changed({"TORCHELASTIC_USE_AGENT_STORE": "False"}):
        tried = []

        @find_executable_batch_size(starting_batch_size=16, reduction="halve")
        def train(batch_size: int) -> float:
            tried.append(batch_size)
            if rank() == 1 and batch_size > 4:
                run_out()
            total = torch.ones(1)
            distributed.all_reduce(total)
            return total.item()

        return tried, train()


def test_m05_where_rank_0_serves_the_store(run_ranks: RunRanks) -> None:
    assert run_ranks(store_served_by_rank_0, 2) == [([16, 8, 4], 2.0)] * 2


def store_served_by_rank_0_read_late() -> tuple[list[int], float]:
    with pytest.MonkeyPatch.context() as patch:
        if rank() == 1:

            def read_late(*args: Any) -> list[str]:  # noqa: ANN401  those of the function
                time.sleep(0.5)
                return read_keys(*args)

            patch.setattr(agreement, "read_keys", read_late)
        return store_served_by_rank_0()


def test_m05_rank_0_serves_its_store_until_all_have_read_what_they_need(run_ranks: RunRanks) -> None:
    assert run_ranks(store_served_by_rank_0_read_late, 2) == [([16, 8, 4], 2.0)] * 2


def sizes_differ() -> list[int]:
    tried = []

    @find_executable_batch_size(starting_batch_size=8 - rank(), reduction=lambda failed: failed - 1 - rank())
    def train(batch_size: int) -> None:
        tried.append(batch_size)
        if batch_size > 4:
            run_out()

    train()
    return tried


def test_m05_the_smallest_size_counts_where_ranks_say_different_ones(run_ranks: RunRanks) -> None:
    assert run_ranks(sizes_differ, 2) == [[7, 5, 3]] * 2


def nothing_fits_on_one() -> str:
    Accelerator()

    @find_executable_batch_size(starting_batch_size=2, name="my search")
    def train(batch_size: int) -> None:
        if rank() == 1:
            run_out(f"CUDA out of memory. Tried {batch_size}")
        distributed.all_reduce(torch.ones(1))

    try:
        train()
    except NoExecutableBatchSize as error:
        total = Accelerator().reduce(torch.ones(1))
        assert total.item() == 2, "the group is usable afterwards"
        return str(error)
    return "it fitted"


def test_m04_all_ranks_give_up_with_the_last_real_error(run_ranks: RunRanks) -> None:
    texts = run_ranks(nothing_fits_on_one, 2)

    what = (
        "No executable batch size found, reached zero. my search ran out of memory with 2, 1; the last error on rank 1"
    )
    assert all(text.startswith(f"{what} was: CUDA out of memory. Tried 1 (this process held") for text in texts)


def another_error() -> str:
    Accelerator()

    @find_executable_batch_size
    def train(_batch_size: int) -> None:
        if rank() == 1:
            raise ValueError("boom")

    try:
        train()
    except (ValueError, AnotherRankFailed) as error:
        return f"{type(error).__name__}: {error}"
    return "it fitted"


def test_any_other_error_is_not_waited_out(run_ranks: RunRanks) -> None:
    assert run_ranks(another_error, 2) == [
        "AnotherRankFailed: rank 1 failed in the same try of the batch size: boom",
        "ValueError: boom",
    ]


def waits_in_a_store() -> tuple[list[int], float]:
    """The last rank waits for the first to go first, which runs out of memory."""
    accelerator = Accelerator()
    tried = []

    @find_executable_batch_size(starting_batch_size=8, reduction="halve")
    def train(batch_size: int) -> float:
        tried.append(batch_size)
        with accelerator.main_process_first():
            if accelerator.is_main_process and batch_size > 4:
                time.sleep(1)
                run_out()
        return float(accelerator.reduce(torch.ones(1)))

    return tried, train()


def test_m05_while_another_waits_for_its_turn(run_ranks: RunRanks) -> None:
    assert run_ranks(waits_in_a_store, 2) == [([8, 4], 2.0)] * 2


def checked() -> tuple[list[int], float]:
    PartialState().debug = True
    accelerator = Accelerator()
    tried = []

    @find_executable_batch_size(starting_batch_size=8, reduction="halve")
    def train(batch_size: int) -> float:
        tried.append(batch_size)
        if not accelerator.is_main_process and batch_size > 4:
            run_out()
        accelerator.gather(torch.ones(2))
        return float(accelerator.reduce(torch.ones(1)))

    return tried, train()


def test_m05_while_another_compares_an_operation(run_ranks: RunRanks) -> None:
    assert run_ranks(checked, 2) == [([8, 4], 2.0)] * 2


def keeps_its_models() -> str:
    accelerator = Accelerator()
    kept = []

    @find_executable_batch_size(starting_batch_size=8, reduction="halve")
    def train(batch_size: int) -> str:
        kept.append(accelerator.prepare(torch.nn.Linear(2, 2)))
        if rank() == 1 and batch_size > 4:
            run_out()
        loss = kept[-1](torch.ones(batch_size, 2)).sum()
        accelerator.backward(loss)
        try:
            kept[0](torch.ones(batch_size, 2))
        except TrainingError as error:
            return str(error)
        return "it computes"

    assert all(isinstance(model, DistributedDataParallel) for model in kept)
    text: str = train()
    return text


def test_a_model_kept_from_a_failed_try_holds_up_nobody_and_says_why_it_cannot_compute(run_ranks: RunRanks) -> None:
    text = "this model was prepared before the process group was closed and opened again"

    assert [message[: len(text)] for message in run_ranks(keeps_its_models, 2)] == [text] * 2


def each_for_itself() -> list[int]:
    tried = []

    @find_executable_batch_size(starting_batch_size=8, reduction="halve", together=False)
    def train(batch_size: int) -> None:
        tried.append(batch_size)
        if batch_size > 4:
            run_out()

    if rank() == 1:
        train()
    return tried


def test_a_rank_may_search_for_itself(run_ranks: RunRanks) -> None:
    assert run_ranks(each_for_itself, 2) == [[], [8, 4]]


def saves_in_between() -> tuple[list[int], int]:
    """One rank is at a meeting for a checkpoint when the other runs out, which has begun fewer backwards. In the next
    try that one is the first in `save_state`, while the other is in its backward.
    """

    def be_slow(_: torch.Tensor) -> None:
        """Rank 0's backward ends late, long after gradients have been exchanged."""
        if rank() == 0:
            torch.autograd.Variable._execution_engine.queue_callback(lambda: time.sleep(4 * LOOK_S))

    accelerator = Accelerator(project_dir=tempfile.mkdtemp())
    folder = accelerator.collectives.broadcast_object(tempfile.mkdtemp(), 0)
    tried = []

    @find_executable_batch_size(starting_batch_size=8, reduction="halve")
    def train(batch_size: int) -> int:
        tried.append(batch_size)
        accelerator.free_memory()
        model = accelerator.prepare(torch.nn.Linear(2, 2))
        accelerator.save_state(f"{folder}/{batch_size}/first")
        if rank() == 1 and batch_size > 4:
            run_out()
        output = model(torch.ones(batch_size, 2))
        if batch_size == 4:
            output.register_hook(be_slow)
        accelerator.backward(output.sum())
        accelerator.save_state(f"{folder}/{batch_size}/second")
        return batch_size

    return tried, train()


def test_checkpoints_are_saved_after_a_try_that_ended_in_the_middle(run_ranks: RunRanks) -> None:
    assert run_ranks(saves_in_between, 2) == [([8, 4], 4)] * 2


def takes_turns() -> list[bool]:
    """Whether rank 0 went first, in each try."""
    accelerator = Accelerator()
    folder = accelerator.collectives.broadcast_object(tempfile.mkdtemp(), 0)
    found = []

    @find_executable_batch_size(starting_batch_size=8, reduction="halve")
    def train(batch_size: int) -> None:
        if rank() == 1 and batch_size > 4:
            run_out()
        file = Path(f"{folder}/{batch_size}")
        with accelerator.main_process_first():
            if rank() == 0:
                time.sleep(0.5)
                file.touch()
            found.append(file.exists())

    train()
    return found


def test_who_goes_first_does_so_again_after_a_try_that_another_rank_left_before(run_ranks: RunRanks) -> None:
    assert run_ranks(takes_turns, 2) == [[True, True], [True]]


def twice() -> tuple[list[int], list[int]]:
    Accelerator()
    first: list[int] = []
    second: list[int] = []

    @find_executable_batch_size(starting_batch_size=8, reduction="halve")
    def train(batch_size: int, tried: list[int]) -> None:
        tried.append(batch_size)
        if rank() == 1 and batch_size > 4:
            run_out()
        distributed.all_reduce(torch.ones(1))

    train(first)
    train(second)
    return first, second


def test_a_later_call_begins_with_the_size_of_all_ranks(run_ranks: RunRanks) -> None:
    assert run_ranks(twice, 2) == [([8, 4], [4])] * 2


def within_another(where: str) -> tuple[list[tuple[int, int]], float]:
    """The inner search is called, or not, when the outer one's memory runs out on rank 1."""
    accelerator = Accelerator()
    tried = []

    def run_out_here(batch_size: int) -> None:
        if rank() == 1 and batch_size > 4:
            time.sleep(0.3)
            run_out()

    @find_executable_batch_size(starting_batch_size=8, reduction="halve")
    def outer(batch_size: int) -> float:
        if where == "before":
            run_out_here(batch_size)

        @find_executable_batch_size(starting_batch_size=batch_size, reduction="halve")
        def inner(size: int) -> float:
            tried.append((batch_size, size))
            if rank() == 0 and size > 2:
                run_out()
            return float(accelerator.reduce(torch.ones(1)))

        total: float = inner()
        if where == "after":
            run_out_here(batch_size)
        accelerator.wait_for_everyone()
        return total

    return tried, outer()


def test_m05_a_search_within_a_try_of_another_is_left_with_it(run_ranks: RunRanks) -> None:
    assert run_ranks(within_another, 2, "before") == [([(4, 4), (4, 2)], 2.0)] * 2


def test_m05_memory_runs_out_after_a_search_within_the_try(run_ranks: RunRanks) -> None:
    tried = [(8, 8), (8, 4), (8, 2), (4, 4), (4, 2)]

    assert run_ranks(within_another, 2, "after") == [(tried, 2.0)] * 2


def waits_for_a_checkpoint() -> list[int]:
    """Rank 0 is at a meeting to which rank 1 does not come."""
    import tempfile

    accelerator = Accelerator()
    folder = accelerator.collectives.broadcast_object(tempfile.mkdtemp(), 0)
    tried = []

    @find_executable_batch_size(starting_batch_size=8, reduction="halve")
    def train(batch_size: int) -> None:
        tried.append(batch_size)
        if rank() == 1 and batch_size > 4:
            time.sleep(0.3)
            run_out()
        accelerator.save_state(f"{folder}/{batch_size}")

    train()
    return tried


def test_m05_while_another_waits_for_a_checkpoint(run_ranks: RunRanks) -> None:
    assert run_ranks(waits_for_a_checkpoint, 2) == [[8, 4]] * 2


def torch_chooses_the_backend(backend: str | None) -> tuple[list[int], float]:
    distributed.init_process_group(backend)
    tried = []

    @find_executable_batch_size(starting_batch_size=8, reduction="halve")
    def train(batch_size: int) -> float:
        tried.append(batch_size)
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        if rank() == 1 and batch_size > 4:
            run_out()
        model(torch.ones(batch_size, 2)).sum().backward()
        total = torch.ones(1)
        distributed.all_reduce(total)
        return total.item()

    return tried, train()


@pytest.mark.parametrize("backend", [None, "cpu:gloo"])
def test_m05_a_group_whose_backend_has_no_plain_name(run_ranks: RunRanks, backend: str | None) -> None:
    assert run_ranks(torch_chooses_the_backend, 2, backend) == [([8, 4], 2.0)] * 2


def splits_its_data(start: int) -> list[float]:
    set_seed(3)

    @find_executable_batch_size(starting_batch_size=start, reduction="halve")
    def train(batch_size: int) -> list[float]:
        accelerator = Accelerator()
        drawn = torch.rand(()).item()
        accelerator.prepare(torch.nn.Linear(2, 2))  # from here on ranks draw different numbers
        noise = torch.rand(()).item()
        if rank() == 1 and batch_size > 4:
            run_out()
        accelerator.wait_for_everyone()
        return [drawn, noise]

    numbers: list[float] = train()
    return numbers


def test_each_try_begins_with_the_random_numbers_of_a_fresh_run_on_all_ranks(run_ranks: RunRanks) -> None:
    fresh = run_ranks(splits_its_data, 2, 4)
    (drawn, noise), (drawn_1, noise_1) = fresh

    assert drawn == drawn_1
    assert noise != noise_1
    assert run_ranks(splits_its_data, 2, 8) == fresh


def told_by(search: Callable[[], object]) -> list[str]:
    """The notices of this rank while it searches."""
    notices: list[str] = []
    sink.deliver_to(lambda event: notices.append(event.text) if isinstance(event, Notice) else None)
    search()
    sink.deliver_to(None)
    return notices


def only_one_calls() -> list[str]:
    agreement.TELL_S = 0.3
    if rank() == 1:
        time.sleep(2)
    return told_by(find_executable_batch_size(lambda _: None, name="my search"))


def test_a_rank_that_waits_long_says_for_whom(run_ranks: RunRanks) -> None:
    first, second = run_ranks(only_one_calls, 2)

    (told,) = first
    assert told == (
        "my search has come to a try of find_executable_batch_size on rank 0, which has waited 0.3 s for rank 1. Call "
        "it on every rank, or with together=False where only some do."
    )
    assert second == []


def ends_early() -> list[str]:
    agreement.TELL_S = 0.3
    return told_by(find_executable_batch_size(lambda _: time.sleep(2 * rank()), name="my search"))


def test_a_rank_that_is_done_long_before_the_others_says_what_may_hold_them(run_ranks: RunRanks) -> None:
    first, second = run_ranks(ends_early, 2)

    (told,) = first
    assert told == (
        "my search has ended a try of find_executable_batch_size on rank 0, which has waited 0.3 s for rank 1. If that "
        "rank does not compute for longer, it waits for an operation of all ranks that this one has not called."
    )
    assert second == []


def without_a_store() -> list[str]:
    with environment.changed({"TORCHELASTIC_USE_AGENT_STORE": "False"}):
        return told_by(find_executable_batch_size(lambda _: None, name="my search"))


def test_ranks_without_a_store_say_that_each_searches_alone(run_ranks: RunRanks) -> None:
    text = (
        "my search searches its batch size on each rank alone: the ranks have no store to agree through. Make the "
        "Accelerator before it is called."
    )
    assert run_ranks(without_a_store, 2) == [[text], []]
