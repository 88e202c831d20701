"""Ranks compare their calls through the page; here two or three ledgers of one process play the ranks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from accel_nb.errors import AnotherRankFailed, DistributedOperationException
from accel_nb.protocol import agreement, sink
from accel_nb.protocol.events import CollectiveMismatch, RunEvent
from accel_nb.protocol.ledger import ENDED, FAILED, RETURNED, RUNNING, LedgerPage, RankLedger

FOREVER: Callable[[], None] = lambda: None  # noqa: E731


@pytest.fixture
def ranks() -> list[RankLedger]:
    page = LedgerPage(3)
    os.close(page.fd)
    ledgers = [RankLedger(page, rank) for rank in range(3)]
    for own in ledgers:
        own.live(RUNNING)
        own.begin_generation(1)
    return ledgers


def begin(own: RankLedger, given: str = "[2] float32", *, compared: bool = True) -> int:
    return own.begin("gather", given, "<Cell In[3]>", 7 + own.rank, compared=compared)


def refusal(own: RankLedger, number: int, **options: float) -> str:
    with pytest.raises(DistributedOperationException) as raised:
        agreement.agree(own, number, timeout_s=lambda: options.get("timeout_s"))
    return str(raised.value)


def test_calls_that_are_alike_go_through(ranks: list[RankLedger]) -> None:
    numbers = [begin(own) for own in ranks]

    assert [agreement.agree(own, n, timeout_s=FOREVER) for own, n in zip(ranks, numbers, strict=True)] == [""] * 3


def test_a_rank_waits_until_the_others_have_come(ranks: list[RankLedger]) -> None:
    numbers = [begin(own) for own in ranks[:2]]
    late = threading.Timer(0.2, lambda: begin(ranks[2]))
    late.start()
    started = time.monotonic()

    agreement.agree(ranks[0], numbers[0], timeout_s=FOREVER)

    assert 0.15 < time.monotonic() - started < 5
    late.join()


def test_every_rank_says_what_each_has_called_and_the_first_reports(ranks: list[RankLedger]) -> None:
    numbers = [begin(own, "[3] float32" if own.rank == 1 else "[2] float32") for own in ranks]
    events: list[RunEvent] = []
    sink.deliver_to(events.append)

    messages = [refusal(own, number) for own, number in zip(ranks, numbers, strict=True)]

    sink.deliver_to(None)
    assert len(set(messages)) == 1
    assert "\n  rank 0: [2] float32 (Cell In[3], line 7)\n  rank 1: [3] float32 (Cell In[3], line 8)\n" in messages[0]
    places = tuple(f"Cell In[3], line {7 + rank}" for rank in range(3))
    (event,) = events
    assert event == CollectiveMismatch(
        operations=("gather",) * 3, given=("[2] float32", "[3] float32", "[2] float32"), places=places
    )
    assert event.sentence.endswith("rank 2 gather([2] float32) (Cell In[3], line 9)")


def test_while_other_threads_have_called_more_on_one_rank_nobody_waits_or_compares(ranks: list[RankLedger]) -> None:
    number = begin(ranks[0])
    with ranks[1].elsewhere("gather", "", 0):
        assert agreement.agree(ranks[0], number, timeout_s=FOREVER) == ""
    begin(ranks[1], "[3] float32")
    begin(ranks[2])
    agreement.look(ranks[0], number)
    for own in (ranks[0], ranks[2]):
        with own.elsewhere("gather", "", 0):
            pass

    # Rank 1's first call may belong to what the others' threads have called since.
    agreement.look(ranks[0], number)
    second = [begin(own, f"[{2 + own.rank % 2}] float32") for own in ranks]
    assert "\n  rank 1: [3] float32 (Cell In[3], line 8)\n" in refusal(ranks[0], second[0])


def test_what_other_threads_called_in_another_process_group_is_forgotten(ranks: list[RankLedger]) -> None:
    with ranks[1].elsewhere("gather", "", 0):
        pass
    for own in ranks:
        own.begin_generation(2)
    numbers = [begin(own, f"[{own.rank}] float32") for own in ranks]

    refusal(ranks[0], numbers[0])


def test_who_only_looks_does_not_wait_and_finds_those_who_came_before(ranks: list[RankLedger]) -> None:
    first = begin(ranks[0])
    agreement.look(ranks[0], first)
    second = begin(ranks[1], "[3] float32")

    with pytest.raises(DistributedOperationException) as raised:
        agreement.look(ranks[1], second)

    assert "\n  rank 2: has not called it yet\n" in str(raised.value)


def test_a_difference_that_several_see_who_only_look_is_reported_once(ranks: list[RankLedger]) -> None:
    events: list[RunEvent] = []
    sink.deliver_to(events.append)

    for _ in range(2):
        numbers = [begin(own, f"[{own.rank}] float32") for own in ranks]
        for own, number in zip(ranks, numbers, strict=True):
            with pytest.raises(DistributedOperationException):
                agreement.look(own, number)

    sink.deliver_to(None)
    assert [event.given for event in events if isinstance(event, CollectiveMismatch)] == [
        ("[0] float32", "[1] float32", "[2] float32")
    ] * 2


def test_what_one_rank_does_not_compare_is_not_compared(ranks: list[RankLedger]) -> None:
    numbers = [begin(own, f"[{own.rank}]", compared=own.rank != 1) for own in ranks[:2]]
    begin(ranks[2], "[0]")

    for own, number in zip(ranks, numbers, strict=False):
        agreement.agree(own, number, timeout_s=FOREVER)


def test_a_rank_that_has_ended_never_comes(ranks: list[RankLedger]) -> None:
    number = begin(ranks[0])
    begin(ranks[1])
    ranks[2].step()
    ranks[2].live(ENDED)

    message = refusal(ranks[0], number)

    assert message.startswith(
        "rank 2 has returned from the function without calling gather, in which the others wait for it "
        "(Cell In[3], line 7). Optimizer steps so far: rank 0 0, rank 1 0, rank 2 1. Every rank has to call it"
    )


def test_a_rank_that_has_returned_may_come_while_it_ends(ranks: list[RankLedger]) -> None:
    """Out of a thread, or of what is registered with atexit."""
    number = begin(ranks[0])
    for own in ranks[1:]:
        own.live(RETURNED)
    late = threading.Timer(0.2, lambda: [begin(own) for own in ranks[1:]])
    late.start()

    agreement.agree(ranks[0], number, timeout_s=FOREVER)

    late.join()


def test_a_rank_that_has_ended_after_the_call_has_come(ranks: list[RankLedger]) -> None:
    numbers = [begin(own) for own in ranks]
    for own in ranks[1:]:
        own.live(ENDED)

    agreement.agree(ranks[0], numbers[0], timeout_s=FOREVER)


def test_to_wait_for_a_rank_that_failed_is_a_consequence(ranks: list[RankLedger]) -> None:
    number = begin(ranks[0])
    ranks[1].live(FAILED)

    with pytest.raises(AnotherRankFailed, match=r"^rank 1 has failed; gather \(Cell In\[3\], line 7\) cannot go on"):
        agreement.agree(ranks[0], number, timeout_s=FOREVER)


def test_after_the_time_out_it_says_where_the_others_are(
    ranks: list[RankLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "_LONG_S", 0.05)
    ranks[1].end(begin(ranks[1]))
    ranks[0].end(begin(ranks[0]))
    number = begin(ranks[0])

    with ranks[2].activity("backward", "<Cell In[4]>", 9):
        message = refusal(ranks[0], number, timeout_s=0.1)

    assert message == (
        "rank 0 of 3 waited 0.1 s in gather (Cell In[3], line 7) for rank 1 and rank 2. rank 1 has come out of gather "
        "(Cell In[3], line 8). rank 2 is in backward (Cell In[4], line 9). Every rank has to call it, in the same "
        "order."
    )


def test_a_rank_that_has_closed_the_group_without_the_call_is_named(ranks: list[RankLedger]) -> None:
    numbers = [begin(own) for own in ranks[:2]]
    ranks[2].begin_generation(2)

    assert agreement.agree(ranks[0], numbers[0], timeout_s=FOREVER).startswith(
        "rank 2 closed the process group without calling gather, in which the others wait (Cell In[3], line 7)."
    )


def test_a_rank_may_close_the_group_and_open_another_one_after_the_call(ranks: list[RankLedger]) -> None:
    numbers = [begin(own) for own in ranks]
    ranks[2].end(numbers[2])
    for generation in (2, 3):
        ranks[2].begin_generation(generation)
    begin(ranks[2], "something else")

    assert agreement.agree(ranks[0], numbers[0], timeout_s=FOREVER) == ""


def test_what_ends_a_wait_takes_the_call_back(ranks: list[RankLedger]) -> None:
    def leave() -> None:
        raise AnotherRankFailed("memory has run out")

    agreement.ask_while_waiting(leave)
    try:
        number = begin(ranks[0])
        with pytest.raises(AnotherRankFailed, match="memory has run out"):
            agreement.agree(ranks[0], number, timeout_s=FOREVER)
        ranks[0].end(number)
    finally:
        agreement._questions.remove(leave)

    assert begin(ranks[0]) == number


def test_a_wait_may_be_limited(ranks: list[RankLedger]) -> None:
    numbers = [begin(own) for own in ranks[:2]]

    assert agreement.agree(ranks[0], numbers[0], timeout_s=FOREVER, at_most_s=0.05) == ""


def test_unchecked_blocks_may_be_nested_and_count_for_their_thread() -> None:
    seen: list[bool] = []
    with agreement.unchecked():
        with agreement.unchecked():
            assert agreement.is_unchecked()
        assert agreement.is_unchecked()
        thread = threading.Thread(target=lambda: seen.append(agreement.is_unchecked()))
        thread.start()
        thread.join()
    assert not agreement.is_unchecked()
    assert seen == [False]
