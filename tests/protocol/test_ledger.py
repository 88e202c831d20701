from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from accel_nb.protocol import ledger
from accel_nb.protocol.ledger import LedgerPage, RankLedger


@pytest.fixture
def page() -> LedgerPage:
    page = LedgerPage(2)
    os.close(page.fd)
    return page


def test_a_rank_that_has_noted_nothing(page: LedgerPage) -> None:
    notes = page.notes(1)

    assert (notes.life, notes.number, notes.call, notes.activity, notes.num_steps) == (0, 0, None, "", 0)


def test_a_call_is_read_as_it_was_noted(page: LedgerPage) -> None:
    own = RankLedger(page, 1)

    number = own.begin("accel_nb.utils.gather", "[4, 2] float32", "Cell In[3]", 7)

    call = page.notes(1).call
    assert call is not None
    assert (call.operation, call.given) == ("accel_nb.utils.gather", "[4, 2] float32")
    assert (call.file, call.line) == ("Cell In[3]", 7)
    assert (call.number, call.ended_ns) == (number, 0) == (page.number(1), 0)
    assert call.begun_ns > 0
    assert page.number(0) == 0

    own.end(number)

    ended = page.call(1, number)
    assert ended is not None
    assert ended.ended_ns >= call.begun_ns


def test_signatures_are_equal_when_operation_and_given_are(page: LedgerPage) -> None:
    ranks = [RankLedger(page, rank) for rank in range(2)]
    calls = ["gather [4]", "gather [4]", "gather [3]", "gather [4]", "gather []", "reduce []"]

    numbers = [ranks[index % 2].begin(call.split()[0], call.split()[1], "", 0) for index, call in enumerate(calls)]

    signatures = [page.signature(index % 2, number) for index, number in enumerate(numbers)]
    assert numbers == [1, 1, 2, 2, 3, 3]
    assert signatures[0] == signatures[1] != 0
    assert signatures[2] != signatures[3] == signatures[0]
    assert signatures[4] != signatures[5]
    assert RankLedger(page, 0).begin("backward", "", "", 0, compared=False) == 1
    assert page.signature(0, 1) == 0


def test_what_another_thread_is_in_is_read_while_it_is(page: LedgerPage) -> None:
    own = RankLedger(page, 0)
    own.begin_generation(2)

    with own.elsewhere("gather", "Cell In[3]", 7), own.elsewhere("reduce", "Cell In[3]", 8):
        inside = page.notes(0)
        assert not page.are_aligned(2)
        assert page.are_aligned(1)

    assert (inside.elsewhere, inside.elsewhere_file, inside.elsewhere_line) == ("reduce", "Cell In[3]", 8)
    assert inside.elsewhere_since_ns > 0
    assert inside.num_elsewhere == (2 << ledger.GENERATION_BITS) + 2
    after = page.notes(0)
    assert (after.elsewhere, after.elsewhere_since_ns, after.number) == ("", 0, 2 << ledger.GENERATION_BITS)


def test_only_the_newest_calls_are_kept(page: LedgerPage) -> None:
    own = RankLedger(page, 0)
    for turn in range(ledger.NUM_CALLS + 3):
        own.end(own.begin("gather", f"[{turn}]", "", 0))

    assert page.call(0, 3) is None
    assert page.signature(0, 3) is None
    assert page.call(0, ledger.NUM_CALLS + 4) is None
    kept = [page.call(0, number) for number in range(4, ledger.NUM_CALLS + 4)]
    assert [call and call.given for call in kept] == [f"[{turn}]" for turn in range(3, ledger.NUM_CALLS + 3)]


def test_each_process_group_counts_anew_above_all_earlier_ones(page: LedgerPage) -> None:
    own = RankLedger(page, 0)
    first = own.begin("gather", "", "", 0)
    own.begin_generation(1)
    second = own.begin("gather", "", "", 0)

    assert (first, second) == (1, (1 << ledger.GENERATION_BITS) + 1)
    assert page.number(0) == second


def test_texts_beyond_their_room_begin_anew(page: LedgerPage) -> None:
    own = RankLedger(page, 0)
    neighbour = RankLedger(page, 1)
    neighbour.begin("neighbour", "n", "file", 1)

    for turn in range(200):
        number = own.begin("operation", f"{turn} " + "x" * 5000, "a file", turn)
        call = page.call(0, number)
        assert call is not None
        assert (call.operation, call.given[:6]) == ("operation", f"{turn} xxxxxx"[:6])
        assert (call.file, call.line) == ("a file", turn)
        own.end(number)
    notes = page.notes(1)
    assert notes.call is not None
    assert (notes.call.operation, notes.call.given, notes.call.file) == ("neighbour", "n", "file")


def test_activities_nest(page: LedgerPage) -> None:
    own = RankLedger(page, 0)

    with own.activity("next batch", "Cell In[1]", 3):
        with own.activity("inner"):
            assert page.notes(0).activity == "inner"
        notes = page.notes(0)
        assert (notes.activity, notes.activity_file, notes.activity_line) == ("next batch", "Cell In[1]", 3)
        assert notes.activity_since_ns > 0
    assert page.notes(0).activity == ""


def test_a_step_counts_what_the_rank_did_alone(page: LedgerPage, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000]
    monkeypatch.setattr("time.monotonic_ns", lambda: now[0])
    own = RankLedger(page, 0)

    def passes(nanoseconds: int) -> None:
        now[0] += nanoseconds

    own.step()
    with own.activity("next batch", counts_as_own=True):
        passes(30)
    passes(20)
    with own.activity("backward"):
        passes(400)
    number = own.begin("gather", "", "", 0)
    passes(100)
    own.end(number)
    own.step()

    notes = page.notes(0)
    assert (notes.num_steps, notes.own_ns, notes.input_ns) == (2, 50, 30)


def test_another_process_reads_and_a_child_of_the_rank_does_not_write() -> None:
    page = LedgerPage(1)
    own = RankLedger(page, 0)
    own.begin("gather", "[1]", "", 0)
    code = f"""
        from accel_nb.protocol.ledger import LedgerPage
        print(LedgerPage(1, {page.fd}).notes(0).call.given)
    """

    seen = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], pass_fds=[page.fd], capture_output=True, text=True, check=True
    )

    os.close(page.fd)
    assert seen.stdout == "[1]\n"
    ledger.open_own(own)
    try:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if ledger.own() is None else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert ledger.own() is own
    finally:
        ledger.open_own(None)


def test_the_last_call_before_a_generation_is_kept(page: LedgerPage) -> None:
    own = RankLedger(page, 1)
    own.begin_generation(1)
    last = own.begin("gather", "", "", 0)

    for generation in (2, 3):  # closed, and opened again
        own.begin_generation(generation)

    assert page.number_before(1) == last
    assert page.number(1) == 3 << ledger.GENERATION_BITS
    assert own.begin("gather", "", "", 0) == page.number(1) == (3 << ledger.GENERATION_BITS) + 1


def test_a_call_that_did_not_take_place_gives_its_number_back(page: LedgerPage) -> None:
    own = RankLedger(page, 0)
    own.begin("gather", "[1]", "", 0)
    number = own.begin("reduce", "[2]", "", 0)

    own.withdraw(number)
    own.end(number)

    assert page.number(0) == number - 1
    assert page.signature(0, number) is None
    assert not own.inside
    assert own.begin("gather", "[3]", "", 0) == number


def test_waiting_for_others_within_an_activity_is_no_time_of_its_own(page: LedgerPage) -> None:
    own = RankLedger(page, 0)
    own.step()

    with own.activity("next batch", counts_as_own=True):
        number = own.begin("broadcast", "", "", 0)
        time.sleep(0.05)
        own.end(number)
    own.step()

    notes = page.notes(0)
    assert notes.input_ns < 30_000_000
    assert notes.own_ns < 30_000_000


def test_calls_that_never_repeat_do_not_pile_up(page: LedgerPage) -> None:
    own = RankLedger(page, 0)

    for length in range(10_000):
        own.begin("gather", f"[{length}] float32", "train.py", 3)

    assert len(own._notes) < 5_000
    call = page.call(0, page.number(0))
    assert call is not None
    assert (call.operation, call.given, call.file) == ("gather", "[9999] float32", "train.py")


def test_only_the_thread_of_the_function_may_write(page: LedgerPage) -> None:
    own = RankLedger(page, 0)
    answers: list[bool] = []

    thread = threading.Thread(target=lambda: answers.append(own.may_write))
    thread.start()
    thread.join()

    assert own.may_write
    assert answers == [False]
