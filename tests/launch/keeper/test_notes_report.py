from __future__ import annotations

from accel_nb.launch.keeper.notes_report import EVERY_S, NotesReport
from accel_nb.protocol.commands import GroupOpened, RanksDescribed, RanksNoted
from accel_nb.protocol.ledger import RETURNED
from tests.launch.keeper.noted import notes

Said = list[GroupOpened | RanksDescribed | RanksNoted]


def told_ranks(said: Said) -> list[list[int]]:
    """Of which ranks each message has notes."""
    return [[note.rank for note in one.notes] for one in said if isinstance(one, RanksNoted)]


def test_notes_are_told_when_they_are_asked_for_and_only_what_is_new() -> None:
    said: Said = []
    report = NotesReport(said.append)
    before, after = [notes(0), notes(1)], [notes(0), notes(1, num_steps=1)]

    report.look(before, 0.0)
    assert said == []
    report.ask()
    report.look(before, 0.0)
    report.look(after, EVERY_S)
    report.ask()
    report.look(before, EVERY_S)
    report.look(after, EVERY_S)

    assert told_ranks(said) == [[0, 1], [1]]


def test_notes_are_told_no_oftener_than_the_kernel_needs_them() -> None:
    said: Said = []
    report = NotesReport(said.append)

    for number in range(20):
        report.ask()
        report.look([notes(0, num_steps=number)], number * EVERY_S / 10)

    assert told_ranks(said) == [[0], [0]]


def test_that_a_rank_has_returned_is_told_without_delay() -> None:
    said: Said = []
    report = NotesReport(said.append)
    for at_s, picture in ((0.0, [notes(0), notes(1)]), (0.1, [notes(0), notes(1, life=RETURNED)])):
        report.ask()
        report.look(picture, at_s)

    assert told_ranks(said) == [[0, 1], [1]]


def test_what_is_new_is_told_without_being_asked_for_when_a_rank_has_failed() -> None:
    said: Said = []
    report = NotesReport(said.append)

    report.tell_now([notes(0), notes(1)])
    report.tell_now([notes(0), notes(1, num_steps=1)])
    report.tell_now([notes(0), notes(1, num_steps=1)])

    assert told_ranks(said) == [[0, 1], [1]]
