"""Several machines, on each of which somebody makes the same call: the nodes meet by torch.distributed.elastic.

    node 0: kernel ══ meeting ──torch's rendezvous── meeting ══ kernel :node 1
              ╚═ hub ══zmq══ agent ── keeper ──▶ ranks         ║
                   ╚════zmq══ agent ── keeper ──▶ ranks  ══════╝

The kernel of node 0 gives orders, merges what all ranks say, and decides how the run ends; each other kernel sees its
own ranks and hears of the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...protocol.hardware import NodeHardware
from ...protocol.plan import LaunchPlan, LaunchRequest
from ..planning.nodes import meeting_point
from .engine import Attempt
from .local import base_variables
from .nodes.group import NodesGroup
from .nodes.rendezvous import Rendezvous, listen_if_host
from .nodes.way import find_way
from .remote.limits import check_limits


class ElasticEngine:
    """The engine of ``num_nodes`` above 1."""

    name = "elastic"

    def __init__(self) -> None:
        self._meeting_again: dict[str, Rendezvous] = {}
        """Run -> its rendezvous, between two attempts."""

    def check(self, request: LaunchRequest) -> None:
        """Try the address from here. Raises InvalidArgument, PortInUse, PlanError."""
        check_limits(request)
        point = meeting_point(request)
        listener = listen_if_host(point, find_way(point))
        if listener is not None:
            listener.close()

    def hardware(self, request: LaunchRequest, own: NodeHardware) -> NodeHardware:  # noqa: ARG002  of the protocol
        """Each kernel plans for its own machine."""
        return own

    def check_plan(self, plan: LaunchPlan) -> None:
        """There is nothing that only a plan tells."""

    def num_tries(self) -> int:
        return 1

    def start(self, attempt: Attempt, _cancelled: Callable[[], bool]) -> NodesGroup:
        """Begin to meet the other nodes. Raises PlanError, OSError."""
        run_id = attempt.plan.run_id
        rendezvous = self._meeting_again.pop(run_id, None)
        if rendezvous is not None:
            rendezvous.again(attempt.number)
        else:
            assert attempt.meeting is not None
            rendezvous = Rendezvous(
                attempt.meeting,
                deadline_s=attempt.plan.timeouts.rendezvous_s,
                variables=base_variables(attempt),
            )

        def keep(again: Rendezvous) -> None:
            self._meeting_again[run_id] = again

        return NodesGroup(attempt, rendezvous, keep)

    def learn(self, attempt: Attempt, modules: Sequence[str]) -> None:
        """Agents import torch while the nodes meet: there is nothing to prepare."""


ENGINE = ElasticEngine()
