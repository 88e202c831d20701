"""Loggers that know their rank."""

from __future__ import annotations

import io
import logging
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from accel_nb import Accelerator
from accel_nb.logging import MultiProcessAdapter, get_logger
from accel_nb.protocol import sink
from accel_nb.protocol.events import RunEvent
from accel_nb.training.ranks.state import existing_facts, is_initialized


@pytest.fixture(autouse=True)
def _levels_stay() -> Iterator[None]:
    """`get_logger` with a level sets the root logger's, too."""
    root = logging.getLogger()
    before = root.level
    yield
    root.setLevel(before)


@pytest.fixture
def recorded() -> Iterator[tuple[MultiProcessAdapter, list[logging.LogRecord]]]:
    """A logger of its own, at level INFO, and its records."""
    logger = get_logger("tests.rank_logging.recorded")
    records: list[logging.LogRecord] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Keeper()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield logger, records
    logger.removeHandler(handler)
    logger.propagate = True


Recorded = tuple[MultiProcessAdapter, list[logging.LogRecord]]


def test_o10_it_works_before_any_state_and_makes_none(recorded: Recorded) -> None:
    logger, records = recorded

    logger.info("plain")
    logger.debug("not shown")
    logger.info("in order", in_order=True)
    logger.info("everybody", main_process_only=False)

    assert [record.getMessage() for record in records] == ["plain", "in order", "everybody"]
    assert existing_facts() is None
    assert not is_initialized()


def test_o10_a_later_accelerator_gets_what_it_asks_for(recorded: Recorded) -> None:
    recorded[0].info("before")

    assert Accelerator(cpu=True).device.type == "cpu"


def test_o10_importing_and_using_it_needs_no_torch() -> None:
    code = """
import sys
from accel_nb.logging import get_logger
get_logger("a").warning("b")
print("torch" in sys.modules)
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout == "False\n"


def test_o12_what_a_logger_has_the_adapter_has(recorded: Recorded) -> None:
    logger, _ = recorded

    assert logger.name == "tests.rank_logging.recorded"
    assert type(logger.handlers[0]).__name__ == "Keeper"
    assert logger.level == logger.getEffectiveLevel() == logging.INFO
    assert logger.isEnabledFor(logging.INFO)
    assert not logger.isEnabledFor(logging.DEBUG)
    assert logger.hasHandlers()
    assert (logger.propagate, logger.logger.propagate) == (False, False)
    logger.disabled = True
    assert logger.logger.disabled
    logger.disabled = False
    with pytest.raises(AttributeError, match="no_such_thing"):
        logger.no_such_thing()


def test_o12_records_say_where_they_come_from_and_carry_errors_and_extras(recorded: Recorded) -> None:
    logger, records = recorded
    here = sys._getframe().f_lineno

    logger.info("at %d", here, extra={"epoch": 3})
    logger.info("in order", in_order=True)
    logger.log(logging.WARNING, "by level")
    logger.warning_once("once")
    try:
        int("boom")
    except ValueError:
        logger.exception("failed")

    assert [record.lineno - here for record in records] == [2, 3, 4, 5, 9]
    assert {record.funcName for record in records} == {
        "test_o12_records_say_where_they_come_from_and_carry_errors_and_extras"
    }
    assert records[0].getMessage() == f"at {here}"
    assert records[0].epoch == 3  # type: ignore[attr-defined]
    assert records[-1].exc_info is not None
    assert records[-1].exc_info[0] is ValueError


def _logs_for_its_caller(logger: MultiProcessAdapter) -> None:
    logger.info("for my caller", stacklevel=3)  # as with accelerate.logging: the adapter's frame, this one, the caller


def test_o12_a_given_stacklevel_counts(recorded: Recorded) -> None:
    logger, records = recorded

    _logs_for_its_caller(logger)

    assert records[0].funcName == "test_o12_a_given_stacklevel_counts"


def test_o12_a_warning_is_told_once_per_message_and_arguments(recorded: Recorded) -> None:
    logger, records = recorded

    for value in (1, 1, 2, [3], [3]):
        logger.warning_once("value %s", value)

    assert [record.getMessage() for record in records] == ["value 1", "value 2", "value [3]"]


def test_the_level_comes_from_the_argument_else_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_LOG_LEVEL", "error")

    assert get_logger("tests.rank_logging.a").level == logging.ERROR
    assert logging.getLogger().level == logging.ERROR
    assert get_logger("tests.rank_logging.b", log_level="debug").level == logging.DEBUG


def test_without_a_level_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCELERATE_LOG_LEVEL", raising=False)

    assert get_logger("tests.rank_logging.c").level == logging.NOTSET


def test_an_unknown_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^log_level='loud' is unknown; choose one of DEBUG, INFO, WARNING, ERROR"):
        get_logger("a", log_level="loud")
    monkeypatch.setenv("ACCELERATE_LOG_LEVEL", "loud")
    with pytest.raises(ValueError, match=r"^ACCELERATE_LOG_LEVEL='loud' is unknown"):
        get_logger("a")


def test_a_pickled_logger_is_as_talkative_elsewhere() -> None:
    code = """
import logging, pickle, sys
logger = pickle.load(sys.stdin.buffer)
print(logger.name, logger.level, logging.getLogger().level)
"""

    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(get_logger("notebook", log_level="INFO")),
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip

    assert done.stdout.decode() == "notebook 20 20\n"


def _records_of_a_rank(folder: str, levels: dict[int, int], *, with_state: bool) -> tuple[str, str]:
    """What this rank's own file handler and a stream saw."""
    accelerator = Accelerator() if with_state else None
    logger = get_logger("ranks")
    rank = accelerator.process_index if accelerator else 0
    stream = io.StringIO()
    handler = logging.FileHandler(f"{folder}/{rank}.log")
    for one in (handler, logging.StreamHandler(stream)):
        logger.addHandler(one)
    logger.setLevel(levels.get(rank, logging.INFO))
    logger.info("main")
    logger.info("all %d", rank, main_process_only=False)
    logger.warning_once("once", main_process_only=False)
    logger.warning_once("once", main_process_only=False)
    handler.close()
    return Path(f"{folder}/{rank}.log").read_text(), stream.getvalue()


def test_o12_each_ranks_file_gets_the_records_of_its_own_rank(
    run_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    first, second = run_ranks(lambda: _records_of_a_rank(str(tmp_path), {}, with_state=True), 2)

    assert first[0] == first[1] == "[RANK 0] main\n[RANK 0] all 0\n[RANK 0] once\n"
    assert second[0] == second[1] == "[RANK 1] all 1\n[RANK 1] once\n"


def test_o10_a_rank_is_known_before_its_state_exists(run_ranks: Callable[..., list[Any]]) -> None:
    def main_only() -> str:
        stream = io.StringIO()
        logger = get_logger("ranks")
        logger.addHandler(logging.StreamHandler(stream))
        logger.warning("main")
        logger.warning("order", in_order=True)
        assert existing_facts() is None
        return stream.getvalue()

    assert run_ranks(main_only, 2) == ["[RANK 0] main\n[RANK 0] order\n", "[RANK 1] order\n"]


def test_in_a_launch_the_view_says_the_rank(run_ranks: Callable[..., list[Any]]) -> None:
    def everybody() -> str:
        events: list[RunEvent] = []
        sink.deliver_to(events.append)
        stream = io.StringIO()
        logger = get_logger("ranks")
        logger.addHandler(logging.StreamHandler(stream))
        logger.warning("alike", main_process_only=False)
        return stream.getvalue()

    assert run_ranks(everybody, 2) == ["alike\n", "alike\n"]


def _in_order(file: str, off_on_rank: int | None) -> None:
    accelerator = Accelerator()
    logger = get_logger("ranks", log_level="INFO")
    if accelerator.process_index == off_on_rank:
        logger.setLevel(logging.ERROR)
    logger.addHandler(logging.FileHandler(file))
    for step in range(20):
        logger.info("%d %d", step, accelerator.process_index, in_order=True)
    accelerator.wait_for_everyone()


@pytest.mark.parametrize("off_on_rank", [None, 1])
def test_in_order_is_in_order_also_when_a_ranks_level_is_higher(
    run_ranks: Callable[..., list[Any]], tmp_path: Path, off_on_rank: int | None
) -> None:
    file = tmp_path / "log"

    run_ranks(lambda: _in_order(str(file), off_on_rank), 3)

    lines = [f"[RANK {rank}] {step} {rank}" for step in range(20) for rank in range(3) if rank != off_on_rank]
    assert file.read_text().splitlines() == lines


def test_after_the_training_it_still_logs_and_opens_nothing(run_ranks: Callable[..., list[Any]]) -> None:
    def train() -> str:
        from torch import distributed

        stream = io.StringIO()
        logger = get_logger("ranks")
        logger.addHandler(logging.StreamHandler(stream))
        Accelerator().end_training()
        logger.warning("done", in_order=True)
        assert not distributed.is_initialized()
        return stream.getvalue()

    assert run_ranks(train, 2) == ["[RANK 0] done\n", "[RANK 1] done\n"]
