"""An engine of agents on this machine: what joins keepers, without what brings agents to other machines."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from accel_nb.launch.engines.engine import Attempt
from accel_nb.launch.engines.remote.agent import start_agent
from accel_nb.launch.engines.remote.hub import Hub
from accel_nb.launch.engines.remote.joined_group import JoinedGroup
from accel_nb.launch.engines.remote.limits import check_limits
from accel_nb.launch.engines.remote.trust import Trust
from accel_nb.protocol import environment
from accel_nb.protocol.hardware import NodeHardware
from accel_nb.protocol.plan import LaunchPlan, LaunchRequest
from accel_nb.protocol.remote import Contact, Summons


class LoopbackAgents:
    """The agents of one attempt."""

    def __init__(self, contact: Contact, absent: Sequence[int], words: Mapping[int, str], output: Path) -> None:
        variables = environment.current()
        with output.open("ab") as log:
            self._agents: dict[int, subprocess.Popen[bytes]] = {
                seat: start_agent(
                    Summons(contact=contact, seat=seat, word=words.get(seat, "")),
                    variables=variables,
                    output=log.fileno(),
                )
                for seat in range(len(contact.seats))
                if seat not in absent
            }
        self._output = output

    def pid(self, seat: int) -> int:
        return self._agents[seat].pid

    def fd(self) -> int:
        return -1

    def gone(self) -> Mapping[int, str]:
        return {seat: self.evidence(seat) for seat, agent in self._agents.items() if agent.poll() is not None}

    def evidence(self, seat: int) -> str:
        if seat not in self._agents:
            return ""
        status = self._agents[seat].poll()
        if status is None:
            return ""
        said = self._output.read_text().strip()
        return f"It ended by {signal.Signals(-status).name}" if status < 0 else said

    def seat_text(self, seat: int) -> str:
        return f"seat {seat}"

    def replaces(self, _seat: int) -> bool:
        return True

    def kill(self) -> None:
        for agent in self._agents.values():
            agent.kill()

    def close(self) -> None:
        for agent in self._agents.values():
            try:
                agent.wait(20)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()


class LoopbackEngine:
    name = "loopback"

    def __init__(
        self,
        folder: Path,
        *seats: Sequence[int],
        absent: Sequence[int] = (),
        start_s: float = 60.0,
        words: Mapping[int, str] | None = None,
        trust: Trust | None = None,
    ) -> None:
        """`words`: seat -> what its agent says to be known by."""
        self._folder = folder
        self._seats = seats
        self._absent = absent
        self._start_s = start_s
        self._words = words or {}
        self._trust = trust
        self.agents: list[LoopbackAgents] = []
        """Of each attempt."""

    def check(self, request: LaunchRequest) -> None:
        check_limits(request)

    def hardware(self, _request: LaunchRequest, own: NodeHardware) -> NodeHardware:
        return own

    def check_plan(self, plan: LaunchPlan) -> None:
        pass

    def num_tries(self) -> int:
        return 1

    def start(self, attempt: Attempt, _cancelled: Callable[[], bool]) -> JoinedGroup:
        hub = Hub(
            ["127.0.0.1"],
            self._seats,
            run_id=attempt.plan.run_id,
            start_method=attempt.plan.start_method,
        )
        self.agents.append(LoopbackAgents(hub.contact, self._absent, self._words, self._folder / "agents.log"))
        return JoinedGroup(attempt, hub, self.agents[-1], start_s=self._start_s, trust=self._trust)

    def learn(self, attempt: Attempt, modules: Sequence[str]) -> None:
        pass
