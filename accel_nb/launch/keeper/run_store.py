"""The key-value store of one run, hosted by its keeper on a socket that was bound before anybody needed it."""

from __future__ import annotations

import os
import socket

from ..host_names import look_up_in_hosts_file
from ..planning.ports import bind_loopback


class RunStore:
    """A TCPStore on the loopback interface. Gives the process threads: nothing may be forked from it afterwards.

    Nor does the process look up names of other machines from then on.
    """

    def __init__(self, listening_fd: int | None = None) -> None:
        """`listening_fd`: a bound, listening socket, owned from now on; None binds a port of the system's choice.

        The socket is held from its reservation to the end of the run, so that no port can be lost to another process.
        """
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, not in __all__

        look_up_in_hosts_file()
        listener = bind_loopback(None) if listening_fd is None else socket.socket(fileno=listening_fd)
        self.host: str
        self.port: int
        self.host, self.port = listener.getsockname()
        os.set_inheritable(listener.fileno(), False)
        self._store: TCPStore | None = TCPStore(
            self.host,
            self.port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
            use_libuv=False,  # torch 2.6's libuv server takes no listening descriptor; the plain one always does
        )

    def close(self) -> None:
        """Give the port back: from here on another run may ask for it."""
        self._store = None
