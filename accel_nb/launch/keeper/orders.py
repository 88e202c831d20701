"""What a keeper tells one rank, out of what the kernel told the keeper."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from ...protocol import environment
from ...protocol.commands import RankOrder, RunOrder


def rank_order(order: RunOrder, rank: int, *, store_port: int) -> RankOrder:
    """The order for `rank`. Pure."""
    plan = order.plan
    own = environment.rank_variables(plan, plan.ranks[rank], port=store_port, attempt=order.attempt)
    own |= environment.failed_batch_sizes_variable(order.searches.failed)
    variables = environment.rank_environment(order.surroundings.variables, plan, own)
    base = Path(order.log_dir) / f"rank_{rank}"
    return RankOrder(
        rank_plan=plan.ranks[rank],
        num_ranks=plan.num_ranks,
        surroundings=replace(order.surroundings, variables=environment.to_bytes(variables)),
        store_host=plan.rendezvous_host,
        store_port=store_port,
        attempt=order.attempt,
        rendezvous_s=plan.timeouts.rendezvous_s,
        stack_file=f"{base}.stack",
        exception_file=f"{base}.exception",
        send_value=plan.returns == "all" or rank == 0,
        memory_snapshot_file=f"{base}.memory_snapshot.pickle" if plan.memory_snapshot else "",
        dry_run=plan.dry_run is not None,
        hides_devices=plan.dry_run is not None and plan.dry_run.has_accelerators,
        process_group=plan.process_group,
    )
