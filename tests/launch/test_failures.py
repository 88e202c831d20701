"""Failures as text, deaths as sentences, one cause out of many."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Never

import pytest
import torch

from accel_nb.errors import AnotherRankFailed
from accel_nb.launch import failures
from accel_nb.launch.failures import (
    cause_first,
    death_text,
    describe,
    exit_status_of,
    headline,
    rank_ranges,
    readable,
    readable_stack,
    same_error,
)
from accel_nb.protocol.failure import RankFailure


def raised_by(source: str, name: str = "<Cell In[7]>") -> BaseException:
    """What `source`, a cell that defines and calls a function, raises."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    try:
        exec(compile(source, name, "exec"), {})
    except BaseException as error:  # noqa: BLE001  that is what it is for
        return error
    raise AssertionError("the cell did not raise")


def test_e01_a_traceback_shows_cells_as_the_notebook_does() -> None:
    failure = describe(raised_by("def train():\n    raise ValueError('boom')\n\ntrain()\n"), rank=1)

    assert "Cell In[7], line 2, in train\n    raise ValueError('boom')" in failure.traceback
    assert failure.traceback.endswith("ValueError: boom")
    assert (failure.rank, failure.type_name, failure.message) == (1, "ValueError", "boom")
    assert failure.location == "Cell In[7], line 2"


def test_the_location_is_the_innermost_frame_of_the_users_own() -> None:
    failure = describe(raised_by("import json\n\njson.loads('{')\n"), rank=0)

    assert failure.location == "Cell In[7], line 3"
    assert failure.type_name == "json.decoder.JSONDecodeError"


def test_a_chained_exception_keeps_its_chain() -> None:
    source = "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('after') from e\n"

    text = describe(raised_by(source), rank=0).traceback

    assert text.index("ZeroDivisionError") < text.index("RuntimeError: after")


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("one\ntwo", "E: one"),
        ("needs the same:\n  rank 0: [1]\n  rank 1: [2]", "E: needs the same: rank 0: [1]; rank 1: [2]"),
        ("look:\na\nb\nc\nd", "E: look: a; b; c; ..."),
        ("nothing follows:", "E: nothing follows:"),
        ("", "E"),
    ],
)
def test_a_first_line_that_announces_others_is_told_with_them(message: str, shown: str) -> None:
    assert headline(RankFailure(rank=0, kind="raised", type_name="E", message=message)) == shown


def test_an_exception_whose_text_is_broken_is_still_described() -> None:
    class Broken(Exception):
        def __str__(self) -> Never:
            raise TypeError("no text")

    assert describe(Broken(), rank=0).message == "<its __str__ raised TypeError>"


@pytest.mark.parametrize(("code", "status"), [(None, 0), (0, 0), (3, 3), ("text", 1)])
def test_y11_exit_statuses_are_those_of_a_process(code: int | str | None, status: int) -> None:
    assert exit_status_of(SystemExit(code)) == status


@pytest.mark.parametrize(
    ("code", "signal_name", "oom", "words"),
    [
        (None, "SIGKILL", False, ["SIGKILL (signal 9)", "probably out of host memory", "peaked at 2.00 GiB"]),
        (None, "SIGKILL", True, ["out-of-memory killer"]),
        (None, "SIGSEGV", False, ["crashed with SIGSEGV", "segmentation fault"]),
        (None, "SIGBUS", False, ["/dev/shm"]),
        (None, "SIGTERM", False, ["SIGTERM (signal 15) from outside"]),
        (None, "signal 41", False, ["ended by signal 41 from outside"]),
        (0, None, False, ["exited early without returning"]),
        (5, None, False, ["status 5 without returning"]),
    ],
)
def test_e02_a_death_is_decoded(code: int | None, signal_name: str | None, oom: bool, words: list[str]) -> None:
    text = death_text(code, signal_name, 2 << 30, oom_killed=oom)

    assert all(word in text for word in words), text


def failure(rank: int, time_s: float, **fields: object) -> RankFailure:
    return RankFailure(**{"rank": rank, "kind": "raised", "type_name": "E", "time_s": time_s, **fields})  # type: ignore[arg-type]


def test_e05_the_cause_is_the_earliest_that_is_no_consequence() -> None:
    closed = failure(0, 1.0, consequence=True)
    own = failure(1, 2.0)
    later = failure(2, 3.0)
    stopped = failure(3, 0.5, kind="stopped")

    assert cause_first([closed, stopped, later, own]) == (own, later, closed, stopped)


@pytest.mark.parametrize(
    "text",
    [
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:2024",
        "[/src/gloo/gloo/transport/tcp/pair.cc:538] Read error [127.0.0.1]:2024: Connection reset by peer",
        "NCCL communicator was aborted on rank 1.",
        "[c10d] recvValue failed on SocketImpl(fd=4, addr=[localhost]:1): failed to recv, got 0 bytes",
    ],
)
def test_e05_what_a_transport_says_of_a_lost_peer_is_a_consequence(text: str) -> None:
    assert describe(RuntimeError(text), rank=0).consequence


@pytest.mark.parametrize("name", ["DistBackendError", "DistNetworkError", "DistStoreError"])
def test_e05_a_lost_peer_in_an_error_of_torchs_is_a_consequence_whatever_its_text_names(name: str) -> None:
    error: Exception = getattr(torch.distributed, name)("Connection reset by peer. This may indicate a crash.")

    assert describe(error, rank=0).consequence
    assert not describe(type(error)("Invalid scalar type"), rank=0).consequence


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connection refused"),
        BrokenPipeError(32, "Broken pipe"),
        RuntimeError("database at igloo.example: connection closed"),
    ],
)
def test_e05_a_connection_of_the_users_own_that_fails_is_a_cause(error: Exception) -> None:
    assert not describe(error, rank=0).consequence


def test_the_location_of_a_file_whose_name_is_no_utf8_can_travel() -> None:
    failure = describe(raised_by("1 / 0\n", "bad\udcff.py"), rank=0)

    assert failure.location == "bad\\udcff.py, line 1"


def test_an_ordinary_error_is_no_consequence() -> None:
    assert not describe(RuntimeError("CUDA out of memory"), rank=0).consequence


def test_e06_the_same_error_is_told_apart_from_another() -> None:
    assert same_error(failure(0, 1.0, message="m"), failure(1, 2.0, message="m"))
    assert not same_error(failure(0, 1.0, message="m"), failure(1, 1.0, message="n"))


@pytest.mark.parametrize(
    ("ranks", "text"), [([0], "0"), ([0, 1, 2, 3, 5], "0-3, 5"), ([3, 1], "1, 3"), ([7, 6, 2], "2, 6-7")]
)
def test_ranks_are_written_as_ranges(ranks: list[int], text: str) -> None:
    assert rank_ranges(ranks) == text


def test_e02_a_stack_shows_the_users_frames_only() -> None:
    own = Path(failures.__file__).parent / "rank" / "main.py"
    text = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
        '  File "<Cell In[3]>", line 2 in train\n'
        f'  File "{own}", line 118 in _call\n  File "<string>", line 1 in <module>\n'
        "\nExtension modules: numpy (total: 1)\n"
    )

    assert readable_stack(text).splitlines()[-1] == "  Cell In[3], line 2 in train"


def test_frames_of_files_stay_as_they_are() -> None:
    assert readable('  File "/home/me/train.py", line 3, in f\n') == '  File "/home/me/train.py", line 3, in f'


def test_e05_what_says_that_it_follows_from_another_rank_is_a_consequence() -> None:
    assert describe(AnotherRankFailed("rank 0 failed while it read"), rank=1).consequence
