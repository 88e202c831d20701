"""From what agents say when they come to where each rank runs: nodes, local ranks, devices, threads. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ....protocol.commands import RunOrder
from ....protocol.plan import LaunchPlan, RankPlan
from ....protocol.remote import AgentHello
from ..engine import Attempt

Hellos = Mapping[int, AgentHello]
"""By seat."""


def missing_text(plan: LaunchPlan, missing: Sequence[tuple[str, str]], num_seats: int, waited_s: float) -> str:
    """Why the run does not begin: agents have not come. `missing`: who they are, for people, and what there is to say
    of each, if anything.
    """
    came = num_seats - len(missing)
    text = (
        f"{came} of {num_seats} agents of {plan.function_name} came within {waited_s:g} s; missing: "
        f"{', '.join(who for who, _ in missing)}. Agents hold the ranks on other machines; if they only are slow to "
        "start, pass timeouts=Timeouts(start_s=...)."
    )
    return " ".join([text, *dict.fromkeys(evidence for _, evidence in missing if evidence)])


def version_problem(hello: AgentHello, versions: Mapping[str, str], function_name: str) -> str:
    """Why an agent cannot take part: other versions than the kernel's; empty when they are the same."""
    differing = [
        f"{name} {hello.versions.get(name) or 'is not there'} (here: {version})"
        for name, version in versions.items()
        if hello.versions.get(name) != version
    ]
    if not differing:
        return ""
    return (
        f"{hello.host} cannot run {function_name}: it has {', '.join(differing)}. Install the same versions on all "
        "machines."
    )


def nodes_of(hellos: Hellos) -> dict[int, int]:
    """Seat -> number of its machine: as said, else in the order in which the seats come to machines."""
    if any(hello.node is not None for hello in hellos.values()):
        return {seat: hello.node or 0 for seat, hello in hellos.items()}
    places = list(dict.fromkeys(hellos[seat].place for seat in sorted(hellos)))
    return {seat: places.index(hello.place) for seat, hello in hellos.items()}


def placed(plan: LaunchPlan, seats: Sequence[Sequence[int]], hellos: Hellos) -> LaunchPlan:
    """`plan` with the machine of each rank, and what follows from that. `hellos`: of all seats.

    Raises ValueError, as a sentence, when a machine has fewer devices than ranks.
    """
    nodes = nodes_of(hellos)
    seat_of = {rank: seat for seat, ranks in enumerate(seats) for rank in ranks}
    num_local: dict[int, int] = {}
    for seat in seat_of.values():
        num_local[nodes[seat]] = num_local.get(nodes[seat], 0) + 1
    given: dict[int, int] = {}
    ranks: list[RankPlan] = []
    for rank in plan.ranks:
        seat = seat_of[rank.rank]
        node, hello = nodes[seat], hellos[seat]
        local = given[node] = given.get(node, -1) + 1
        ranks.append(_placed_rank(plan, rank, hello, node=node, local=local, num_local=num_local[node]))
    first = hellos[seat_of[0]]
    return replace(plan, ranks=tuple(ranks), rendezvous_host=first.address)


def order_of(attempt: Attempt, plan: LaunchPlan, store_port: int) -> RunOrder:
    """For all keepers of `attempt`; `plan` is what has been placed."""
    return replace(attempt.order(), plan=plan, notices=(), port_given=False, store_port=store_port)


def _placed_rank(
    plan: LaunchPlan, rank: RankPlan, hello: AgentHello, *, node: int, local: int, num_local: int
) -> RankPlan:
    moved = replace(rank, node=node, local_rank=local, host=hello.host)
    if "OMP_NUM_THREADS" not in plan.env:
        moved = replace(moved, cpu_threads=max(1, hello.cpu_count // num_local))
    if rank.device_index is None:
        return moved
    names = hello.devices.get(plan.device_kind, ())
    if num_local > len(names):
        raise ValueError(
            f"{hello.host} has {len(names)} {plan.device_kind} devices and is to run {num_local} ranks; each needs "
            "one of its own. Start fewer ranks there, or compute on the CPU with device='cpu'."
        )
    label = f"{plan.device_kind}:{local} {names[local]}".rstrip()
    return replace(moved, device_index=local, device_label=label)
