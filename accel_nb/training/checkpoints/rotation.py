"""Numbered checkpoints: what the next is called, which are kept, which is the newest and which the best."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ...errors import CheckpointError, CheckpointNotFound
from . import folder, manifest

FOLDER_NAME = "checkpoints"
"""Below the project's folder, as upstream's."""

_NUMBERED = re.compile(r"checkpoint_(\d+)")


def numbered(root: Path, iteration: int) -> Path:
    return root / f"checkpoint_{iteration}"


def checkpoints_of(project_dir: str | os.PathLike[str]) -> Path:
    """The folder of the numbered checkpoints, absolute: a program may change its working directory."""
    return Path(project_dir).expanduser().absolute() / FOLDER_NAME


def iterations(root: Path) -> list[int]:
    """Numbers of the checkpoints in `root`, ascending. Whatever else lies there is left alone."""
    if not root.is_dir():
        return []
    found = (_NUMBERED.fullmatch(path.name) for path in root.iterdir() if path.is_dir())
    return sorted(int(match[1]) for match in found if match)


def latest_checkpoint(project_dir: str | os.PathLike[str]) -> Path:
    """The newest complete checkpoint that ``save_state()`` made below `project_dir`: what ``load_state()`` loads.

    Sizes are compared with the manifest, but not checksums, as ``load_state()`` does; upstream's checkpoints, which
    have none, count as complete.
    CheckpointNotFound when there is none.
    """
    root = checkpoints_of(project_dir)
    found, passed_over = newest_complete(root)
    if found is None:
        raise CheckpointNotFound(nothing_in(root, passed_over))
    return found


def best_checkpoint(project_dir: str | os.PathLike[str]) -> Path:
    """The complete checkpoint below `project_dir` that was saved with the lowest `metric`, the newer of equal ones.

    CheckpointNotFound when none was saved with a metric.
    """
    root = checkpoints_of(project_dir)
    best = best_of(root)
    if best is None:
        raise CheckpointNotFound(
            f"no complete checkpoint in {root} has a metric. Give one when saving: "
            "accelerator.save_state(metric=validation_loss), the lower the better."
        )
    return numbered(root, best)


def newest_complete(root: Path) -> tuple[Path | None, list[str]]:
    """The newest complete checkpoint of `root`, and what is wrong with each newer one."""
    passed_over: list[str] = []
    for iteration in reversed(iterations(root)):
        path = numbered(root, iteration)
        wrong = what_is_wrong(path)
        if not wrong:
            return path, passed_over
        passed_over.append(f"{path.name} is incomplete: {wrong}")
    return None, passed_over


def what_is_wrong(path: Path) -> str:
    """Empty: nothing that names and sizes show."""
    try:
        known = manifest.read(path)
    except CheckpointError as error:
        return str(error)
    return "; ".join(manifest.problems(known, path, thoroughly=())) if known else ""


def best_of(root: Path) -> int | None:
    """Number of the checkpoint with the lowest metric; None: none has any."""
    scored = [(metric, -iteration) for iteration, metric in _metrics(root)]
    return -min(scored)[1] if scored else None


def make_room(root: Path, total_limit: int) -> list[Path]:
    """Remove all but the newest `total_limit` checkpoints, and the best one; gives what was removed.

    Called by one process only, after the newest one is complete.
    """
    best = best_of(root)
    old = iterations(root)[:-total_limit]
    removed = [numbered(root, iteration) for iteration in old if iteration != best]
    for path in removed:
        folder.discard(path)
    return removed


def _metrics(root: Path) -> Iterator[tuple[int, float]]:
    for iteration in iterations(root):
        path = numbered(root, iteration)
        if what_is_wrong(path):
            continue
        known = manifest.read(path)
        if known is not None and known.metric is not None and not math.isnan(known.metric):
            yield iteration, known.metric


def nothing_in(root: Path, passed_over: list[str]) -> str:
    if not passed_over:
        return f"there is no checkpoint in {root}. save_state() makes them there; load_state(folder) loads another one."
    return f"there is no complete checkpoint in {root}: {'; '.join(passed_over)}."
