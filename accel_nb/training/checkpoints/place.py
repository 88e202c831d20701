"""Where a checkpoint is being written, agreed among the ranks.

Usually all ranks see one folder, and the main process alone begins and commits it. Machines that do not see it (local
disks) have one of their own, which their first rank begins and commits: with their ranks' files, and with all others,
too, if `save_on_each_node` says so. Ranks of one machine that name different folders have theirs, with all others.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from ...errors import CheckpointError, InvalidArgument
from ..operations.transport import Collectives
from ..ranks.process_group import RankFacts
from ..settings import ProjectConfiguration
from . import folder, manifest, rotation
from .manifest import Manifest, SavedFile
from .outcome import Outcome, RankReport, attempt, exchange, failures

_MARK_NAME = ".accel_nb_mark"
"""Shows a rank that it sees the main process's folder, rather than one of the same name on its own machine."""

Written = dict[str, SavedFile]


@dataclass(frozen=True, kw_only=True)
class _Wish:
    """What a rank was told, and what it is."""

    target: str
    is_first: bool
    """Of its machine."""
    token: str = ""
    """The main process's: what it wrote into its folder."""


def choose_target(output_dir: str | os.PathLike[str] | None, project: ProjectConfiguration) -> Path:
    """Where the next checkpoint goes: `output_dir`, else the next number below the project's folder.

    InvalidArgument when there is neither, or a limit that keeps nothing.
    """
    if output_dir is not None:
        return Path(output_dir).expanduser().absolute()
    if project.project_dir is None:
        raise InvalidArgument(
            "save_state() without output_dir numbers its folders below the project's folder, and there is none: give "
            "output_dir, or Accelerator(project_dir=...)."
        )
    if project.total_limit is not None and project.total_limit < 1:
        raise InvalidArgument(
            f"total_limit={project.total_limit!r} must be at least 1, or None to keep all checkpoints."
        )
    return rotation.numbered(rotation.checkpoints_of(project.project_dir), project.iteration)


@dataclass(kw_only=True)
class Place:
    """One checkpoint from its beginning to its name. Every rank calls the same methods in the same order."""

    target: Path
    """What it will be called, as this rank names it."""
    facts: RankFacts
    collectives: Collectives
    commits: bool = False
    """This rank gives the folder its name."""
    writes_shared: bool = False
    """This rank writes what is alike on all ranks."""
    holds_shared: bool = False
    """The folder that this rank sees has that."""
    notes: list[str] = field(default_factory=list)
    """What the user should know, in sentences."""
    reports: list[RankReport[Written]] = field(default_factory=list)
    _neighbours: frozenset[int] = frozenset()
    """Ranks that see the same folder as this one."""

    @property
    def unfinished(self) -> Path:
        """Where to write now."""
        return folder.unfinished_name(self.target)

    def begin(self, *, must_be_new: bool, save_on_each_node: bool) -> None:
        """Make the folder. CheckpointError on every rank when that fails on one."""
        is_main = self.facts.process_index == 0
        wish = _Wish(target=str(self.target), is_first=self.facts.local_process_index == 0)
        begun = attempt(lambda: replace(wish, token=self._make(must_be_new))) if is_main else Outcome(wish)
        wishes = exchange(begun, self.facts, self.collectives)
        token = "" if wishes[0].value is None else wishes[0].value.token
        sees_main = bool(token) and self._token() == token
        namesakes = _namesakes(wishes, self.facts.process_index)
        is_apart = not sees_main and not any(one.is_first for one in namesakes.values())
        leads = wish.is_first or (is_apart and self.facts.process_index == min(namesakes))
        makes_own = bool(token) and not sees_main and leads
        if makes_own:
            begun = attempt(lambda: replace(wish, token=self._make(must_be_new)))
        seen = Outcome("" if sees_main else wish.target, begun.error)
        reports = exchange(seen, self.facts, self.collectives)
        self._raise_failures(reports, "cannot be begun", begun)
        own = reports[self.facts.process_index]
        self._neighbours = frozenset(
            one.rank for one in reports if one.value == own.value and (sees_main or one.host == own.host)
        )
        self.commits = is_main or makes_own
        self.holds_shared = sees_main or save_on_each_node or is_apart
        self.writes_shared = self.commits and self.holds_shared
        self.notes = _about_folders(wishes, reports)

    def agree(self, written: Outcome[Written]) -> None:
        """Hear from every rank what it has written. If one failed, nothing is left of the folder, and all raise
        CheckpointError.
        """
        self.reports = exchange(written, self.facts, self.collectives)
        if self.commits and failures(self.reports):
            folder.discard(self.unfinished)
        self._raise_failures(self.reports, "was not written", written)

    def commit(self, known: Manifest, *, total_limit: int | None) -> None:
        """Give the folder its name and, after that, remove old ones. `known`: the manifest, but for the files."""
        done = attempt(lambda: self._commit(known, total_limit)) if self.commits else Outcome(None)
        self._raise_failures(exchange(done, self.facts, self.collectives), "was not committed", done)

    def _make(self, must_be_new: bool) -> str:
        if must_be_new and self.target.exists():
            raise CheckpointError(
                f"{self.target} exists already. load_state() loads the newest checkpoint and goes on numbering after "
                f"it; to keep this number's, begin with ProjectConfiguration(iteration={_next_number(self.target)})."
            )
        token = secrets.token_hex(8)
        (folder.begin(self.target) / _MARK_NAME).write_text(token)
        return token

    def _token(self) -> str:
        try:
            return (self.unfinished / _MARK_NAME).read_text()
        except OSError:
            return ""

    def _commit(self, known: Manifest, total_limit: int | None) -> None:
        (self.unfinished / _MARK_NAME).unlink()
        files: Written = {}
        for report in self.reports:
            if report.rank in self._neighbours:
                files |= report.value or {}
        for name in manifest.files_in(self.unfinished):  # those that hooks have written
            if name not in files:
                files[name] = manifest.describe_file(self.unfinished / name)
        complete = msgspec.structs.replace(
            known, files=files, ranks=tuple(sorted(self._neighbours)), holds_shared=self.holds_shared
        )
        manifest.write(complete, self.unfinished)
        folder.commit(self.unfinished, self.target)
        if total_limit is not None:
            rotation.make_room(self.target.parent, total_limit)

    def _raise_failures(self, reports: Sequence[RankReport[object]], what: str, own: Outcome[object]) -> None:
        failed = failures(reports)
        if failed:
            raise CheckpointError(
                f"the checkpoint {self.target} {what}: {failed}. Nothing has taken the place of what was there before."
            ) from own.error


def _namesakes(wishes: Sequence[RankReport[_Wish]], rank: int) -> dict[int, _Wish]:
    """The ranks of this one's host that name the same folder, itself included."""
    named = {one.rank: one.value for one in wishes if one.value is not None and one.host == wishes[rank].host}
    own = named.get(rank)
    return {other: wish for other, wish in named.items() if own is not None and wish.target == own.target}


def _about_folders(wishes: Sequence[RankReport[_Wish]], seen: Sequence[RankReport[str]]) -> list[str]:
    """A sentence if ranks of one machine have folders of their own."""
    apart = [
        one for one in seen if one.value and not any(wish.is_first for wish in _namesakes(wishes, one.rank).values())
    ]
    if not apart:
        return []
    folders = {one.rank: one.value.target for one in wishes if one.value is not None}
    listed = ", ".join(f"{folders[rank]} (rank {rank})" for rank in sorted({0, *(one.rank for one in apart)}))
    sentence = (
        f"save_state was given different folders on one machine: {listed}. Each is a checkpoint for its own ranks, "
        "with a copy of models and optimizers; for one checkpoint give all ranks the same folder."
    )
    return [sentence]


def _next_number(target: Path) -> int:
    return max(rotation.iterations(target.parent), default=-1) + 1
