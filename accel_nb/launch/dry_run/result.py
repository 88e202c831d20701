"""What a dry run gives back: what each rank measured, and what that means for the launch that was asked for."""

from __future__ import annotations

from collections.abc import Mapping

from ...protocol.events import DryRunReport
from ...protocol.failure import RankFailure
from ...protocol.plan import LaunchPlan
from ..result import RunResult
from . import verdict


class DryRun(RunResult[object]):
    """A sequence of the ranks' reports, by rank; None of a rank that failed. Its repr begins with what is wrong."""

    def __init__(
        self,
        plan: LaunchPlan,
        reports: Mapping[int, DryRunReport],
        duration_s: float,
        failures: tuple[RankFailure, ...] = (),
    ) -> None:
        """`plan`: that of the dry run; its `dry_run` is set. `failures`: see `RunResult.failures`."""
        self.reports = tuple(reports.get(rank) for rank in range(plan.num_ranks))
        """What each rank measured."""
        super().__init__(self.reports, duration_s, failures)
        assert plan.dry_run is not None
        self.plan = plan
        self.findings = verdict.findings(plan.dry_run, reports, plan.num_ranks)
        """What would go wrong, one sentence each: parameters without gradient, memory, no step at all."""
        self.notes = verdict.notes(plan.dry_run, reports)
        """What is good to know."""

    @property
    def ok(self) -> bool:
        """Nothing was found and no rank failed."""
        return not self.findings and not self.failures

    def __repr__(self) -> str:
        assert self.plan.dry_run is not None
        planned = len(self.plan.dry_run.devices)
        shown = [f"{one.type_name}: {one.message}" if one.type_name else one.message for one in self.failures[:1]]
        shown += self.findings
        title = f"DryRun of {self.plan.function_name} for {planned} rank{'s' if planned != 1 else ''}"
        if not shown:
            lines = [f"{title}: nothing wrong was found."]
        else:
            lines = [f"{title}: {len(shown)} problem{'s' if len(shown) > 1 else ''}", *(f"- {one}" for one in shown)]
        lines += [f"Rank {rank}: {verdict.step_sentence(one)}." for rank, one in self._different()]
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])

    def _different(self) -> list[tuple[int, DryRunReport]]:
        """The first report of each kind, with its rank."""
        seen: dict[str, tuple[int, DryRunReport]] = {}
        for rank, report in enumerate(self.reports):
            if report is not None:
                seen.setdefault(verdict.step_sentence(report), (rank, report))
        return list(seen.values())
