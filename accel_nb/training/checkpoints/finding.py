"""Which checkpoint to load, and whether all of it is there for every rank."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ...errors import CheckpointError, CheckpointNotFound
from ..operations.transport import Collectives
from ..ranks.process_group import RankFacts
from ..settings import ProjectConfiguration
from . import folder, manifest, names, rotation
from .manifest import Manifest
from .outcome import Outcome, RankReport, attempt, exchange


@dataclass(frozen=True, kw_only=True)
class Found:
    """A complete checkpoint."""

    folder: Path
    manifest: Manifest | None
    """None: upstream's."""
    notes: tuple[str, ...] = ()
    """What the user should know about the choice."""

    @property
    def num_ranks(self) -> int:
        """How many saved it."""
        if self.manifest is not None:
            return self.manifest.num_ranks
        return max(1, sum(1 for _ in self.folder.glob(names.random_states(0).replace("0", "*"))))


def find(
    input_dir: str | os.PathLike[str] | None, project: ProjectConfiguration, facts: RankFacts, collectives: Collectives
) -> Found:
    """`input_dir`, else the newest complete checkpoint below the project's folder. Every rank must call this.

    CheckpointNotFound when there is none, CheckpointError when a file of any rank is missing or damaged in `input_dir`:
    on every rank.
    """
    if input_dir is None:
        return _newest(project, facts, collectives)
    path = Path(input_dir).expanduser().absolute()
    if facts.process_index == 0:
        folder.put_back(path)
    checked, reports = _checked(path, facts, collectives)
    if all(report.value == [_ABSENT] for report in reports):
        raise CheckpointNotFound(f"there is no folder {path} to load a checkpoint from.")
    wrong = _listed(reports)
    if wrong:
        raise CheckpointError(f"the checkpoint {path} cannot be loaded: {wrong}.") from checked.error
    return Found(folder=path, manifest=manifest.read(path))


_ABSENT = "there is no such folder"


def _newest(project: ProjectConfiguration, facts: RankFacts, collectives: Collectives) -> Found:
    if project.project_dir is None:
        raise CheckpointNotFound(
            "load_state() without input_dir loads the newest checkpoint below the project's folder, and there is none: "
            "give input_dir, or Accelerator(project_dir=...)."
        )
    root = rotation.checkpoints_of(project.project_dir)
    listed = attempt(lambda: _newest_first(root)) if facts.process_index == 0 else Outcome(None)
    main, *_ = exchange(listed, facts, collectives)
    if main.value is None:
        raise CheckpointError(f"the checkpoints in {root} cannot be listed: {main.error}.") from listed.error
    passed_over: list[str] = []
    for name, wrong in main.value:
        if wrong:
            passed_over.append(f"{name} is incomplete: {wrong}")
        elif damage := _listed(_checked(root / name, facts, collectives)[1]):
            passed_over.append(f"{name} is damaged: {damage}")
        else:
            notes = (f"{one}; the newest complete one, {name}, is loaded." for one in passed_over)
            return Found(folder=root / name, manifest=manifest.read(root / name), notes=tuple(notes))
    raise CheckpointNotFound(rotation.nothing_in(root, passed_over))


def _newest_first(root: Path) -> list[tuple[str, str]]:
    """Names of the numbered checkpoints, and what names and sizes of their files show to be wrong; empty: nothing."""
    for leftover in root.glob(".0.*.replaced") if root.is_dir() else ():
        folder.put_back(root / leftover.name.removeprefix(".0.").removesuffix(".replaced"))
    newest_first = (rotation.numbered(root, iteration) for iteration in reversed(rotation.iterations(root)))
    return [(path.name, rotation.what_is_wrong(path)) for path in newest_first]


def _checked(
    path: Path, facts: RankFacts, collectives: Collectives
) -> tuple[Outcome[list[str]], list[RankReport[list[str]]]]:
    """What this rank sees to be wrong with `path`, and what every rank does. Every rank must call this."""
    own = attempt(lambda: _check(path, facts))
    return own, exchange(own, facts, collectives)


def _check(path: Path, facts: RankFacts) -> list[str]:
    """What this rank sees to be wrong. The first rank of a machine reads everything, the others their own files."""
    if not path.is_dir():
        return [_ABSENT]
    if folder.is_leftover(path):
        return [f"it is what an interrupted save_state left; {path.parent} may hold complete ones"]
    known = manifest.read(path)
    if known is None:
        return _check_foreign(path)
    rank = facts.process_index
    own = (names.random_states(rank), names.progress(rank), names.gradients(rank))
    found = manifest.problems(known, path, thoroughly=known.files if facts.local_process_index == 0 else own)
    if not known.holds_shared:
        found.append(
            "models and optimizers were saved on another machine only (share the folder, or save with "
            "ProjectConfiguration(save_on_each_node=True))"
        )
    if rank < known.num_ranks and rank not in known.ranks:
        found.append(f"rank {rank}'s files were saved in another folder or on another machine, and are not here")
    return found


def _check_foreign(path: Path) -> list[str]:
    if any(names.belongs_to_checkpoints(one.name) for one in path.iterdir()):
        return []
    return [f"it holds no file of a checkpoint, and no {names.MANIFEST_NAME}"]


def _listed(reports: list[RankReport[list[str]]]) -> str:
    """Everything that is wrong, once each; what not all ranks see, with those that do."""
    seen_by: dict[str, list[int]] = {}
    for report in reports:
        for one in [*(report.value or ()), *([report.error] if report.error else ())]:
            seen_by.setdefault(one, []).append(report.rank)
    # That a file has other content is seen by the rank that reads it, on behalf of all.
    clauses = []
    for one, ranks in seen_by.items():
        everywhere = len(ranks) == len(reports) or "checksum" in one or one.startswith("rank ")
        where = f" (on {reports[ranks[0]].host}, seen by rank {', '.join(map(str, ranks))})"
        clauses.append(one if everywhere else one + where)
    return "; ".join(clauses)
