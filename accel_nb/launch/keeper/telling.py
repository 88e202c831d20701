"""What a keeper passes on between the kernel and its ranks besides the run itself: messages to ranks that are kept from
cell to cell, stacks, and what may be known of the next launch.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence

from ...protocol.commands import GroupOpened, InterruptRanks, RunCell, RunCommand, Stacks, ToRanks
from ...protocol.ledger import LedgerPage
from ..channel import Channel
from .rank_process import RankProcess
from .stacks import RankStacks


def tell_ranks(command: ToRanks | InterruptRanks, ranks: Sequence[RankProcess], kernel: Channel[RunCommand]) -> None:
    """Carry out `command`, whose descriptors came over `kernel`. A rank that is gone is left out: its end is told."""
    told = [rank for rank in ranks if rank.rank in command.ranks]
    if isinstance(command, InterruptRanks):
        for rank in told:
            rank.send_signal(signal.SIGINT)
        return
    fds = [kernel.take_fd()] if isinstance(command.message, RunCell) else []
    for rank in told:
        rank.channel.send(command.message, fds)
    for fd in fds:
        os.close(fd)


def tell_stacks(kernel: Channel[RunCommand], stacks: Mapping[int, RankStacks]) -> None:
    """What was asked for."""
    kernel.send(Stacks(text_by_rank={rank: texts.readable for rank, texts in stacks.items()}))


def tell_opened_group(page: LedgerPage, send: Callable[[GroupOpened], None]) -> None:
    """Say so when a rank has opened the process group that was planned for."""
    if any(page.has_opened_group(rank) for rank in range(page.num_ranks)):
        send(GroupOpened())
