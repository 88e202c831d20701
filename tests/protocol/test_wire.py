"""Frames between processes and lines of recordings."""

from __future__ import annotations

import struct
from typing import get_args

import msgspec
import pytest

from accel_nb.protocol.events import LogLines, Notice, RunEnded, RunEvent
from accel_nb.protocol.wire import MAX_FRAME_BYTES, FrameReader, Skipped, event_from_line, event_line, frame

MESSAGES: list[RunEvent] = [Notice(text="ä"), LogLines(rank=3, text="x\ny", sequence=9), RunEnded(duration_s=0.5)]


def reader() -> FrameReader[RunEvent]:
    return FrameReader(RunEvent)


def test_frames_come_back_whole_however_they_are_cut() -> None:
    data = b"".join(frame(message) for message in MESSAGES)
    for step in (1, 3, len(data)):
        frames = reader()

        received = [m for start in range(0, len(data), step) for m in frames.feed(data[start : start + step])]

        assert received == MESSAGES


def test_every_kind_of_event_has_a_tag_of_its_own() -> None:
    tags = [kind.__struct_config__.tag for kind in get_args(RunEvent)]

    assert len(set(tags)) == len(tags)


def test_an_unknown_event_is_skipped_with_a_reason() -> None:
    body = msgspec.msgpack.encode({"type": "from_the_future", "x": 1})

    (message,) = reader().feed(struct.pack("<I", len(body)) + body)

    assert isinstance(message, Skipped)
    assert "from_the_future" in message.reason


def test_an_unknown_field_is_ignored() -> None:
    body = msgspec.msgpack.encode({"type": "notice", "text": "hi", "colour": "red"})

    assert list(reader().feed(struct.pack("<I", len(body)) + body)) == [Notice(text="hi")]


def test_an_impossible_length_is_a_broken_stream() -> None:
    with pytest.raises(ValueError, match="the stream is broken"):
        list(reader().feed(struct.pack("<I", MAX_FRAME_BYTES + 1)))


def test_a_recorded_line_is_one_line_and_comes_back() -> None:
    for message in MESSAGES:
        line = event_line(message)

        assert line.count(b"\n") == 1
        assert event_from_line(line) == message


def test_a_line_of_an_unknown_kind_is_skipped() -> None:
    assert isinstance(event_from_line(b'{"type":"from_the_future"}'), Skipped)
