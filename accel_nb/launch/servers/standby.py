"""Ranks in standby: after a run the next launch's ranks are got ready, and wait with device and process group open.

    run of f ends ──▶ after ──StandbyOrder──▶ warm server ──▶ keeper and ranks: ready for f as it was launched
    launch of f ────▶ hand_over ──the run's channel──▶ that keeper ──KeeperHello──▶ the run begins

A set is used by one run. It is for launches that are alike in all that devices and groups are opened with (`_Key`);
what else a launch brings, its ranks get when it comes. One set per process: it takes memory of the devices.

No launch depends on a set: one that is not ready, does not fit, has died or does not answer is let go, and the launch
starts as if there had been none. Only a keeper that has answered is told what to run.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping

import msgspec

from ...devices import find_devices
from ...devices.standby import OPENERS
from ...errors import InvalidArgument, ServerFailed
from ...protocol import environment
from ...protocol.commands import RunOrder, StandbyNews, StandbyOrder, StartKeeper, Surroundings
from ...protocol.plan import LaunchPlan
from ..channel import receive_packet, send_packet
from ..processes import is_readable
from .warm_client import WarmServer

IDLE_S = 300.0
"""A set is let go when no launch has taken it for so long."""
TAKES_S = 1.0
"""A set that was handed a run answers within a millisecond or two; a busy machine may take its time."""
_STEP_S = 0.005
FREE_TIMES = 8.0
"""With "auto" ranks stand by only where so many times what they take is free ..."""
FREE_TIMES_WHEN_ASKED = 2.0
"""... and with "on"."""


class _Key(msgspec.Struct, frozen=True):
    """What a set was made with: a launch that differs gets fresh ranks."""

    server_pid: int
    device_kind: str
    process_group: str
    devices: tuple[tuple[int, int | None], ...]
    """Local rank and device's position, by rank."""
    variables: tuple[tuple[str, str], ...]


class _Set:
    """The kernel's end of one set."""

    def __init__(self, key: _Key, plan: LaunchPlan, kernel: socket.socket) -> None:
        self.key = key
        self.text = set_text(plan)
        self.kernel = kernel
        self.keeper_pid = 0
        """0: it is not ready yet."""
        self.over = ""
        """Why it is over; empty while it is not."""

    def take(self, num_ranks: int, within_s: float) -> socket.socket | None:
        """The kernel's end of a run's channel, on which its keeper has said hello: it has taken the run. None when it
        has not within that time; it cannot any more then. The set is used up.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                send_packet(self.kernel, StartKeeper(num_ranks=num_ranks), [theirs.fileno()])
            except OSError:
                # It has just ended.
                within_s = 0.0
        if is_readable(ours.fileno(), within_s) and ours.recv(1, socket.MSG_PEEK):
            self.kernel.close()
            return ours
        ours.close()
        self.let_go()
        return None

    def let_go(self) -> None:
        # A process that user code has forked may hold a copy of the socket, which closing would leave open.
        with contextlib.suppress(OSError):
            self.kernel.shutdown(socket.SHUT_RDWR)
        self.kernel.close()

    def listen(self) -> None:
        """Take in what its keeper has said."""
        while not self.over and is_readable(self.kernel.fileno()):
            packet, _ = receive_packet(self.kernel)
            news = msgspec.msgpack.decode(packet, type=StandbyNews) if packet else None
            if news is None or news.state == "over":
                self.over = "its process has ended" if news is None else news.reason
            else:
                self.keeper_pid = news.keeper_pid


class StandbySets:
    """Of this process. Any thread may call; nothing blocks for longer than it says."""

    def __init__(self) -> None:
        self.idle_s = IDLE_S
        self.takes_s = TAKES_S
        self._lock = threading.Lock()
        self._set: _Set | None = None
        self._last_over = ""
        """Why the newest set that is over has ended."""
        self._with_group: set[str] = set()
        """Ids of runs under way whose ranks have opened the process group that was planned for."""
        self._has_told = False
        self._owner = os.getpid()
        atexit.register(self.let_go)

    def note_group(self, run_id: str) -> None:
        """Ranks of that run have opened the process group that was planned for."""
        self._with_group.add(run_id)

    def after(self, plan: LaunchPlan, surroundings: Surroundings, next_server: Callable[[], WarmServer]) -> None:
        """A run of `plan` has ended: get ranks ready for the next, on the server that it would start from, if it is
        likely to want them. There are none when that server is gone.
        """
        mode = _mode(environment.from_bytes(surroundings.variables) | plan.env)
        is_likely = plan.run_id in self._with_group
        self._with_group.discard(plan.run_id)
        if mode == "off":
            self.let_go()
        if mode == "off" or not is_likely or _obstacle(plan, mode):
            return
        with contextlib.suppress(ServerFailed), self._lock:
            server = next_server()
            key = _key(plan, surroundings.variables, server)
            current = self._current()
            if current is None or current.key != key:
                self._let_go()
                self._set = self._start(key, plan, surroundings, server, asked=mode == "on")

    def hand_over(self, plan: LaunchPlan, surroundings: Surroundings, server: WarmServer) -> socket.socket | None:
        """Give a run to the set, if one is ready for it: the kernel's end of the run's channel, whose keeper has
        answered. None: start its ranks otherwise. They find the devices free: the set is let go. Blocks for `takes_s`
        when a set hangs.
        """
        with self._lock:
            current = self._current()
            if current is None or current.key.device_kind != plan.device_kind:
                return None
            self._set = None
        fits = (
            current.keeper_pid != 0
            and not _obstacle(plan, "on")
            and _mode(environment.from_bytes(surroundings.variables) | plan.env) != "off"
            and current.key == _key(plan, surroundings.variables, server)
        )
        if fits:
            return current.take(plan.num_ranks, self.takes_s)
        current.let_go()
        return None

    def let_go(self) -> str:
        """End the set; what it was, empty when there is none. A forked child of this process leaves it alone."""
        if os.getpid() != self._owner:
            return ""
        with self._lock:
            current = self._current()
            self._let_go()
            return "" if current is None else current.text

    def keeper(self, within_s: float = 0.0) -> int:
        """Process id of the keeper of a set whose ranks are ready, 0 when there is none; waits for it that long, while
        it may still get there.
        """
        end = time.monotonic() + within_s
        while True:
            with self._lock:
                current = self._current()
            if current is None or current.keeper_pid or time.monotonic() >= end:
                return 0 if current is None else current.keeper_pid
            time.sleep(_STEP_S)

    def is_ready(self, within_s: float = 0.0) -> bool:
        """Whether there is a set whose ranks are ready; waits as `keeper` does."""
        return self.keeper(within_s) != 0

    def reasons(self, plan: LaunchPlan, variables: Mapping[str, str]) -> tuple[str, ...]:
        """What is to be said about standby in the plan of a launch from a kernel with `variables`.

        Raises InvalidArgument when the user's wish cannot be read.
        """
        mode = _mode({**variables, **plan.env})
        if mode == "off":
            return ()
        obstacle = _obstacle(plan, mode)
        if obstacle:
            return (f"No ranks stand by for the next launch: {obstacle}.",)
        with self._lock:
            current, was = self._current(), self._last_over
        told = []
        if current is not None:
            told.append(f"In standby, for a launch like the last one: {current.text}; %accel_stop ends them.")
        elif was:
            told.append(f"The last ranks in standby were let go: {was}.")
        told.append(
            f"After a run that opens a process group, {set_text(plan)} get ready for the next launch and wait for it "
            f"{self.idle_s:g} s; {environment.STANDBY}=off prevents that."
        )
        return tuple(told)

    def with_reasons(self, plan: LaunchPlan, variables: Mapping[str, str]) -> LaunchPlan:
        """`plan` with `reasons`. What it costs on devices is notable, once per process."""
        told = self.reasons(plan, variables)
        is_news = not self._has_told and len(told) > 0 and _cost_bytes(plan) > 0 and " get ready " in told[-1]
        self._has_told = self._has_told or is_news
        notable = (*plan.notable, told[-1]) if is_news else plan.notable
        return msgspec.structs.replace(plan, reasons=(*plan.reasons, *told), notable=notable)

    def _start(
        self, key: _Key, plan: LaunchPlan, surroundings: Surroundings, server: WarmServer, *, asked: bool
    ) -> _Set:
        order = StandbyOrder(
            like=RunOrder(plan=plan, surroundings=surroundings, log_dir="/"),
            idle_s=self.idle_s,
            free_times=FREE_TIMES_WHEN_ASKED if asked else FREE_TIMES,
            alone=not asked,
        )
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        file = os.memfd_create("standby", os.MFD_CLOEXEC)
        try:
            with theirs:
                os.write(file, msgspec.msgpack.encode(order))
                server.stand_by(plan.num_ranks, file, theirs)
        except ServerFailed:
            ours.close()
            raise
        finally:
            os.close(file)
        return _Set(key, plan, ours)

    def _current(self) -> _Set | None:
        """The set, if it has not ended by itself. With the lock held."""
        if self._set is not None:
            self._set.listen()
            if self._set.over:
                self._last_over = self._set.over
                self._let_go()
        return self._set

    def _let_go(self) -> None:
        if self._set is not None:
            self._set.let_go()
            self._set = None


def set_text(plan: LaunchPlan) -> str:
    """What a set for `plan` is and costs: ``2 ranks (nccl), 1.4 GiB on each device``."""
    cost_bytes = _cost_bytes(plan)
    cost = f", {cost_bytes / 2**30:.1f} GiB on each device" if cost_bytes else ""
    return f"{plan.num_ranks} ranks on {plan.device_kind} ({plan.process_group}{cost})"


def _cost_bytes(plan: LaunchPlan) -> int:
    return next((device.rank_overhead_bytes for device in find_devices() if device.kind == plan.device_kind), 0)


def _mode(variables: Mapping[str, str]) -> str:
    try:
        return environment.standby_wanted(variables)
    except ValueError:
        text = variables[environment.STANDBY]
        raise InvalidArgument(f"{environment.STANDBY} is {text!r}; give 'auto', 'on' or 'off'.") from None


def _obstacle(plan: LaunchPlan, mode: str) -> str:
    """Why no ranks can stand by for launches like `plan`; empty when they can."""
    obstacles = (
        (plan.engine != "local", f"{plan.engine} starts them"),
        (plan.start_method != "forkserver", f"start_method={plan.start_method!r} starts them otherwise"),
        (plan.dry_run is not None, "a dry run has ranks of its own"),
        (plan.rendezvous_port is not None, "use_port gives their store a port of its own"),
        (plan.memory_snapshot, "memory_snapshot records from the beginning"),
        (plan.device_kind not in OPENERS, f"it is not known how to get {plan.device_kind} ready"),
        (plan.num_ranks == 1, "one rank has nobody to meet"),
        (
            mode == "auto" and plan.device_kind == "cpu",
            f"somebody else always uses the CPUs, so that it takes {environment.STANDBY}=on",
        ),
    )
    return next((text for is_so, text in obstacles if is_so), "")


def _key(plan: LaunchPlan, base: Mapping[bytes, bytes], server: WarmServer) -> _Key:
    own = environment.rank_variables(plan, plan.ranks[0], port=0, attempt=0)
    variables = environment.rank_environment(base, plan, own)
    return _Key(
        server_pid=server.pid,
        device_kind=plan.device_kind,
        process_group=plan.process_group,
        devices=tuple((rank.local_rank, rank.device_index) for rank in plan.ranks),
        variables=tuple(sorted(item for item in variables.items() if environment.matters_to_standby(item[0]))),
    )


STANDBY = StandbySets()
"""One per process, beside the pool of servers."""
