"""Nodes of a launch: notebook kernels on simulated hosts, and the cells that all of them run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.launch.engines.hosts import Host, Hosts, simulated_hosts
from tests.notebook_kernel import Executed, NotebookKernel

DEADLINE_S = 100.0
PORT = 29500

TRAIN = """
import os, signal, time
import torch
from accel_nb import Timeouts, notebook_launcher

def train(num_steps=5):
    torch.manual_seed(0)
    torch.distributed.init_process_group()
    rank = torch.distributed.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(num_steps):
        x = torch.randn(8, 4, generator=generator)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / torch.distributed.get_world_size()
        torch.distributed.all_reduce(mean)
        losses.append(mean.item())
    print("rank", rank, "on node", os.environ["GROUP_RANK"], os.environ["GLOO_SOCKET_IFNAME"])
    torch.distributed.destroy_process_group()
    return losses

def die_once(rank_that_dies):
    torch.distributed.init_process_group()
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if torch.distributed.get_rank() == rank_that_dies and attempt == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    torch.distributed.barrier()
    return attempt

def wait_for_rank_3(go_on):
    torch.distributed.init_process_group()
    while torch.distributed.get_rank() == 3 and not os.path.exists(go_on):
        time.sleep(0.05)
    torch.distributed.barrier()
    return "went on"

def return_early_on_rank_3():
    torch.distributed.init_process_group()
    for _ in range(3 if torch.distributed.get_rank() == 3 else 5):
        torch.distributed.all_reduce(torch.ones(1))

def wait():
    torch.distributed.init_process_group()
    torch.distributed.barrier()
    print("up")
    while True:
        time.sleep(0.1)
"""
"""What a notebook defines; the same on each node."""


class Node:
    """One of them."""

    def __init__(self, host: Host, node_rank: int) -> None:
        self.host = host
        self.node_rank = node_rank
        self.kernel = NotebookKernel(prefix=host.command())
        self.kernel.ok(TRAIN)

    def launch(self, function: str, **arguments: object) -> str:
        """The cell that each node runs; gives what `collect` and `until_up` take. `function`: with its arguments, as in
        ``train, (9,)``.
        """
        given = {
            "num_processes": 2, "device": "cpu", "num_nodes": 2, "node_rank": self.node_rank,
            "master_addr": "10.77.0.1", "use_port": PORT, "on_failure": "raise", **arguments,
        }  # fmt: skip
        told = ", ".join(f"{name}={value if name == 'timeouts' else repr(value)}" for name, value in given.items())
        return self.kernel.start(f"results = notebook_launcher({function}, {told}); print('RESULTS', list(results))")

    def collect(self, cell: str) -> Executed:
        return self.kernel.collect(cell, DEADLINE_S)

    def until_up(self, cell: str) -> None:
        """Until all ranks that this notebook shows have met."""
        self.kernel.wait_for(cell, "up", DEADLINE_S)

    def runs(self) -> list[str]:
        """What is left of runs on this host: all but the kernel, and warm servers with what they have forked ahead."""
        alive = {process for process in self.host.processes() if process.pid != self.kernel.pid}
        servers = {one for one in alive if "servers.warm_server" in " ".join(one.cmdline())}
        ahead = {child for server in servers for child in server.children(recursive=True)}
        return [" ".join(process.cmdline()) for process in alive - servers - ahead]


class Nodes:
    """A kernel on each host."""

    def __init__(self, hosts: Hosts) -> None:
        self.all = [Node(host, index) for index, host in enumerate(hosts)]

    def launch(self, function: str, **arguments: object) -> list[str]:
        """The same cell on each node."""
        return [node.launch(function, **arguments) for node in self.all]

    def collect(self, cells: list[str]) -> list[Executed]:
        return [node.collect(cell) for node, cell in zip(self.all, cells, strict=True)]

    def run(self, function: str, **arguments: object) -> list[Executed]:
        """`launch` and `collect`."""
        return self.collect(self.launch(function, **arguments))


@contextmanager
def two_nodes(folder: Path) -> Iterator[Nodes]:
    with simulated_hosts(folder, 2) as hosts:
        nodes = Nodes(hosts)
        try:
            yield nodes
        finally:
            for node in nodes.all:
                node.kernel.shutdown()
