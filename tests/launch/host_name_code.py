"""Run by test_host_names.py in a process of its own, whose name server is the test's."""

from __future__ import annotations

import contextlib
import socket
import sys


def sums() -> float:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total.item()


def asks() -> float:
    # Which the next ranks have, so that they connect to their store before they are asked for.
    import torch  # noqa: F401

    with contextlib.suppress(OSError):
        socket.gethostbyname("node7.example")
    with contextlib.suppress(OSError):
        socket.gethostbyaddr("192.0.2.7")
    return 0.0


def by_torch_alone() -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, not in __all__

    TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def main(what: str, port: str | None = None) -> None:
    from accel_nb import notebook_launcher

    if what == "by_torch_alone":
        by_torch_alone()
    else:
        # The second is on ranks that were forked ahead.
        for _ in range(2):
            use_port = None if port is None else int(port)
            function = {"sums": sums, "asks": asks}[what]
            print(list(notebook_launcher(function, num_processes=2, device="cpu", use_port=use_port)))


if __name__ == "__main__":
    main(*sys.argv[1:])
