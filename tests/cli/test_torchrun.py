"""What torchrun has to be given, from options by Accelerate's names."""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from accel_nb.cli.torchrun import prepare_multi_gpu_env
from accel_nb.errors import InvalidArgument, PortInUse

SCRIPT = """
import os, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    print("ranks", dist.get_world_size(), os.environ["ACCELERATE_MIXED_PRECISION"], os.environ["MASTER_PORT"])
dist.destroy_process_group()
"""


def options(**given: object) -> argparse.Namespace:
    known: dict[str, object] = {
        "num_processes": 2, "num_machines": 1, "machine_rank": 0, "main_process_ip": "127.0.0.1",
        "main_process_port": 0, "mixed_precision": "no", "gpu_ids": "all", "debug": False,
    }  # fmt: skip
    return argparse.Namespace(**(known | given))


def test_torchrun_starts_the_ranks_that_were_asked_for(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    args = options(mixed_precision="BF16")

    variables = prepare_multi_gpu_env(args)
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={args.nproc_per_node}"),
            *(f"--master_port={args.master_port}", str(script)),
        ],
        env=variables, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["ranks", "2", "bf16", args.master_port]


def test_devices_threads_and_debugging_become_variables() -> None:
    variables = prepare_multi_gpu_env(
        options(gpu_ids="2,0", debug=True, num_cpu_threads_per_process=3, dynamo_backend="inductor")
    )

    assert variables["CUDA_VISIBLE_DEVICES"] == "2,0"
    assert variables["ACCELERATE_DEBUG_MODE"] == "true"
    assert variables["OMP_NUM_THREADS"] == "3"
    assert variables["ACCELERATE_DYNAMO_BACKEND"] == "inductor"


@pytest.mark.parametrize("same_network", [False, True])
def test_of_several_machines_each_is_told_where_the_first_is(same_network: bool) -> None:
    args = options(
        num_processes=4, num_machines=2, machine_rank=1, main_process_ip="10.0.0.1", main_process_port=None,
        same_network=same_network,
    )  # fmt: skip

    prepare_multi_gpu_env(args)

    assert (args.nproc_per_node, args.nnodes, args.node_rank) == ("2", "2", 1)
    if same_network:
        assert (args.master_addr, args.master_port) == ("10.0.0.1", "29500")
    else:
        assert args.rdzv_endpoint == "10.0.0.1:29500"


def test_a_port_that_somebody_has_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PortInUse, match="is taken by pid"):
        prepare_multi_gpu_env(options(main_process_port=taken.getsockname()[1]))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_processes": 3, "num_machines": 2}, "--num-machines 2: num_processes is 3, of all 2 machines together"),
        ({"num_processes": None}, "--num-processes is left out, and torchrun has to be told"),
        ({"num_machines": 2, "main_process_ip": None}, "--main-process-ip is left out"),
        ({"gpu_ids": "0,,1"}, "--gpu-ids: '0,,1' has an empty entry"),
        ({"use_fsdp": True}, "--use-fsdp: sharded models"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        prepare_multi_gpu_env(options(**given))
