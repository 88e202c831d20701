"""What ranks do in the tests of operations that are noted and compared: wrong programs, and odd ones that are legal."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable

NUM_BATCHES = 7


def tried(function: Callable[[], object]) -> tuple[str, str, float]:
    """The error's type and text, empty when there is none, and how long it took in seconds."""
    started = time.monotonic()
    try:
        function()
    except Exception as error:  # noqa: BLE001  it is the answer
        return type(error).__name__, str(error), time.monotonic() - started
    return "", "", time.monotonic() - started


def ours_that_differ() -> dict[str, tuple[str, str, float]]:
    """Rank 1 differs from all others in each."""
    import torch

    from accel_nb import Accelerator, gather

    accelerator = Accelerator()
    odd = accelerator.process_index == 1
    ones = torch.ones
    cases: dict[str, Callable[[], object]] = {
        "dimension 0": lambda: accelerator.gather(ones(2 + odd, 3)),
        "number of dimensions": lambda: accelerator.gather(ones([2] * (1 + odd))),
        "dtype": lambda: accelerator.reduce(ones(2, dtype=torch.float64 if odd else torch.float32)),
        "keys": lambda: accelerator.gather({"b" if odd else "a": ones(1)}),
        "None": lambda: accelerator.gather(None if odd else ones(1)),
        "length of a list": lambda: accelerator.gather([ones(1)] * (2 + odd)),
        "operation": lambda: (accelerator.reduce if odd else accelerator.gather)(ones(2)),
    }
    outcomes = {name: tried(case) for name, case in cases.items()}
    # Nothing was left behind: the ranks go on together.
    assert gather(torch.tensor([accelerator.process_index])).tolist() == list(range(accelerator.num_processes))
    return outcomes


def torchs_that_differ() -> dict[str, tuple[str, str, float]]:
    """Rank 1 differs from all others in each."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    num_ranks, odd = distributed.get_world_size(), distributed.get_rank() == 1
    ones = torch.ones
    wrong_dtype = torch.float64 if odd else torch.float32
    cases: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: distributed.all_reduce(ones(2 + odd)),
        "dtype": lambda: distributed.all_reduce(ones(2, dtype=wrong_dtype)),
        "op": lambda: distributed.all_reduce(
            ones(2), op=distributed.ReduceOp.MAX if odd else distributed.ReduceOp.SUM
        ),
        "broadcast": lambda: distributed.broadcast(ones(2 + odd), src=0),
        "src": lambda: distributed.broadcast(ones(2), int(odd)),
        "reduce": lambda: distributed.reduce(ones(2 + odd), dst=0),
        "all_gather": lambda: distributed.all_gather([ones(2 + odd)] * num_ranks, ones(2 + odd)),
        "gather or reduce": lambda: distributed.reduce(ones(2), 0) if odd else distributed.gather(
            ones(2), [ones(2)] * num_ranks if distributed.get_rank() == 0 else None
        ),
        "barrier or all_reduce": lambda: distributed.all_reduce(ones(2)) if odd else distributed.barrier(),
        "objects": lambda: distributed.broadcast_object_list([1], src=0) if odd else distributed.all_gather_object(
            [None] * num_ranks, 1
        ),
    }  # fmt: skip
    outcomes = {name: tried(case) for name, case in cases.items()}
    total = ones(1)
    distributed.all_reduce(total)
    assert total.item() == num_ranks
    return outcomes


def all_reduce_of_unequal_length() -> float:
    """On GPUs."""
    import torch
    from torch import distributed

    from accel_nb import PartialState

    state = PartialState()
    value = torch.ones(2 + state.process_index, device=state.device)
    distributed.all_reduce(value)
    return value.sum().item()


def in_the_main_process_only(*, ours: bool) -> str:
    import torch
    from torch import distributed

    from accel_nb import Accelerator

    accelerator = Accelerator()
    if accelerator.is_main_process:
        if ours:
            accelerator.gather(torch.ones(1))
        else:
            distributed.barrier()
    return "done"


def uneven_loops() -> str:
    """Rank 1 has one batch less, and gathers after each."""
    import torch

    from accel_nb import Accelerator

    accelerator = Accelerator()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(NUM_BATCHES + 1 - accelerator.process_index):
        loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        optimizer.step()
        accelerator.gather(loss.detach())
    return "done"


def failing_beside_a_gather() -> str:
    import torch

    from accel_nb import Accelerator

    accelerator = Accelerator()
    if accelerator.process_index == 1:
        raise ValueError("the batch is broken")
    accelerator.gather(torch.ones(1))
    return "done"


def asleep_beside(timeout_s: float, *, ours: bool) -> tuple[str, str, float]:
    from datetime import timedelta

    import torch
    from torch import distributed

    from accel_nb import PartialState, gather

    state = PartialState(timeout=timedelta(seconds=timeout_s))
    if state.process_index == 1:
        time.sleep(timeout_s + 3)
        return "", "", 0.0
    return tried(lambda: gather(torch.ones(1)) if ours else distributed.all_reduce(torch.ones(1)))


def late_to_a_patient_barrier() -> str:
    """Its own time-out is longer than the group's."""
    from datetime import timedelta

    from torch import distributed

    distributed.init_process_group("gloo", timeout=timedelta(seconds=1))
    if distributed.get_rank() == 0:
        time.sleep(3)
    distributed.barrier(timeout=timedelta(seconds=30))
    return "met"


def meeting_while_they_end(*, in_a_thread: bool) -> None:
    """The function has returned on rank 1 long before its last operation is over on rank 0."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    rank = distributed.get_rank()

    def meet() -> None:
        time.sleep(0.5 * rank)
        total = torch.ones(1)
        distributed.all_reduce(total)
        print(f"met {total.item():g}", flush=True)

    if in_a_thread:
        threading.Thread(target=meet).start()
    else:
        atexit.register(meet)


def from_two_threads() -> tuple[list[float], int]:
    """What rank 0 calls in the function's thread rank 1 calls in another one, once; the sums, and the calls noted."""
    import torch
    from torch import distributed

    from accel_nb.protocol import ledger

    distributed.init_process_group("gloo")
    own = ledger.own()
    assert own is not None
    before = own.page.number(own.rank)
    totals = [torch.full((size,), float(size)) for size in range(1, 5)]
    if distributed.get_rank() == 1:
        thread = threading.Thread(target=distributed.all_reduce, args=(totals[0],))
        thread.start()
        thread.join()
    for total in totals[distributed.get_rank() :]:
        distributed.all_reduce(total)
    gathered: list[float | None] = [None, None]
    distributed.all_gather_object(gathered, totals[3][0].item())
    assert gathered == [8.0, 8.0]
    return [total[0].item() for total in totals], own.page.number(own.rank) - before


def leaving_without_a_word() -> None:
    """Rank 1 ends by os._exit out of atexit, while rank 0 waits for it."""
    from torch import distributed

    distributed.init_process_group("gloo")
    if distributed.get_rank() == 1:
        atexit.register(os._exit, 0)
        return
    distributed.barrier()


def files_of_warnings() -> list[str]:
    """Where torch's warnings of deprecated names say that they come from."""
    import warnings

    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        distributed.all_reduce_coalesced([torch.ones(1)])
    return [os.path.basename(one.filename) for one in caught if one.category is FutureWarning]  # noqa: PTH119


def leaving_the_group() -> tuple[str, str, list[str]]:
    """Rank 0 closes the group while rank 1 is in an operation; the notes of rank 1's error."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    distributed.all_reduce(torch.ones(1))
    if distributed.get_rank() == 0:
        distributed.destroy_process_group()
        time.sleep(2)
        return "", "", []
    try:
        distributed.all_reduce(torch.ones(1))
    except RuntimeError as error:
        return type(error).__name__, str(error), list(getattr(error, "__notes__", ()))
    return "", "went on", []


def reopened_groups(num_groups: int) -> list[float]:
    """An operation in each of several groups, rank 0 in a hurry."""
    import torch
    from torch import distributed

    sums = []
    for number in range(num_groups):
        distributed.init_process_group("gloo")
        value = torch.tensor([float(number)])
        for _ in range(number):
            distributed.all_reduce(value)
        sums.append(value.item())
        time.sleep(0.02 * distributed.get_rank())
        distributed.destroy_process_group()
    return sums


def half_checked() -> tuple[bool, list[bool], int]:
    """Whether checks are on, whether operations that differ went through unchecked, and how many calls were noted."""
    import torch

    from accel_nb import Accelerator, gather_object, unchecked
    from accel_nb.protocol import ledger

    accelerator = Accelerator()
    own = ledger.own()
    assert own is not None
    before = own.page.number(own.rank)
    with accelerator.unchecked():
        # Both ranks send and receive one object: different operations that happen to fit together.
        first = [accelerator.process_index] if accelerator.process_index else gather_object([0])
        if accelerator.process_index:
            gather_object(first)
    with unchecked():
        accelerator.wait_for_everyone()
    accelerator.state._partial.debug = False
    accelerator.gather(torch.ones(1))
    off = accelerator.state.debug
    accelerator.state._partial.debug = True
    accelerator.gather(torch.ones(1))
    return accelerator.state.debug, [off], own.page.number(own.rank) - before


def what_debug_says() -> tuple[bool, str, str]:
    from accel_nb import PartialState
    from accel_nb.protocol import environment, ledger

    state, own = PartialState(), ledger.own()
    compares = "no ledger" if own is None else str(own.compares)
    return state.debug, compares, environment.current().get("ACCELERATE_DEBUG_MODE", "not set")


def names_of_calls() -> list[tuple[str, str]]:
    """Operation and place of each call that is noted; those of ours are made of several of torch's."""
    import torch
    from torch import distributed

    from accel_nb import Accelerator, broadcast_object_list, gather_object
    from accel_nb.protocol import ledger
    from accel_nb.protocol.places import place_text

    accelerator = Accelerator()
    own = ledger.own()
    assert own is not None
    first = own.page.number(own.rank)
    accelerator.gather({"a": torch.ones(1), "b": torch.ones(2)})
    accelerator.pad_across_processes(torch.ones(1 + accelerator.process_index))
    broadcast_object_list([1])
    gather_object([1])
    distributed.all_gather_object([None, None], 1)
    calls = [own.page.call(own.rank, number) for number in range(first + 1, own.page.number(own.rank) + 1)]
    assert all(call is not None and call.ended_ns for call in calls)
    return [(call.operation, place_text(call.file, call.line)) for call in calls if call is not None]


def notes_of_training() -> tuple[list[str], list[str], int, bool]:
    """What is noted while a batch is read and during a backward; steps; whether waiting for batches was counted."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    from accel_nb import Accelerator
    from accel_nb.protocol import ledger
    from accel_nb.protocol.places import place_text

    own = ledger.own()
    assert own is not None
    reading: list[str] = []
    in_backward: list[str] = []

    def activity() -> str:
        notes = own.page.notes(own.rank)
        return f"{notes.activity} ({place_text(notes.activity_file, notes.activity_line)})"

    class Slow(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> torch.Tensor:
            reading.append(activity())
            time.sleep(0.01)
            return torch.ones(2)

    def note(gradient: torch.Tensor) -> None:
        del gradient
        in_backward.append(activity())

    accelerator = Accelerator()
    models = [accelerator.prepare(torch.nn.Linear(2, 1)) for _ in range(2)]
    optimizers = [accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1)) for model in models]
    for batch in accelerator.prepare(DataLoader(Slow(), batch_size=2)):
        output = sum(model(batch).sum() for model in models)
        output.register_hook(note)
        accelerator.backward(output)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    notes = own.page.notes(own.rank)
    return reading, in_backward, notes.num_steps, 0 < notes.input_ns <= notes.own_ns
