"""For launchers of one's own on top of torchrun: its arguments and environment, from options by Accelerate's names."""

from __future__ import annotations

import argparse

from ..errors import InvalidArgument
from ..launch.planning.ports import bind_loopback
from ..launch.settings.launch_settings import device_ids, on_each_machine, variables_of
from ..protocol import environment
from .upstream_names import REFUSED_FLAGS, spellings

DEFAULT_PORT = 29500
"""torchrun's own."""


def prepare_multi_gpu_env(args: argparse.Namespace) -> dict[str, str]:
    """What ``accelerate.utils.launch.prepare_multi_gpu_env`` (Accelerate 1.15) does, for options by its names.

    Gives the environment for ``torch.distributed.run``: this process's own, with what `args` say of precision,
    devices and compilation. Sets on `args` what torchrun reads: ``nproc_per_node`` and, for one machine,
    ``master_port``; for several ``nnodes``, ``node_rank`` and ``rdzv_endpoint``, or ``master_addr`` and
    ``master_port`` in the same network. ``main_process_port``: 0 takes a free one, None 29500.

    Raises InvalidArgument for what this version does not have, for what is left out that torchrun needs, and for ranks
    that do not divide among the machines; PortInUse for a port of this machine that somebody else has.
    """
    for name in REFUSED_FLAGS:
        if getattr(args, name, False):
            raise InvalidArgument(f"{spellings(name)[0]}: {REFUSED_FLAGS[name]}. Leave it out.")
    if args.num_processes is None:
        raise InvalidArgument("--num-processes is left out, and torchrun has to be told how many ranks to start.")
    if args.num_machines > 1 and not args.main_process_ip:
        raise InvalidArgument("--main-process-ip is left out: the other machines have to be told where the first is.")
    devices = _devices(args)
    host, port = args.main_process_ip, _port(args)
    if args.num_machines > 1:
        _spread_over_machines(args, host, port)
    else:
        args.nproc_per_node, args.master_port = str(args.num_processes), str(port)
    variables = environment.current() | variables_of(vars(args))
    variables["ACCELERATE_MIXED_PRECISION"] = str(args.mixed_precision).lower()
    if args.debug:
        variables["ACCELERATE_DEBUG_MODE"] = "true"
    if devices is not None:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, devices))
    return variables


def _devices(args: argparse.Namespace) -> tuple[int | str, ...] | None:
    try:
        return device_ids(str(args.gpu_ids or "all"))
    except ValueError as error:
        raise InvalidArgument(f"--gpu-ids: {error}.") from error


def _port(args: argparse.Namespace) -> int:
    port = DEFAULT_PORT if args.main_process_port is None else int(args.main_process_port)
    if args.num_machines <= 1 or int(args.machine_rank) == 0:
        with bind_loopback(port or None) as listener:
            port = int(listener.getsockname()[1])
    args.main_process_port = port
    return port


def _spread_over_machines(args: argparse.Namespace, host: str, port: int) -> None:
    try:
        args.nproc_per_node = str(on_each_machine(args.num_processes, args.num_machines))
    except ValueError as error:
        raise InvalidArgument(f"--num-machines {args.num_machines}: {error}.") from error
    args.nnodes, args.node_rank = str(args.num_machines), int(args.machine_rank)
    if getattr(args, "same_network", False):
        args.master_addr, args.master_port = str(host), str(port)
    else:
        args.rdzv_endpoint = f"{host}:{port}"
