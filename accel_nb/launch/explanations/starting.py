"""What is said by whatever else starts ranks: frameworks inside a rank, mpirun, ssh."""

from __future__ import annotations

from .known import Known

WARNINGS = (
    Known(
        "linux kernel",
        r"detected kernel version [\d.]+, which is below the recommended minimum|linux kernel is [\d.]+\. before 5\.5",
        "Linux kernels before 5.5 are known to make ranks hang.",
        "Update the machine's kernel to 5.5 or newer if ranks stop without an error.",
    ),
)
"""What explains no death when it is among the last lines: whoever printed it went on."""

LAUNCHERS = (
    Known(
        "launcher in a rank",
        r"lightning can't create new processes if cuda is already initialized"
        r"|strategy=.{0,40}is not compatible with an interactive"
        r"|`accelerator` should only be initialized inside your training function"
        r"|an issue was found when launching the training",
        "Code in the launched function tries to start ranks itself, and it is in one already.",
        "Start ranks in one place: take the inner launcher away (accelerate's notebook_launcher, "
        "strategy='ddp_notebook' or 'ddp_spawn' of Lightning's; strategy='ddp' with devices=num_processes joins the "
        "ranks that are here).",
    ),
    Known(
        "ssh host key",
        r"host key verification failed",
        "ssh does not know a host yet, and nobody is there whom it could ask.",
        "Log in once by hand (`ssh HOST true`) from this machine, or add the host with ssh-keyscan; mpirun reaches its "
        "hosts by ssh, too.",
    ),
    Known(
        "ssh denied",
        r"permission denied \((?:publickey|password|gssapi|keyboard)|permission denied, please try again",
        "A host refused the login by ssh, or wants a password, which nobody is there to type.",
        "Make ssh work without one (ssh-keygen, ssh-copy-id HOST); mpirun starts its ranks that way, and "
        "`mpirun -f hostfile -n N -ppn 1 hostname` must answer without a question.",
    ),
    Known(
        "mpi daemon missing",
        r"(?:orted|prted|hydra_pmi_proxy|pmi_proxy): (?:command )?not found"
        r"|(?:orted|prted|hydra_pmi_proxy).*no such file",
        "Another host does not find the MPI that mpirun starts there.",
        "Install the same MPI there at the same path, and set PATH in what non-interactive shells read; or call "
        "mpirun by its full path (Open MPI: --prefix).",
    ),
    Known(
        "mpi daemons did not start",
        r"unable to reliably start one or more daemons|prte has lost communication with a remote daemon"
        r"|hydu_sock_connect.*unable to connect|hydt_bscd_\w+.*(?:error|failed)",
        "mpirun could not start its helpers on another host, or they cannot call back: ssh, a missing MPI, a firewall.",
        "Check with `mpirun -f hostfile -n N -ppn 1 hostname`, and name the network that all hosts share (Open MPI: "
        "--mca btl_tcp_if_include, --mca oob_tcp_if_include).",
    ),
)
