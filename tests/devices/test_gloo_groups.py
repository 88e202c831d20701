"""Groups of CPU ranks that are closed while modules still use them."""

from __future__ import annotations

import pytest

from tests.launch.launching import launch

NUM_ROUNDS = 40


def closes_groups_under_modules(num_rounds: int) -> tuple[int, int]:
    """Threads before and after: each round a module outlives its group, and what it sent last is dropped at once."""
    import time

    import torch
    from torch import distributed, nn

    from accel_nb.launch.processes import thread_names

    def one_round() -> None:
        distributed.init_process_group("gloo")
        module = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
        module(torch.ones(2, 8)).sum().backward()
        for _ in range(3):
            distributed.all_reduce(torch.ones(1))
        distributed.destroy_process_group()
        del module

    def num_threads() -> int:
        time.sleep(0.1)
        return len(thread_names())

    one_round()
    one_round()
    before = num_threads()
    for _ in range(num_rounds):
        one_round()
    return before, num_threads()


@pytest.mark.timeout(100)
def test_a_module_that_outlives_its_group_ends_without_a_deadlock() -> None:
    """Without care about one round in thirty hangs (torch 2.13)."""
    launched = launch(closes_groups_under_modules, NUM_ROUNDS)

    for before, after in launched.values:
        assert after <= before, "groups end when their modules have"


def forks_when_others_wait_for_the_gil(num_forks: int) -> int:
    """How often a thread that waited for the GIL has had it when the process forked."""
    import os
    import sys
    import threading
    import time

    from torch import distributed

    distributed.init_process_group("gloo")
    # From now on nobody gets the GIL who is not given it.
    sys.setswitchinterval(60)

    def fork_beside_a_waiting_thread() -> bool:
        had_it = threading.Event()
        waits = threading.Event()

        def wait_for_the_gil() -> None:
            waits.set()
            time.sleep(0.01)
            had_it.set()

        threading.Thread(target=wait_for_the_gil).start()
        waits.wait()
        busy_until = time.perf_counter() + 0.2
        while time.perf_counter() < busy_until:
            pass
        if had_it.is_set():
            return False  # this thread was woken too late: none waits
        pid = os.fork()
        if pid == 0:
            os._exit(0 if had_it.is_set() else 1)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    return sum(fork_beside_a_waiting_thread() for _ in range(num_forks))


def test_a_rank_forks_when_the_threads_of_its_group_have_come_to_rest() -> None:
    """Else one DataLoader worker in thousands waits for ever for what a thread of gloo held when it was forked."""
    # A busy machine may not wake the thread in time; without care it never has the GIL.
    assert all(times > 0 for times in launch(forks_when_others_wait_for_the_gil, 8).values)
