"""The recording of a run is read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_nb.launch import recording
from accel_nb.launch.recording import recorded_events
from accel_nb.protocol.events import LogLines, Notice, RunEvent
from accel_nb.protocol.wire import event_line


def record(folder: Path, events: list[RunEvent], rest: bytes = b"") -> None:
    (folder / "run.jsonl").write_bytes(b"".join(map(event_line, events)) + rest)


def test_o14_events_come_back_in_their_order(tmp_path: Path) -> None:
    events: list[RunEvent] = [Notice(text="begins", sequence=1), LogLines(rank=0, text="a\nb", sequence=2)]
    record(tmp_path, events)

    assert recorded_events(tmp_path) == events


def test_a_line_that_is_still_written_and_a_kind_of_a_later_version_are_left_out(tmp_path: Path) -> None:
    record(tmp_path, [Notice(text="known")], b'{"type":"of_tomorrow","x":1}\n{"type":"notice","te')

    assert recorded_events(tmp_path) == [Notice(text="known")]


def test_a_run_that_has_recorded_nothing_has_no_events(tmp_path: Path) -> None:
    assert recorded_events(tmp_path) == []


def test_of_a_long_recording_the_beginning_and_the_end_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "HEAD_BYTES", 200)
    monkeypatch.setattr(recording, "TAIL_BYTES", 300)
    record(tmp_path, [LogLines(rank=0, text=f"line {number}", sequence=number) for number in range(1, 1001)])

    numbers = [event.sequence for event in recorded_events(tmp_path)]

    assert numbers[:3] == [1, 2, 3]
    assert numbers[-3:] == [998, 999, 1000]
    assert numbers == sorted(set(numbers))
    assert len(numbers) < 30
