"""What a keeper does for ranks that are kept from cell to cell: pass on what the kernel tells them, interrupt them."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from ...protocol.commands import InterruptRanks, RunCell, RunCommand, ToRanks
from ..channel import Channel
from .rank_process import RankProcess


def tell_ranks(command: ToRanks | InterruptRanks, ranks: Sequence[RankProcess], kernel: Channel[RunCommand]) -> None:
    """Carry out `command`, whose descriptors came over `kernel`. A rank that is gone is left out: its end is told."""
    told = [ranks[rank] for rank in command.ranks]
    if isinstance(command, InterruptRanks):
        for rank in told:
            rank.send_signal(signal.SIGINT)
        return
    fds = [kernel.take_fd()] if isinstance(command.message, RunCell) else []
    for rank in told:
        rank.channel.send(command.message, fds)
    for fd in fds:
        os.close(fd)
