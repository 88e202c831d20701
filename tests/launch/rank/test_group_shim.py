"""``init_process_group`` in ranks, wherever torch has copied it to."""

from __future__ import annotations

import re

from tests.launch.launching import on_ranks


def test_r02_a_device_mesh_makes_a_group_of_the_run_each_time_anew() -> None:
    """`init_device_mesh` calls a copy that its module took at import; the second call would meet the first's keys."""

    def meshes() -> list[float]:
        import torch
        from torch import distributed
        from torch.distributed.device_mesh import init_device_mesh

        sums = []
        for number in range(5):
            mesh = init_device_mesh("cpu", (2,))
            value = torch.tensor([mesh.get_rank() + float(number)])
            distributed.all_reduce(value, group=mesh.get_group())
            sums.append(value.item())
            distributed.destroy_process_group()
        return sums

    assert on_ranks(meshes) == [[1.0, 3.0, 5.0, 7.0, 9.0]] * 2


def test_every_copy_of_the_function_is_wrapped() -> None:
    def copies() -> list[str]:
        import sys

        from torch import distributed

        wrapped = distributed.init_process_group
        original = wrapped.__wrapped__  # type: ignore[attr-defined]  # set by functools.wraps
        return [name for name, module in list(sys.modules.items()) if vars(module).get(original.__name__) is original]

    assert on_ranks(copies) == [[], []]


def test_a_destroyed_group_closes_its_connections_soon() -> None:
    def connections() -> list[int]:
        import time

        import torch
        from torch import distributed

        from accel_nb.launch.processes import open_fds

        def num_sockets() -> int:
            return len(open_fds())

        distributed.init_process_group("gloo")
        distributed.all_reduce(torch.ones(1))
        distributed.destroy_process_group()
        numbers = []
        for _ in range(5):
            distributed.init_process_group("gloo")
            distributed.all_reduce(torch.ones(1))
            opened = num_sockets()
            distributed.destroy_process_group()
            end = time.monotonic() + 20
            while (left := num_sockets()) >= opened and time.monotonic() < end:
                time.sleep(0.01)
            numbers.append(opened - left)
        return numbers

    for closed in on_ranks(connections):
        assert isinstance(closed, list)
        assert all(number > 0 for number in closed), closed


def test_a_rank_in_a_collective_is_freed_when_another_destroys_the_group() -> None:
    def freed() -> str:
        import torch
        from torch import distributed

        distributed.init_process_group("gloo")
        distributed.all_reduce(torch.ones(1))
        if distributed.get_rank() == 0:
            distributed.destroy_process_group()
            return "destroyed"
        try:
            torch.distributed.all_reduce(torch.ones(1))
        except RuntimeError as error:
            return str(error)
        return "went on"

    destroyed, waited = on_ranks(freed)

    assert destroyed == "destroyed"
    assert re.search(r"Connection (closed|reset) by peer", str(waited))
