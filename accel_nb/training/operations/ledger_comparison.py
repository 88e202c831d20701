"""Compares what ranks are about to do through the ledger of their run: no message, and no cost worth naming."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from ...errors import DistributedOperationException
from ...protocol import agreement, ledger
from ...protocol.ledger import RankLedger
from ...protocol.places import users_place
from ..ranks.process_group import RankFacts
from . import abandoned


def run_ledger(facts: RankFacts) -> RankLedger | None:
    """This rank's, where the ranks of `facts` are those of its run, and all write there; None elsewhere."""
    own = ledger.own()
    belongs = own is not None and own.may_write and own.spans_run and own.page.num_ranks == facts.num_processes
    return own if own is not None and belongs and own.page.is_whole else None


class LedgerComparison:
    """`Comparison` where there is a ledger. Every operation is noted there, also while nothing is compared: who looks
    for the reason of a hang reads it. What another thread than the function's calls is not noted.
    """

    def __init__(self, own: RankLedger, timeout: timedelta) -> None:
        self._own = own
        self._timeout_s = timeout.total_seconds()
        agreement.ask_while_waiting(abandoned.check)

    @contextmanager
    def comparing(self, operation: str, given: str) -> Iterator[None]:
        own = self._own
        # After a fork the ledger is the parent's; within an operation its parts are not noted again.
        if ledger.own() is not own or own.inside or not own.may_write or not own.spans_run:
            yield
            return
        compared = own.compares and not agreement.is_unchecked()
        number = own.begin(operation, given, *users_place(), compared=compared)
        try:
            if compared:
                hopeless = agreement.agree(own, number, timeout_s=self._patience_s)
                if hopeless:
                    raise DistributedOperationException(hopeless)
            yield
        finally:
            own.end(number)

    def _patience_s(self) -> float:
        return self._timeout_s
