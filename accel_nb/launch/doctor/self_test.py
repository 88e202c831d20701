"""Do the chosen devices work together: a real run of ours, whose ranks meet and exchange some numbers.

It has deadlines of its own, so that a broken connection costs seconds. When it fails, the known switches are tried, one
after the other: the one with which it works names the culprit.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import cast

import msgspec
from msgspec.structs import replace

from ...devices import find_device
from ...devices.nvml import Gpu
from ...errors import AccelNbError, PlanError
from ...protocol import environment
from ...protocol.diagnosis import Fact, Finding
from ...protocol.events import RunEvent
from ...protocol.plan import LaunchPlan, LaunchRequest, Timeouts
from ...protocol.run_state import RunState
from ..failures import headline
from ..run import Run, start_run
from ..run_failed import RunFailed
from .gpus import places

GROUP = "self-test"
EXCHANGE_S = 15.0
"""The ranks' own deadline for meeting and for each exchange; on two H200s all of it takes about one second."""
SWITCHES: dict[str, tuple[dict[str, str], ...]] = {
    "nccl": (
        {"NCCL_P2P_DISABLE": "1"}, {"NCCL_SHM_DISABLE": "1"}, {"NCCL_IB_DISABLE": "1"}, {"NCCL_SOCKET_IFNAME": "lo"},
        {"NCCL_CUMEM_ENABLE": "0"},
    ),
    "gloo": ({"GLOO_SOCKET_IFNAME": "lo"},),
}  # fmt: skip
"""Process group -> variables that go round a part that is known to break: GPUs that cannot reach each other's memory
(virtual machines, PCIe access control), shared memory, InfiniBand, the choice of an interface (NCCL's user guide,
"Environment Variables" and "Troubleshooting")."""
_NUMBERS = 1 << 16

Exchange = Callable[[float], float]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one try went."""

    plan: LaunchPlan | None = None
    """None: no run could be planned."""
    seconds: float = 0.0
    """From the call to the last return."""
    exchange_s: float = 0.0
    """What the slowest rank needed for meeting and exchanging."""
    trouble: str = ""
    """What went wrong, in one line; empty when it worked."""
    meaning: str = ""
    remedy: str = ""


class _Unseen:
    """A view of a run that nobody looks at."""

    def update(self, events: Sequence[RunEvent], state: RunState) -> None:
        pass

    def close(self, state: RunState) -> None:
        pass


def exchange(limit_s: float) -> float:
    """In a rank: meet, add up, gather, check. Gives the seconds it took; raises RuntimeError for wrong numbers."""
    import torch
    from torch import distributed

    rank = environment.read_rank()
    assert rank is not None
    started = time.monotonic()
    kind = find_device(environment.device_kind())
    assert kind is not None
    device = kind.transport_device(kind.bind(rank.local_rank, rank.local_world_size))
    distributed.init_process_group(kind.process_group, timeout=timedelta(seconds=limit_s))
    numbers = torch.full((_NUMBERS,), float(rank.rank + 1), device=device)
    distributed.all_reduce(numbers)
    gathered = [torch.zeros(1, device=device) for _ in range(rank.world_size)]
    distributed.all_gather(gathered, torch.full((1,), float(rank.rank), device=device))
    right = rank.world_size * (rank.world_size + 1) / 2
    if not bool((numbers == right).all()) or [one.item() for one in gathered] != list(range(rank.world_size)):
        raise RuntimeError(
            f"rank {rank.rank} got wrong numbers: {numbers.min().item()} to {numbers.max().item()} instead of "
            f"{right}, gathered {[one.item() for one in gathered]}"
        )
    distributed.destroy_process_group()
    return time.monotonic() - started


def try_out(request: LaunchRequest, function: Exchange = exchange, limit_s: float = EXCHANGE_S) -> Outcome:
    """One run of `function` on the ranks that `request` asks for. Raises nothing of ours."""
    wanted = replace(
        request,
        function_name="accel_nb.doctor",
        timeouts=Timeouts(rendezvous_s=limit_s, stop_grace_s=0.5),
    )
    started = time.monotonic()
    try:
        run = start_run(wanted, function, (limit_s,), {}, _Unseen())
    except PlanError as error:
        return Outcome(
            trouble=str(error),
            meaning="No run of these arguments can be planned on this machine.",
            remedy="Leave the arguments out to test what is usable here; what is here is listed above.",
        )
    except AccelNbError as error:
        return Outcome(trouble=str(error), meaning="No run can be started here.", remedy="What failed is named above.")
    try:
        if not _ends(run, limit_s):
            return _hanging(run)
        seconds = cast("list[float]", list(run.result()))
    except RunFailed as failed:
        return _failed(failed)
    except AccelNbError as error:
        return Outcome(plan=run.plan, trouble=str(error))
    finally:
        if not run.wait(0):
            run.stop(0.0)
            run.wait(10)
    return Outcome(plan=run.plan, seconds=time.monotonic() - started, exchange_s=max(seconds))


def facts(outcome: Outcome) -> Iterator[Fact]:
    if outcome.plan is not None and not outcome.trouble:
        ranks = f"{outcome.plan.num_ranks} rank{'s' if outcome.plan.num_ranks > 1 else ''}"
        where = ", ".join(dict.fromkeys(rank.device_label for rank in outcome.plan.ranks))
        told = f"{ranks} on {where} met over {outcome.plan.process_group} and exchanged right numbers"
        yield _fact("collective", f"{told}: {outcome.exchange_s:.1f} s, with its start {outcome.seconds:.1f} s")
    elif outcome.plan is not None:
        yield _fact("collective", "failed, see below")
    else:
        yield _fact("collective", "could not be started, see below")


def findings(
    outcome: Outcome, request: LaunchRequest, gpus: Sequence[Gpu], again: Callable[[LaunchRequest], Outcome] = try_out
) -> Iterator[Finding]:
    """Of an outcome with trouble: what is known, and with which switch it works. `again` makes another try."""
    if not outcome.trouble:
        return
    if outcome.plan is None:
        yield Finding(severity="problem", what=outcome.trouble, why=outcome.meaning, remedy=outcome.remedy)
        return
    switches = SWITCHES.get(outcome.plan.process_group, ())
    helps = next((one for one in switches if not again(_with(request, one)).trouble), None)
    if helps is not None and not again(request).trouble:
        yield Finding(
            severity="hint",
            what=f"Ranks could not work together at first, and then could, with nothing changed. {outcome.trouble}",
            why=outcome.meaning or "What is slow or busy at times fails at times.",
            remedy="Look again with accel_nb.doctor() when the machine is as busy as it is when you train.",
        )
        return
    where = places(outcome.plan, gpus)
    known = ", ".join(f"{name}={value}" for one in switches for name, value in one.items())
    if helps is not None:
        set_it = ", ".join(f"os.environ[{name!r}] = {value!r}" for name, value in helps.items())
        remedy = f"It works with {_listed(helps)}: set {set_it} in the kernel before launching."
    else:
        remedy = f"{outcome.remedy} Tried without success, one at a time: {known}.".strip()
    yield Finding(
        severity="problem",
        what=f"Ranks cannot work together here. {outcome.trouble}",
        why=f"{outcome.meaning} {where}.".strip(),
        remedy=remedy,
    )


def _ends(run: Run, limit_s: float) -> bool:
    """Whether it is over twice `limit_s` after all its ranks had begun. How long that may take, the plan says."""
    begun_s: float | None = None
    while not run.wait(0.1):
        ranks = run.state.ranks.values()
        if begun_s is None and ranks and not any(rank.status == "starting" for rank in ranks):
            begun_s = time.monotonic()
        if begun_s is not None and time.monotonic() - begun_s > 2 * limit_s:
            return False
    return True


def _failed(failed: RunFailed) -> Outcome:
    known = failed.cause.explanation
    return Outcome(
        plan=failed.plan,
        trouble=f"Rank {failed.rank}: {headline(failed.cause)}",
        meaning="" if known is None else known.meaning,
        remedy="" if known is None else known.remedy,
    )


def _hanging(run: Run) -> Outcome:
    stacks: dict[int, str] = {}
    with contextlib.suppress(TimeoutError):
        stacks = run.stacks()
    lines = [f"rank {rank}: {_innermost(text)}" for rank, text in sorted(stacks.items())]
    where = "; ".join(lines) or "their stacks did not come"
    return Outcome(
        plan=run.plan,
        trouble=f"They never came back from their first exchange ({where}).",
        meaning="A connection carries nothing: most often GPUs that cannot reach each other's memory, or a network "
        "interface that leads nowhere.",
    )


def _innermost(stack: str) -> str:
    lines = [line.strip() for line in stack.splitlines() if line.strip().startswith(("File ", "Cell "))]
    return lines[0] if lines else "no Python frame"


def _with(request: LaunchRequest, variables: dict[str, str]) -> LaunchRequest:
    return replace(request, env={**(request.env or {}), **variables})


def _listed(variables: dict[str, str]) -> str:
    return " and ".join(f"{name}={value}" for name, value in variables.items())


def _fact(name: str, value: str) -> Fact:
    return Fact(group=GROUP, name=name, value=value)
