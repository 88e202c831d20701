"""Which collectives a state works with: plain ones, or checked ones."""

from __future__ import annotations

from ...errors import TrainingError
from ..ranks.process_group import RankFacts
from . import group_store
from .ledger_comparison import LedgerComparison, run_ledger
from .shape_checks import Checked, StoreComparison
from .transport import Collectives, collectives_of


def checks_by_default(facts: RankFacts) -> bool:
    """Whether ranks compare their operations if nobody has said so: where it costs next to nothing."""
    return facts.num_processes > 1 and run_ledger(facts) is not None


def choose_collectives(facts: RankFacts, *, checked: bool) -> Collectives:
    """The ranks' collectives. `checked`: what ranks do not call alike is refused on all of them; every rank must say so
    at the same point. One rank alone has nothing to compare.

    In a launch of ours ranks compare through its ledger, and torch.distributed's own operations obey `checked`, too.
    TrainingError for checks where there is neither a ledger nor a store.
    """
    plain = collectives_of(facts)
    if facts.num_processes == 1:
        return plain
    own = run_ledger(facts)
    if own is not None:
        own.compares = checked
        return Checked(plain, LedgerComparison(own, facts.timeout))
    if not checked:
        return plain
    store = group_store.group_store()
    if store is None:
        raise TrainingError(
            f"shape checks need a store, and the process group of backend {facts.backend!r} has none. "
            "Start without ACCELERATE_DEBUG_MODE, or with gloo or NCCL."
        )
    return Checked(plain, StoreComparison(store, facts.process_index, facts.num_processes, facts.timeout))
