"""Ranks that are killed in the middle of saving, in launches of our own, and the launch after that."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from accel_nb import Accelerator, RunFailed, latest_checkpoint, notebook_launcher

from ..examples import small_model

pytestmark = pytest.mark.faults


def killed(*_: object) -> Any:  # noqa: ANN401  nobody hears the answer
    os.kill(os.getpid(), signal.SIGKILL)


class DiesWhenSaved:
    """Its state is asked for when models and optimizers are about to be written."""

    def __init__(self) -> None:
        self.is_deadly = False

    def state_dict(self) -> dict[str, bool]:
        if self.is_deadly:
            killed()
        return {"is_deadly": False}

    def load_state_dict(self, state: dict[str, bool]) -> None:
        self.is_deadly = state["is_deadly"]


def train(project: str, rank_to_kill: int | None, moment: str) -> tuple[float, str]:
    """Save, step, save again, where `rank_to_kill` dies; gives what was known at the end and the newest folder."""
    accelerator = Accelerator(project_dir=project)
    model = small_model()
    model = accelerator.prepare(model)
    weight = next(accelerator.unwrap_model(model).parameters())
    deadly = DiesWhenSaved()
    accelerator.register_for_checkpointing(deadly)
    if Path(project, "checkpoints").exists():
        accelerator.load_state()
        return weight[0, 0].item(), accelerator.save_state()
    weight.data.fill_(1.0)
    accelerator.save_state()
    weight.data.fill_(2.0)
    if accelerator.process_index == rank_to_kill:
        deadly.is_deadly = moment == "while the main process writes"
        if moment == "before a rank has written":
            accelerator.register_save_state_pre_hook(killed)
    return 0.0, accelerator.save_state()


@pytest.mark.parametrize(
    ("rank", "moment"), [(1, "before a rank has written"), (0, "before a rank has written"),
                         (0, "while the main process writes")],
)  # fmt: skip
def test_c03_a_rank_killed_while_saving_leaves_the_last_good_checkpoint(tmp_path: Path, rank: int, moment: str) -> None:
    with pytest.raises(RunFailed, match="SIGKILL"):
        notebook_launcher(train, (str(tmp_path), rank, moment), num_processes=2, device="cpu")

    root = tmp_path / "checkpoints"
    assert latest_checkpoint(tmp_path) == root / "checkpoint_0"
    assert sorted(path.name for path in root.iterdir()) == [".0.checkpoint_1.unfinished", "checkpoint_0"]

    resumed = notebook_launcher(train, (str(tmp_path), None, moment), num_processes=2, device="cpu")

    assert list(resumed) == [(1.0, str(root / "checkpoint_1"))] * 2
    assert sorted(path.name for path in root.iterdir()) == ["checkpoint_0", "checkpoint_1"]


def save_on_the_main_process_only(folder: str) -> None:
    import torch

    accelerator = Accelerator()
    model = small_model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(4):
        accelerator.backward(model(torch.ones(2, 4)).sum())
        optimizer.step()
        optimizer.zero_grad()
        if step == 2 and accelerator.is_main_process:
            accelerator.save_state(folder)


def test_c04_a_launch_in_which_one_rank_saves_ends_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RunFailed) as caught:
        notebook_launcher(save_on_the_main_process_only, (str(tmp_path / "s"),), num_processes=2, device="cpu")

    assert caught.value.rank == 0
    assert "Call save_state on every rank, not inside `if accelerator.is_main_process:`." in str(caught.value)
