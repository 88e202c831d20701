"""How long launches on a Ray cluster take: the first, which starts actors, and those after it, which find them.

    python benchmarks/ray_relaunch.py [--ranks N] [--launches N]

The cluster is that of RAY_ADDRESS, else one that Ray starts on this machine, with a CPU per rank. Timed is the whole
call of a function that does nothing, until its values are back. What Ray takes to start the cluster is told beside.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import time

import ray

from accel_nb import notebook_launcher
from accel_nb.launch import engines


def rank() -> int:
    return int(os.environ["RANK"])


def call_s(ranks: int) -> float:
    begun = time.perf_counter()
    values = notebook_launcher(rank, num_processes=ranks, device="cpu", backend="ray")
    took = time.perf_counter() - begun
    if list(values) != list(range(ranks)):
        raise RuntimeError(f"the ranks gave {list(values)}")
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--launches", type=int, default=10, help="after the first")
    options = parser.parse_args()

    begun = time.perf_counter()
    given = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": options.ranks, "include_dashboard": False}
    ray.init(log_to_driver=False, logging_level=logging.ERROR, **given)
    print(f"cluster         {time.perf_counter() - begun:8.2f} s")
    print(f"first launch    {call_s(options.ranks):8.2f} s")
    later = [call_s(options.ranks) for _ in range(options.launches)]
    print(f"second launch   {later[0]:8.2f} s")
    print(f"later launches  {statistics.median(later):8.2f} s in the median, {min(later):.2f} s at best")
    engines.let_go()
    ray.shutdown()


if __name__ == "__main__":
    main()
