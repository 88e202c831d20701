"""The runs of this kernel as the panel lists them."""

from __future__ import annotations

from ...launch.planning.hardware_now import Names
from ...protocol.panel import RunSummary
from ..known_runs import KnownRun, KnownRuns


def summaries(known_runs: KnownRuns) -> tuple[RunSummary, ...]:
    """The newest last."""
    return tuple(_summary(known_runs, known) for known in known_runs.all())


def _summary(known_runs: KnownRuns, known: KnownRun) -> RunSummary:
    run = known_runs.handle(known)
    # In this order: a run that ends in between has an outcome by then.
    outcome = known_runs.outcome(known.run_id)
    going_on = "unknown" if run is None else run.status
    return RunSummary(
        run_id=known.run_id,
        function_name=known.function_name,
        status=going_on if outcome is None else outcome.status,
        num_ranks=known.num_ranks,
        device_kind=known.device_kind,
        started_s=known.started_s,
        duration_s=None if outcome is None else outcome.duration_s,
        headline="" if outcome is None else outcome.headline,
        cell=known.cell.label,
        cell_id=known.cell.cell_id,
        log_dir=str(known.log_dir),
    )


def rank_names(known_runs: KnownRuns) -> Names:
    """Process id -> ``rank 1 of train (run 9f3a71c2)``, of all ranks that run."""
    return {
        rank.pid: f"rank {number} of {run.plan.function_name} (run {run.plan.run_id.rpartition('-')[2]})"
        for run in known_runs.running()
        for number, rank in run.state.ranks.items()
        if rank.pid and not rank.gone
    }
