"""Which lines look like a logger's routine, and which must never be taken for it."""

from __future__ import annotations

import io
import logging

import pytest

from accel_nb.launch.views.log_level import is_routine

FORMATS = {
    "basicConfig": logging.BASIC_FORMAT,
    "accelerate's examples": "%(asctime)s - %(levelname)s - %(name)s - %(message)s",
    "torchvision's": "%(asctime)s %(levelname)s: %(message)s",
    "time only": "[%(asctime)s] %(levelname)-8s %(message)s",
    "hydra": "[%(asctime)s][%(name)s][%(levelname)s] - %(message)s",
    "transformers": "[%(levelname)s|%(filename)s:%(lineno)s] %(asctime)s >> %(message)s",
    "name first": "%(name)s - %(levelname)s - %(message)s",
    "padded": "%(levelname)-8s %(message)s",
    "coloured": "\x1b[32m%(levelname)s\x1b[0m: %(message)s",
    "loguru's": "%(asctime)s | %(levelname)-8s | %(name)s:f:1 - %(message)s",
}


def written(form: str, level: int) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(form))
    record = logging.LogRecord("my.module", level, "train.py", 7, "epoch %s of 5", ("1",), None)
    handler.handle(record)
    return stream.getvalue().rstrip("\n")


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize(
    ("level", "routine"),
    [
        (logging.DEBUG, True), (logging.INFO, True),
        (logging.WARNING, False), (logging.ERROR, False), (logging.CRITICAL, False),
    ],
)  # fmt: skip
def test_o09_the_level_of_a_loggers_line(form: str, level: int, routine: bool) -> None:
    line = written(form, level)

    assert is_routine(line) is routine, line


@pytest.mark.parametrize(
    ("line", "routine"),
    [
        ("I1127 10:00:00.123456 140 file.py:1] compiled", True),
        ("W1127 10:00:00.123456 140 file.py:1] slow", False),
        ("[rank1]:I1127 10:00:00.123000 123 torch/_dynamo/eval.py:5] graph", True),
        ("[rank1]:[W1127 10:00:00.1 ProcessGroupNCCL.cpp:1] hang", False),
        ("[rank1]:E1127 10:00:00.123000 123 torch/x.py:5] bad", False),
        ("2026-11-27 10:00:00 [info     ] structlog", True),
        ("2026-11-27 10:00:00 [warning  ] structlog", False),
        ("INFO 11-27 10:00:00 [core.py:58] vllm", True),
        ("INFO:     Started server", True),
    ],
)
def test_o09_other_writers(line: str, routine: bool) -> None:
    assert is_routine(line) is routine


@pytest.mark.parametrize(
    "line",
    [
        "",
        "epoch 1, loss 0.3",
        "rank 1 is up",
        "INFO",
        "INFORMATION about rank 1",
        "INFO about rank 1",
        "for more INFO: see the log",
        "my debug output: 3",
        "info: 3",
        "ValueError: INFO: not a level",
        "10:00:00 epoch 1",
        "2026-11-27 10:00:00 loss 0.3",
        "2026-11-27 10:00:00,1 - ERROR - m - INFO was expected",
        "{'loss': 0.3, 'epoch': 1.0}",
        "a - b | c",
        "x" * 10_000,
    ],
)
def test_o01_what_is_no_loggers_line_is_none(line: str) -> None:
    assert not is_routine(line)


def test_it_is_cheap_for_any_line() -> None:
    """Not quadratic: a line of 64 KiB in which every form nearly begins."""
    beginnings = ("[", "20:20", "a - ", " ", "INFO")

    assert not any(is_routine(beginning * 16_000) for beginning in beginnings)
