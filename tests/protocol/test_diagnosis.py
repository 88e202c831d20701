"""A diagnosis reads as text, and knows whether something is wrong."""

from __future__ import annotations

import msgspec

from accel_nb.protocol.diagnosis import Diagnosis, Fact, Finding

HINT = Finding(severity="hint", what="/dev/shm is 64 MiB.", why="It may fill.", remedy="Give it more.")
PROBLEM = Finding(severity="problem", what="torch is missing.", why="It is needed.", remedy="Install it.")
FACTS = (Fact(group="software", name="Python", value="3.11.7"), Fact(group="machine", name="CPUs", value="2 usable"))


def test_a_diagnosis_without_findings_says_that_nothing_is_wrong() -> None:
    found = Diagnosis(facts=FACTS)

    assert found.healthy
    assert str(found).splitlines() == [
        "software", "  Python  3.11.7", "machine", "  CPUs    2 usable", "", "nothing is wrong",
    ]  # fmt: skip


def test_hints_leave_a_machine_healthy() -> None:
    found = Diagnosis(findings=(HINT, HINT))

    assert found.healthy
    assert found.verdict == "nothing is wrong, 2 hints"


def test_a_problem_is_told_with_its_reason_and_what_to_do() -> None:
    found = Diagnosis(findings=(PROBLEM, HINT))

    assert not found.healthy
    assert found.verdict == "1 problem, 1 hint"
    assert repr(found) == str(found)
    assert str(found).splitlines()[2:5] == [
        "", "problem: torch is missing.", "  why It is needed.",
    ]  # fmt: skip
    assert "  do  Install it." in str(found)


def test_long_texts_are_wrapped() -> None:
    long = Finding(severity="problem", what="word " * 60, why="word " * 60, remedy="word " * 60)

    assert max(map(len, str(Diagnosis(findings=(long,))).splitlines())) <= 110


def test_a_diagnosis_can_be_sent() -> None:
    found = Diagnosis(facts=FACTS, findings=(PROBLEM, HINT))

    assert msgspec.json.decode(msgspec.json.encode(found), type=Diagnosis) == found
