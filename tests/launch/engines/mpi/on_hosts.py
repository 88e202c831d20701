"""A kernel on one of several simulated hosts: launches by mpirun and says on stdout, as JSON, what came of it."""

from __future__ import annotations

import json
import sys

from accel_nb.errors import AccelNbError
from accel_nb.launch.run import start_run
from accel_nb.launch.views.view import TextView
from accel_nb.protocol.plan import LaunchRequest, Timeouts
from tests.launch.engines.mpi import mpi_code


def shown(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def main(hostfile: str, function_name: str, num_processes: str) -> None:
    function = getattr(mpi_code, function_name)
    request = LaunchRequest(
        function_name=function_name,
        num_processes=int(num_processes),
        device="cpu",
        backend="mpi",
        hostfile=hostfile,
        timeouts=Timeouts(start_s=60),
    )
    run = start_run(request, function, (), {}, TextView(shown))
    try:
        run.draw_interruptibly()
        said = {"values": list(run.result()), "logs": [run.logs(rank) for rank in range(int(num_processes))]}
    except KeyboardInterrupt:
        said = {"interrupted": True}
    except AccelNbError as error:
        said = {"error": type(error).__name__, "text": str(error)}
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
