"""What a launch begins with, for tests that play the kernel's part themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from accel_nb.launch.engines.engine import Attempt
from accel_nb.launch.payload.packing import pack
from accel_nb.launch.planning.hardware import probe_node
from accel_nb.launch.planning.planner import make_plan
from accel_nb.launch.rank import surroundings
from accel_nb.protocol import environment
from accel_nb.protocol.plan import LaunchRequest


@contextlib.contextmanager
def attempt_of(function: Callable[..., object], *args: object, log_dir: Path) -> Iterator[Attempt]:
    """The first attempt of `function` on two CPU ranks."""
    variables = environment.current()
    request = LaunchRequest(num_processes=2, device="cpu", function_name=function.__name__)
    plan = make_plan(request, probe_node(), kernel_env=variables, run_id="by-hand")
    with pack(function, args, {}) as packed:
        yield Attempt(
            plan=plan,
            payload_fd=packed.fd,
            surroundings=surroundings.of_this_process(variables),
            log_dir=log_dir,
        )
