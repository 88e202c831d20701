"""Saving and loading with several ranks: together, by one alone, with files missing, with another number of them."""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from accel_nb.errors import CheckpointError
from accel_nb.training.accelerator import Accelerator
from accel_nb.training.settings import ProjectConfiguration

from ..examples import Numbers, regression_loader, small_model

RunRanks = Callable[..., list[Any]]


def prepared(**configuration: Any) -> tuple[Accelerator, Any, Any]:  # noqa: ANN401
    accelerator = Accelerator(cpu=True, project_config=ProjectConfiguration(**configuration))
    model = small_model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return accelerator, model, optimizer


def a_step(accelerator: Accelerator, model: Any, optimizer: Any) -> None:  # noqa: ANN401
    accelerator.backward(model(torch.ones(2, 4)).sum())
    optimizer.step()
    optimizer.zero_grad()


def refusal(action: Callable[[], object]) -> str:
    try:
        action()
    except CheckpointError as error:
        return str(error)
    return ""


def save_often(project: Path) -> list[str]:
    accelerator, *_ = prepared(project_dir=str(project), total_limit=1)
    for _ in range(20):
        accelerator.save_state()
    accelerator.wait_for_everyone()
    return sorted(path.name for path in (project / "checkpoints").iterdir())


def test_c03_twenty_saves_with_a_limit_of_one_leave_the_last(run_ranks: RunRanks, tmp_path: Path) -> None:
    assert run_ranks(save_often, 2, tmp_path) == [["checkpoint_19"]] * 2
    assert {path.name for path in (tmp_path / "checkpoints" / "checkpoint_19").iterdir()} == {
        "accel_nb_manifest.json", "model.safetensors", "optimizer.bin", "progress_0.bin", "progress_1.bin",
        "random_states_0.pkl", "random_states_1.pkl",
    }  # fmt: skip


def one_rank_fails(project: Path) -> tuple[str, list[str]]:
    accelerator, *_ = prepared(project_dir=str(project))
    accelerator.save_state()

    def fail(*_: object) -> None:
        if accelerator.process_index == 1:
            raise OSError(28, "No space left on device")

    accelerator.register_save_state_pre_hook(fail)
    said = refusal(accelerator.save_state)
    accelerator.load_state()
    return said, sorted(path.name for path in (project / "checkpoints").iterdir())


def test_c03_what_one_rank_cannot_write_no_rank_has_saved(run_ranks: RunRanks, tmp_path: Path) -> None:
    (first, kept), (second, _) = run_ranks(one_rank_fails, 2, tmp_path)

    assert first == second
    assert "checkpoint_1 was not written: OSError: [Errno 28] No space left on device (rank 1). Nothing has" in first
    assert kept == ["checkpoint_0"]


def saved_by_the_main_process_only(folder: Path, num_steps: int) -> str:
    accelerator, model, optimizer = prepared()
    for _ in range(num_steps):
        a_step(accelerator, model, optimizer)
    if accelerator.is_main_process:
        return refusal(lambda: accelerator.save_state(folder))
    try:
        a_step(accelerator, model, optimizer)
    except RuntimeError as error:  # the other rank has left
        return type(error).__name__
    return "went on"


# After one step the next forward sends the order of gradients to all ranks; after two steps only the backward waits.
@pytest.mark.parametrize(("num_steps", "place"), [(1, "forward"), (2, "backward")])
def test_c04_a_save_on_the_main_process_only_is_seen_at_once(
    run_ranks: RunRanks, tmp_path: Path, num_steps: int, place: str
) -> None:
    first, second = run_ranks(saved_by_the_main_process_only, 2, tmp_path / "s", num_steps)

    assert first == (
        f"rank 0 is in save_state, and rank 1 goes on training without it: it is in a {place} that needs rank 0. "
        "Call save_state on every rank, not inside `if accelerator.is_main_process:`."
    )
    assert second != "went on"
    assert not (tmp_path / "s").exists()


def trained_unevenly() -> tuple[Accelerator, Any, Any]:
    """As `prepared`, after rank 0 has had three batches, and rank 1 one, in a block that lets it wait."""
    accelerator, model, optimizer = prepared()
    with accelerator.join_uneven_inputs([model], even_batches=False):
        for _ in range(1 if accelerator.process_index else 3):
            a_step(accelerator, model, optimizer)
    return accelerator, model, optimizer


def saved_while_a_rank_is_slow(folder: Path) -> str:
    accelerator, model, optimizer = trained_unevenly()
    features = torch.ones(2, 4, requires_grad=True) * 1
    if accelerator.is_main_process:  # its gradients are averaged before it gets there
        features.register_hook(lambda _: time.sleep(1.5))
    accelerator.backward(model(features).sum())
    optimizer.step()
    accelerator.save_state(folder)
    return "saved"


def test_c04_a_rank_that_had_more_batches_is_not_taken_for_one_that_trains_on(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    assert run_ranks(saved_while_a_rank_is_slow, 2, tmp_path / "s") == ["saved", "saved"]


def left_behind_after_uneven_batches(folder: Path) -> str:
    accelerator, model, optimizer = trained_unevenly()
    for _ in range(2):
        a_step(accelerator, model, optimizer)
    if accelerator.is_main_process:
        return refusal(lambda: accelerator.save_state(folder))
    with contextlib.suppress(RuntimeError):  # the other rank has left
        a_step(accelerator, model, optimizer)
    return ""


def test_c04_a_rank_that_had_fewer_batches_is_seen_to_train_on(run_ranks: RunRanks, tmp_path: Path) -> None:
    said, _ = run_ranks(left_behind_after_uneven_batches, 2, tmp_path / "s")

    assert said.startswith("rank 0 is in save_state, and rank 1 goes on training without it")


def one_saves_the_other_loads(folder: Path) -> str:
    accelerator, *_ = prepared()
    accelerator.save_state(folder)
    if accelerator.is_main_process:
        return refusal(lambda: accelerator.save_state(folder))
    return refusal(lambda: accelerator.load_state(folder))


def test_c04_ranks_that_do_different_things_are_told(run_ranks: RunRanks, tmp_path: Path) -> None:
    answers = run_ranks(one_saves_the_other_loads, 2, tmp_path / "s")

    assert answers[0] == answers[1]
    assert answers[0] == (
        "the ranks have called different operations at the same time: rank 0 save_state, rank 1 load_state. "
        "Let all call the same."
    )


def a_slow_rank(folder: Path) -> str:
    from accel_nb.training.checkpoints import meeting

    meeting.TELL_S = 0.2
    accelerator, model, optimizer = prepared()
    a_step(accelerator, model, optimizer)
    if not accelerator.is_main_process:
        time.sleep(1.5)
    return accelerator.save_state(folder)


def test_c04_a_slow_rank_is_waited_for(run_ranks: RunRanks, tmp_path: Path) -> None:
    assert run_ranks(a_slow_rank, 2, tmp_path / "s") == [str(tmp_path / "s")] * 2


class Slow(torch.autograd.Function):
    """Takes a second in the backward of rank 1."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, rank: int) -> torch.Tensor:  # noqa: ANN401
        context.rank = rank
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        time.sleep(context.rank)
        return gradient, None


def trained_by_one_and_saved_by_another(folder: Path) -> str:
    accelerator, model, _ = prepared()
    other = Accelerator(cpu=True)
    for _ in range(2):
        with accelerator.no_sync(model):
            output: Any = Slow.apply(model(torch.ones(2, 4)), accelerator.process_index)  # type: ignore[no-untyped-call]
            accelerator.backward(output.sum())
    return other.save_state(folder)


def test_c04_one_accelerator_may_train_and_another_save(run_ranks: RunRanks, tmp_path: Path) -> None:
    saved = run_ranks(trained_by_one_and_saved_by_another, 2, tmp_path / "s")

    assert saved == [str(tmp_path / "s")] * 2


def trained_apart_for_a_while(folder: Path) -> str:
    accelerator, model, optimizer = prepared()
    for _ in range(2):  # then forwards wait for no other rank
        a_step(accelerator, model, optimizer)
    for _ in range(2 * accelerator.process_index):
        with accelerator.no_sync(model):
            output: Any = Slow.apply(model(torch.ones(2, 4)), accelerator.process_index)  # type: ignore[no-untyped-call]
            accelerator.backward(output.sum())
    return accelerator.save_state(folder)


def test_c04_ranks_may_have_other_numbers_of_backwards_of_their_own(run_ranks: RunRanks, tmp_path: Path) -> None:
    assert run_ranks(trained_apart_for_a_while, 2, tmp_path / "s") == [str(tmp_path / "s")] * 2


def a_rank_that_never_comes(folder: Path) -> str:
    from accel_nb.training.checkpoints import meeting

    meeting.TELL_S, meeting.PATIENCE_S = 0.2, 0.3
    accelerator, *_ = prepared()
    if not accelerator.is_main_process:
        time.sleep(3)
        return ""
    return refusal(lambda: accelerator.save_state(folder))


def test_c04_waiting_ends(run_ranks: RunRanks, tmp_path: Path) -> None:
    assert run_ranks(a_rank_that_never_comes, 2, tmp_path / "s")[0].endswith(
        "in save_state for rank 1. Call save_state on every rank, not inside `if accelerator.is_main_process:`."
    )


def save_to(folder: Path) -> None:
    prepared()[0].save_state(folder)


def load_from(folder: Path) -> str:
    accelerator, *_ = prepared()
    return refusal(lambda: accelerator.load_state(folder))


def test_c05_missing_files_of_some_ranks_are_named_on_every_rank(run_ranks: RunRanks, tmp_path: Path) -> None:
    run_ranks(save_to, 2, tmp_path / "s")
    (tmp_path / "s" / "random_states_1.pkl").unlink()
    progress = tmp_path / "s" / "progress_1.bin"
    progress.write_bytes(progress.read_bytes()[:-10])

    first, second = run_ranks(load_from, 2, tmp_path / "s")

    assert first == second
    assert "cannot be loaded: rank 1's random_states_1.pkl is missing; rank 1's progress_1.bin has" in first


def test_c05_other_content_of_one_ranks_file_is_named_on_every_rank(run_ranks: RunRanks, tmp_path: Path) -> None:
    run_ranks(save_to, 2, tmp_path / "s")
    states = tmp_path / "s" / "random_states_1.pkl"
    states.write_bytes(states.read_bytes()[:-1] + b"!")

    first, second = run_ranks(load_from, 2, tmp_path / "s")

    assert first == second
    assert "cannot be loaded: rank 1's random_states_1.pkl has other content than was saved" in first


def load_with_a_wrong_model_on_one_rank(folder: Path) -> str:
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(4, 1) if accelerator.process_index else small_model()
    accelerator.prepare_model(model, evaluation_mode=True)
    try:
        accelerator.load_state(folder)
    except (RuntimeError, CheckpointError) as error:
        return str(error)
    return ""


def test_what_fails_on_one_rank_fails_on_all(run_ranks: RunRanks, tmp_path: Path) -> None:
    run_ranks(save_to, 2, tmp_path / "s")

    first, second = run_ranks(load_with_a_wrong_model_on_one_rank, 2, tmp_path / "s")

    assert "could not be loaded: RuntimeError: Error(s) in loading state_dict for Linear" in first
    assert first.endswith("(rank 1). Rank 0 itself has met no error.")
    assert second.startswith("Error(s) in loading state_dict for Linear")


def numbers_read(folder: Path, num_batches: int, *, load: bool) -> tuple[list[int], float]:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(3)
    loader = accelerator.prepare(torch.utils.data.DataLoader(Numbers(24), batch_size=2, shuffle=True))
    if load:
        torch.manual_seed(100 + accelerator.process_index)
        accelerator.load_state(folder)
        drawn = torch.rand(1).item()
        return [number for batch in loader for number in accelerator.gather(batch).tolist()], drawn
    numbers: list[int] = []
    torch.manual_seed(50 + accelerator.process_index)
    for batch in loader:
        numbers += accelerator.gather(batch).tolist()
        num_batches -= 1
        if not num_batches:
            accelerator.save_state(folder)
    return numbers, torch.rand(1).item()


@pytest.mark.parametrize(("num_before", "num_after"), [(2, 1), (1, 2), (2, 3), (3, 2)])
def test_c01_another_number_of_ranks_goes_on_with_the_same_samples(
    run_ranks: RunRanks, tmp_path: Path, num_before: int, num_after: int
) -> None:
    num_batches = 2

    before = run_ranks(lambda: numbers_read(tmp_path / "s", num_batches, load=False), num_before)
    after = run_ranks(lambda: numbers_read(tmp_path / "s", 0, load=True), num_after)

    rest = before[0][0][num_batches * num_before * 2 :]
    assert after[0][0][: len(rest)] == rest
    assert len({drawn for _, drawn in after}) == num_after
    again = run_ranks(lambda: numbers_read(tmp_path / "s", 0, load=True), num_after)
    assert [drawn for _, drawn in again] == [drawn for _, drawn in after]


def mid_step(folder: Path, *, load: bool) -> list[float]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = small_model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    row = torch.full((2, 4), 1.0 + accelerator.process_index)
    if load:
        accelerator.load_state(folder)
    else:
        with accelerator.accumulate(model):
            accelerator.backward(model(row).sum())
            optimizer.step()
        accelerator.save_state(folder)
    both = torch.full((2, 4), 1.5)
    with accelerator.accumulate(model):
        accelerator.backward(model(both).sum())
        optimizer.step()
    return [value for one in accelerator.unwrap_model(model).parameters() for value in one.flatten().tolist()]


@pytest.mark.parametrize("num_after", [1, 2, 3])
def test_c01_gradients_that_wait_count_alike_for_any_number_of_ranks(
    run_ranks: RunRanks, tmp_path: Path, num_after: int
) -> None:
    expected, _ = run_ranks(lambda: mid_step(tmp_path / "s", load=False), 2)

    found = run_ranks(lambda: mid_step(tmp_path / "s", load=True), num_after)

    assert found[0] == pytest.approx(expected, abs=1e-6)


def on_disks_of_their_own(root: Path, *, everywhere: bool) -> tuple[list[str], str]:
    """Two ranks that are each the first of a machine, as far as they know, and do not see each other's files."""
    rank = int(os.environ["RANK"])
    disk = root / f"machine{rank}"
    disk.mkdir()
    accelerator, *_ = prepared(save_on_each_node=everywhere)
    accelerator.save_state(disk / "s")
    said = refusal(lambda: accelerator.load_state(disk / "s"))
    return sorted(path.name for path in (disk / "s").iterdir()), said


OWN = ["progress_{}.bin", "random_states_{}.pkl"]
SHARED = ["accel_nb_manifest.json", "model.safetensors", "optimizer.bin"]


def test_machines_that_share_no_folder_keep_their_ranks_files(run_ranks: RunRanks, tmp_path: Path) -> None:
    (first, said), (second, same) = run_ranks(
        lambda: on_disks_of_their_own(tmp_path, everywhere=False), 2, local_rank=0
    )

    assert first == [*SHARED, *(name.format(0) for name in OWN)]
    assert second == [SHARED[0], *(name.format(1) for name in OWN)]
    assert said.partition("cannot")[2] == same.partition("cannot")[2]
    assert "models and optimizers were saved on another machine only (share the folder, or save with Project" in said


def test_save_on_each_node_makes_each_machines_folder_enough(run_ranks: RunRanks, tmp_path: Path) -> None:
    (first, said), (second, _) = run_ranks(lambda: on_disks_of_their_own(tmp_path, everywhere=True), 2, local_rank=0)

    assert first == [*SHARED, *(name.format(0) for name in OWN)]
    assert second == [*SHARED, *(name.format(1) for name in OWN)]
    assert said == ""


def in_folders_of_their_own(root: Path) -> tuple[list[str], list[float], str]:
    accelerator, model, optimizer = prepared()
    a_step(accelerator, model, optimizer)
    folder = root / f"of rank {accelerator.process_index}"
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        accelerator.save_state(folder)
    saved = [parameter.sum().item() for parameter in model.parameters()]
    a_step(accelerator, model, optimizer)
    accelerator.load_state(folder)
    assert [parameter.sum().item() for parameter in model.parameters()] == saved
    return sorted(path.name for path in folder.iterdir()), saved, said.getvalue()


def test_c04_folders_that_differ_by_rank_are_checkpoints_each_and_told(run_ranks: RunRanks, tmp_path: Path) -> None:
    (first, weights, said), (second, same, nothing) = run_ranks(in_folders_of_their_own, 2, tmp_path)

    assert first == [*SHARED, *(name.format(0) for name in OWN)]
    assert second == [*SHARED, *(name.format(1) for name in OWN)]
    assert weights == same
    assert nothing == ""
    assert said == (
        f"save_state was given different folders on one machine: {tmp_path}/of rank 0 (rank 0), {tmp_path}/of rank 1 "
        "(rank 1). Each is a checkpoint for its own ranks, with a copy of models and optimizers; for one checkpoint "
        "give all ranks the same folder.\n"
    )


def damaged_on_one_rank(project: Path) -> tuple[str, int]:
    accelerator, *_ = prepared(project_dir=str(project))
    accelerator.save_state()
    newest = Path(accelerator.save_state())
    if not accelerator.is_main_process:
        states = newest / "random_states_1.pkl"
        states.write_bytes(states.read_bytes()[:-1] + b"!")
    accelerator.wait_for_everyone()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        accelerator.load_state()
    return said.getvalue(), accelerator.save_iteration


def test_c06_what_is_damaged_for_one_rank_is_passed_over_by_all(run_ranks: RunRanks, tmp_path: Path) -> None:
    (said, number), (_, same) = run_ranks(damaged_on_one_rank, 2, tmp_path)

    assert said.startswith("checkpoint_1 is damaged: rank 1's random_states_1.pkl has other content than was saved")
    assert said.endswith("; the newest complete one, checkpoint_0, is loaded.\n")
    assert number == same == 2


def with_loader_positions(folder: Path) -> list[int]:
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(regression_loader(4))
    for batch in loader:
        del batch
        accelerator.save_state(folder)
        break
    accelerator.load_state(folder)
    return [len(features) for features, _ in loader]


def test_the_next_pass_goes_on_where_it_was_saved(run_ranks: RunRanks, tmp_path: Path) -> None:
    assert run_ranks(with_loader_positions, 2, tmp_path / "s") == [[4] * 7] * 2
