"""What NCCL, gloo and the store say when ranks cannot exchange data."""

from __future__ import annotations

from re import Match

from ..device_slots import pci_slot_of
from .known import MORE_SHARED_MEMORY, SAME_CALLS, Known

_NCCL_SWITCHES = (
    "Run accel_nb.doctor(), and launch once with env={'NCCL_DEBUG': 'WARN'} to see NCCL's own reason; if it names a "
    "transport, NCCL_P2P_DISABLE=1 or NCCL_IB_DISABLE=1 go round it."
)


def _shared_gpu(match: Match[str]) -> str:
    first, second, bus_id = match.groups()
    return f"These are ranks {first} and {second}, on the GPU in PCI slot {pci_slot_of(bus_id)}." if bus_id else ""


NCCL = (
    Known(
        "nccl without gpus",
        r"doesn't have nccl built in|processgroupnccl is only supported with gpus",
        "The process group was to use NCCL, and this rank has none: torch was built without it, or no GPU is visible.",
        "Leave the backend out of init_process_group, which then takes what fits the ranks' devices, or launch on GPUs "
        "(device='cuda').",
    ),
    Known(
        "nccl duplicate gpu",
        r"duplicate gpu detected(?:\s*:\s*rank (\d+) and rank (\d+) both on cuda device ([0-9a-f]+))?",
        "Two ranks compute on the same GPU, and NCCL needs one for each.",
        "Use torch.device('cuda', int(os.environ['LOCAL_RANK'])) or accelerator.device instead of a fixed 'cuda:0', "
        "and do not change CUDA_VISIBLE_DEVICES in the function.",
        _shared_gpu,
    ),
    Known(
        "nccl shared memory",
        r"error while (?:creating|attaching to) shared memory segment|failed to extend /dev/shm/nccl"
        r"|call to posix_fallocate failed",
        "NCCL found no room in /dev/shm, through which GPUs of one machine exchange data.",
        f"{MORE_SHARED_MEMORY}, or launch with env={{'NCCL_SHM_DISABLE': '1'}}, which is slower.",
    ),
    Known(
        "nccl version mismatch",
        r"mismatched nccl version|nccl version mismatch|incompatible nccl version|undefined symbol: nccl",
        "Two versions of NCCL meet: ranks, or torch and another package, have loaded different ones.",
        "Reinstall torch with its own nvidia-nccl package, take other copies of libnccl out of LD_LIBRARY_PATH and "
        "LD_PRELOAD, and use one environment on all machines.",
    ),
    Known(
        "nccl no interface",
        r"no socket interface found|(?:nccl|net/\w+).*no interface found"
        r"|ncclsocketinit: connecting to address\s+with family \d+ is neither",
        "NCCL found no network interface of the name it was told to use, or none at all.",
        "Unset NCCL_SOCKET_IFNAME, or set it to a name that `ip -brief address` lists; ranks of one machine can use "
        "'lo'.",
    ),
    Known(
        "nccl watchdog",
        r"watchdog caught collective operation timeout|collective operation timeout: worknccl",
        "This rank waited in a collective operation until its time was up: another rank never called it, or called "
        "something else.",
        "Look at where the other ranks were (Run.stacks(), rank_N.log). " + SAME_CALLS,
    ),
    Known(
        "nccl remote exit",
        r"remote process exited or there was a network error|ncclremoteerror",
        "The rank at the other end of an NCCL connection has gone, or the network between them has.",
        "Look for the failure of another rank first: its log is beside this one; without one, run accel_nb.doctor().",
    ),
    Known(
        "nccl system error",
        r"nccl error.*unhandled system error|ncclsystemerror",
        "A system call of NCCL's failed: most often there is too little shared memory, no usable network interface, or "
        "no right to lock memory.",
        _NCCL_SWITCHES,
    ),
    Known(
        "nccl cuda error",
        r"nccl error.*unhandled cuda error|ncclunhandledcudaerror",
        "CUDA failed inside NCCL: a GPU that is out of memory or in a bad state, a driver older than this NCCL, or an "
        "earlier error of this rank that shows only now.",
        _NCCL_SWITCHES,
    ),
    Known(
        "nccl internal error",
        r"nccl error.*(?:internal error|invalid usage|invalid argument)|ncclinternalerror|ncclinvalidusage",
        "NCCL refused what it was given, or found its connections in a state it did not expect.",
        _NCCL_SWITCHES,
    ),
)


GLOO_AND_STORE = (
    Known(
        "gloo sizes differ",
        r"op\.preamble\.(?:roffset \+ op\.preamble\.)?length <=|received data size doesn't match expected size",
        "Ranks called different operations, or the same one with tensors of different sizes, and gloo ends the process "
        "when it notices.",
        SAME_CALLS,
    ),
    Known(
        "collectives differ",
        r"detected mismatch between collectives on ranks",
        "Ranks called different operations, or the same one with different shapes or dtypes.",
        SAME_CALLS,
    ),
    Known(
        "gloo no interface",
        r"unable to find address for:? \S+|\bgloo\b.*ifa != nullptr",
        "gloo found no network interface of that name, or no address of this host.",
        "Unset GLOO_SOCKET_IFNAME, or set it to a name that `ip -brief address` lists; ranks of one machine can use "
        "'lo'.",
    ),
    Known(
        "gloo cannot connect",
        r"gloo connectfullmesh failed|\bgloo\b.*(?:connect timeout|timed out connecting)|\bgloo\b.*connection refused",
        "The ranks cannot reach each other over the network interface that gloo has chosen, or one had ended before.",
        "Look for the failure of another rank first; on one machine set GLOO_SOCKET_IFNAME=lo, on several the "
        "interface that all can reach, and open its ports in the firewall.",
    ),
    Known(
        "gloo timeout",
        r"\bgloo\b.*timed out waiting \d+ms for (?:recv|send) operation|application timeout caused pair closure",
        "This rank waited in a collective operation until its time was up: another rank never called it, or called "
        "something else.",
        "Look at where the other ranks were (Run.stacks(), rank_N.log). " + SAME_CALLS,
    ),
    Known(
        "peer closed connection",
        r"\bgloo\b.*(?:connection closed by peer|connection reset by peer|socket closed|broken pipe)",
        "The rank at the other end of the connection has ended, by a failure of its own or by returning early.",
        "Look for that rank's failure first: its log is beside this one; when it returned, let all ranks make as many "
        "steps (even_batches=True, or `with accelerator.join_uneven_inputs([model], even_batches=False)`).",
    ),
    Known(
        "group made twice",
        r"trying to initialize the default process group twice",
        "The process group was made a second time in this rank: by an Accelerator or a framework, and by "
        "init_process_group.",
        "Make it once: leave out your own init_process_group when an Accelerator, Trainer or Fabric does it, or guard "
        "it with torch.distributed.is_initialized().",
    ),
    Known(
        "group not made",
        r"default process group has not been initialized",
        "An operation of torch.distributed was called before the process group was made, or after it was destroyed.",
        "Make the Accelerator (or call init_process_group) first in the function that is launched.",
    ),
    Known(
        "store address in use",
        r"eaddrinuse|server socket has failed to (?:listen|bind)",
        "Another process listens on this port: most often an earlier run that was left, or a second one with the same "
        "MASTER_PORT.",
        "Leave out use_port and any MASTER_PORT or init_method='tcp://...' of your own: the launcher gives each run a "
        "free port.",
    ),
    Known(
        "address in use",
        r"address already in use",
        "Another process, perhaps another rank, listens on the port that this rank wanted to open.",
        "Open it on one rank only (if accelerator.is_main_process), or use port 0 and read which one it became.",
    ),
)
