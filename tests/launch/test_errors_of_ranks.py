"""What the kernel is told when ranks fail: the user's own error, the guilty rank, the cause before its consequences."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.notebook_kernel import NotebookKernel

from . import rank_code
from .launching import launch

pytestmark = pytest.mark.faults

HERE = Path(__file__).name


def line_of(function: Callable[..., object], offset: int) -> int:
    return function.__code__.co_firstlineno + offset


def fails_on_rank_1(function: Callable[[], object]) -> Callable[[], None]:
    """`function` on rank 1; rank 0 waits until it is stopped."""

    def run() -> None:
        if os.environ["RANK"] == "1":
            function()
        time.sleep(60)

    run.__name__ = function.__name__
    return run


class TestE01TheErrorIsTheUsersOwn:
    CELL = (
        "import os\n"
        "def inner(value):\n"
        "    raise ValueError('boom')\n"
        "\n"
        "def train():\n"
        "    print('before')\n"
        "    if os.environ['RANK'] == '1':\n"
        "        inner(3)\n"
        "    import time; time.sleep(60)\n"
    )

    def test_e01_in_a_notebook(self, kernel: NotebookKernel) -> None:
        kernel.ok("from accel_nb import notebook_launcher")
        kernel.ok(self.CELL)

        failed = kernel.run("notebook_launcher(train, num_processes=2, device='cpu')")

        assert failed.ename == "RunFailed"
        shown = "\n".join(failed.traceback)
        text = failed.evalue
        for content in (shown, text):
            assert content.splitlines()[-1] == "ValueError: boom"
            assert len(content.splitlines()) <= 40
            assert "train: rank 1 of 2 (cpu) failed at Cell In[2], line 3." in content
            assert "  Cell In[2], line 8, in train\n    inner(3)" in content
            assert "  Cell In[2], line 3, in inner\n    raise ValueError('boom')" in content
            assert "accel_nb/" not in content.replace(str(kernel.log_dir), "")
        assert "before" in failed.stdout

        kernel.ok(
            "try:\n    notebook_launcher(train, num_processes=2, device='cpu')\n"
            "except Exception as error:\n    caught = error\n"
        )
        assert kernel.value("[type(caught).__name__, caught.rank, caught.exc_type, caught.ranks]") == [
            "RunFailed", 1, "ValueError", [1],
        ]  # fmt: skip
        traceback_text = str(kernel.value("caught.traceback_text"))
        assert traceback_text.splitlines()[:2] == [
            "Traceback (most recent call last):", "  Cell In[2], line 8, in train",
        ]  # fmt: skip
        assert kernel.value("[type(caught.__cause__).__name__, str(caught.__cause__)]") == ["ValueError", "boom"]
        assert kernel.value("[type(caught.original()).__name__, caught.original().args]") == ["ValueError", ["boom"]]

    def test_e01_from_a_file(self) -> None:
        def train() -> None:
            if os.environ["RANK"] == "1":
                raise ValueError("boom")
            time.sleep(60)

        failure = launch(train).failure

        place = f"{HERE}, line {line_of(train, 2)}"
        assert str(failure).splitlines()[0] == f"train: rank 1 of 2 (cpu) failed at {place}."
        assert str(failure).splitlines()[-2:] == ['    raise ValueError("boom")', "ValueError: boom"]
        assert len(str(failure).splitlines()) <= 40
        assert (failure.rank, failure.exc_type, failure.ranks) == (1, "ValueError", (1,))
        assert failure.traceback_text.splitlines()[1] == f'  File "{__file__}", line {line_of(train, 2)}, in train'

    def test_e01_a_long_traceback_stays_within_a_screen(self) -> None:
        def sink(depth: int) -> None:
            if depth == 0:
                raise ValueError("\n".join(f"part {number}" for number in range(50)))
            (sink if depth % 2 else dive)(depth - 1)

        def dive(depth: int) -> None:
            (sink if depth % 2 else dive)(depth - 1)

        failure = launch(lambda: dive(30)).failure

        assert len(str(failure).splitlines()) <= 40
        assert str(failure).splitlines()[-1] == "part 49"
        assert "see the log" in str(failure)

    def test_e01_the_log_file_of_the_rank_holds_the_traceback_too(self) -> None:
        def train() -> None:
            raise ValueError("boom")

        launched = launch(train)

        assert "ValueError: boom" in launched.run.logs(0)
        assert f"line {line_of(train, 1)}, in train" in launched.run.logs(0)


class TestE02DeathsAreExplained:
    def test_e02_sigkill(self) -> None:
        def hungry() -> None:
            block = bytearray(200 << 20)
            block[::4096] = b"x" * len(block[::4096])
            print("allocated")
            os.kill(os.getpid(), signal.SIGKILL)

        failure = launch(fails_on_rank_1(hungry)).failure

        assert (failure.rank, failure.cause.kind, failure.cause.signal) == (1, "died", "SIGKILL")
        headline = str(failure).splitlines()[0]
        assert headline.startswith("hungry: rank 1 of 2 (cpu) died: killed by SIGKILL (signal 9): ")
        assert "probably out of host memory" in headline
        assert "its memory peaked at 0." in headline
        assert failure.cause.peak_memory_bytes > 200 << 20
        assert failure.cause.last_lines == ("allocated",)
        assert str(failure).splitlines()[-2:] == ["Its last lines:", "  allocated"]

    @pytest.mark.parametrize(
        ("crash", "name", "meaning"),
        [
            (rank_code.read_address_0, "SIGSEGV", "segmentation fault"),
            (rank_code.abort, "SIGABRT", "abort: native code gave up"),
            (rank_code.bus_error, "SIGBUS", "bus error: often a full /dev/shm"),
        ],
    )
    def test_e02_a_crash_has_its_python_stack(self, crash: Callable[[], None], name: str, meaning: str) -> None:
        def crashes() -> None:
            for number in range(100):
                print(f"line {number}", file=sys.stderr)
            crash()

        failure = launch(fails_on_rank_1(crashes)).failure

        assert (failure.rank, failure.cause.signal) == (1, name)
        headline = str(failure).splitlines()[0]
        assert headline.startswith(f"crashes: rank 1 of 2 (cpu) died: crashed with {name} ({meaning}")
        assert f", line {crash.__code__.co_firstlineno}" not in failure.cause.stack
        assert f"in {crash.__name__}" in failure.cause.stack
        assert "in crashes" in failure.cause.stack
        assert f"in {crash.__name__}" in str(failure)
        assert failure.cause.last_lines == tuple(f"line {number}" for number in range(70, 100))
        assert len(str(failure).splitlines()) <= 40

    def test_e02_another_signal_is_named(self) -> None:
        def terminated() -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)

        failure = launch(fails_on_rank_1(terminated)).failure

        assert "rank 1 of 2 (cpu) died: ended by SIGTERM (signal 15) from outside" in str(failure)


class TestE04Exits:
    def test_e04_os_exit_without_a_result_is_a_failure(self) -> None:
        failure = launch(fails_on_rank_1(lambda: os._exit(0))).failure

        assert (failure.rank, failure.cause.exit_code) == (1, 0)
        assert "exited early without returning: something in it called os._exit(0)." in str(failure)

    def test_e04_os_exit_with_a_status(self) -> None:
        failure = launch(fails_on_rank_1(lambda: os._exit(7))).failure

        assert (failure.rank, failure.cause.exit_code) == (1, 7)
        assert "rank 1 of 2 (cpu) died: exited with status 7 without returning" in str(failure)

    def test_y11_sys_exit_with_a_status_is_a_failure(self) -> None:
        def leaves() -> None:
            sys.exit(3)

        failure = launch(fails_on_rank_1(leaves)).failure

        assert (failure.rank, failure.exc_type, failure.cause.exit_code) == (1, "SystemExit", 3)
        place = f"{HERE}, line {line_of(leaves, 1)}"
        assert str(failure).splitlines()[0] == f"leaves: rank 1 of 2 (cpu) ended at {place} with exit status 3."

    def test_y11_sys_exit_with_a_text_is_a_failure_that_shows_it(self) -> None:
        failure = launch(fails_on_rank_1(lambda: sys.exit("no data found"))).failure

        assert failure.cause.exit_code == 1
        assert str(failure).splitlines()[-1] == "SystemExit: no data found"

    @pytest.mark.parametrize("code", [None, 0])
    def test_y11_sys_exit_without_a_status_is_a_return_of_none(self, code: int | None) -> None:
        assert launch(lambda: sys.exit(code)).values == [None, None]


class TestE05OneFailureEndsAll:
    def test_e05_the_cause_comes_first_while_others_wait_for_the_rank(self) -> None:
        def train() -> None:
            import torch
            from torch import distributed

            distributed.init_process_group("gloo")
            if distributed.get_rank() == 1:
                time.sleep(2)
                raise ValueError("the cause")
            distributed.all_reduce(torch.ones(1))

        started = time.monotonic()
        failure = launch(train).failure

        assert time.monotonic() - started < 2 + 10
        assert (failure.rank, failure.exc_type, failure.cause.message) == (1, "ValueError", "the cause")
        assert "As a consequence: rank 0 ended." in str(failure).splitlines()
        assert str(failure).splitlines()[-1] == "ValueError: the cause"
        (other,) = failure.failures[1:]
        assert other.rank == 0
        assert other.consequence or other.kind == "stopped"

    def test_e05_a_killed_rank_is_the_cause_of_the_others_lost_connections(self) -> None:
        def train() -> None:
            import torch
            from torch import distributed

            distributed.init_process_group("gloo")
            distributed.all_reduce(torch.ones(1))
            if distributed.get_rank() == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            distributed.all_reduce(torch.ones(1))

        failure = launch(train, num_processes=3).failure

        assert (failure.rank, failure.cause.signal) == (2, "SIGKILL")
        assert "As a consequence: ranks 0-1 ended." in str(failure)

    def test_e05_a_rank_that_never_looks_up_is_ended(self) -> None:
        def stubborn() -> None:
            if os.environ["RANK"] == "1":
                raise ValueError("the cause")
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            time.sleep(60)

        started = time.monotonic()
        failure = launch(stubborn).failure

        assert time.monotonic() - started < 10
        assert failure.rank == 1


class TestE06ErrorsOfSeveralRanks:
    def test_e06_the_same_error_is_told_once(self) -> None:
        def train() -> None:
            raise ValueError("the same")

        failure = launch(train, num_processes=4).failure

        assert failure.ranks == (0, 1, 2, 3)
        assert "Same error on ranks 0-3." in str(failure).splitlines()
        assert str(failure).count("ValueError: the same") == 1

    def test_e06_different_errors_are_listed_by_rank(self) -> None:
        def train() -> None:
            rank = int(os.environ["RANK"])
            time.sleep(0.05 * rank)
            kind = (ValueError, KeyError, KeyError)[rank]
            raise kind(f"group {min(rank, 1)}")

        failure = launch(train, num_processes=3).failure

        assert failure.ranks == (0,)
        assert "Also ranks 1-2: KeyError: 'group 1'" in str(failure).splitlines()
        assert str(failure).splitlines()[-1] == "ValueError: group 0"


class TestE07OutputBeforeTheEnd:
    @pytest.mark.parametrize(
        "end", [rank_code.raises, rank_code.exits, rank_code.kills_itself], ids=lambda end: end.__name__
    )
    def test_e07_all_that_was_written_before_the_end_is_shown_before_the_error(self, end: Callable[[], None]) -> None:
        def writes() -> None:
            for number in range(200):
                os.write(1 + number % 2, f"line {number}\n".encode())
            end()

        launched = launch(fails_on_rank_1(writes))

        expected = [f"line {number}" for number in range(200)]
        assert launched.run.logs(1).splitlines()[:200] == expected
        shown = launched.text.splitlines()
        (told,) = [place for place, line in enumerate(shown) if line.startswith("accel_nb: rank 1 failed")]
        assert [line.removeprefix("[r1] ") for line in shown[1:told]] == expected
        assert launched.failure.rank == 1

    def test_e07_buffered_prints_are_flushed(self) -> None:
        def prints() -> None:
            print("without an end", end="")
            raise ValueError("boom")

        launched = launch(fails_on_rank_1(prints))

        shown = launched.text.splitlines()
        assert shown.index("[r1] without an end") < shown.index("accel_nb: rank 1 failed: ValueError: boom")


def test_e12_the_kernel_survives_whatever_a_rank_does(kernel: NotebookKernel) -> None:
    kernel.ok("from accel_nb import notebook_launcher\nimport os, signal, ctypes")
    for crash in (
        "ctypes.string_at(0)",
        "os.abort()",
        "os.killpg(os.getpgid(0), signal.SIGKILL)",
        "os._exit(0)",
        "ctypes.CDLL(None).exit(4)",
    ):
        failed = kernel.run(f"def f():\n    {crash}\nnotebook_launcher(f, num_processes=2)")
        assert failed.ename == "RunFailed", failed.described()
        assert kernel.ok("1+1").result == "2"


class TestOddExceptions:
    def test_a_broken_str(self) -> None:
        class BrokenText(Exception):
            def __str__(self) -> str:
                raise KeyError("oh")

        def train() -> None:
            raise BrokenText

        failure = launch(train).failure

        assert failure.exc_type.endswith("BrokenText")
        assert failure.cause.message == "<its __str__ raised KeyError>"
        assert f"line {line_of(train, 1)}, in train" in str(failure)

    def test_p08_a_constructor_with_other_arguments(self) -> None:
        class Special(Exception):
            def __init__(self, one: str, two: int) -> None:
                super().__init__(one)
                self.two = two

        def train() -> None:
            if os.environ["RANK"] == "1":
                raise Special("the message", 2)
            time.sleep(60)

        started = time.monotonic()
        failure = launch(train).failure

        assert time.monotonic() - started < 10
        assert failure.rank == 1
        assert str(failure).splitlines()[-1].endswith("Special: the message")
        assert f"line {line_of(train, 2)}, in train" in str(failure)

    @pytest.mark.parametrize("kind", ["reduce raises", "holds a lock"])
    def test_p08_an_exception_that_cannot_travel_is_told_as_text(self, kind: str) -> None:
        class Unpicklable(Exception):
            def __reduce__(self) -> Any:  # noqa: ANN401  of object's
                if kind == "reduce raises":
                    raise RuntimeError("no pickle of me")
                return super().__reduce__()

        def train() -> None:
            import threading

            error = Unpicklable("the message")
            error.lock = threading.Lock()  # type: ignore[attr-defined]
            raise error

        started = time.monotonic()
        failure = launch(train).failure

        assert time.monotonic() - started < 10
        assert str(failure).splitlines()[-1].endswith("Unpicklable: the message")
        assert f"line {line_of(train, 5)}, in train" in str(failure)
        with pytest.raises(FileNotFoundError):
            failure.original()

    def test_a_recursion_error(self) -> None:
        def deeper(number: int) -> int:
            return deeper(number + 1) + 1

        failure = launch(lambda: deeper(0)).failure

        assert failure.exc_type == "RecursionError"
        assert str(failure).splitlines()[-1].startswith("RecursionError: maximum recursion depth exceeded")
        assert len(str(failure).splitlines()) <= 40

    def test_an_exception_group_shows_its_members(self) -> None:
        def train() -> None:
            raise ExceptionGroup("both failed", [ValueError(f"member {number}") for number in (1, 2)])

        failure = launch(train).failure

        assert failure.exc_type == "ExceptionGroup"
        assert failure.cause.message == "both failed (2 sub-exceptions)"
        assert "ValueError: member 1" in str(failure)
        assert "ValueError: member 2" in str(failure)
        assert failure.ranks == (0, 1)

    def test_a_syntax_error_in_executed_text_shows_the_text(self) -> None:
        failure = launch(lambda: exec("value = = 3", {})).failure

        assert failure.exc_type == "SyntaxError"
        assert "    value = = 3\n" in str(failure)
        assert str(failure).splitlines()[-1] == "SyntaxError: invalid syntax"

    def test_a_keyboard_interrupt_of_the_users_own_is_an_error(self) -> None:
        def train() -> None:
            if os.environ["RANK"] == "1":
                raise KeyboardInterrupt("my own")
            time.sleep(60)

        launched = launch(train)

        assert launched.run.status == "failed"
        assert (launched.failure.rank, launched.failure.exc_type) == (1, "KeyboardInterrupt")
        assert str(launched.failure).splitlines()[-1] == "KeyboardInterrupt: my own"

    def test_a_chain_shows_where_it_began(self) -> None:
        def train() -> None:
            try:
                {}["key"]  # type: ignore[index]
            except KeyError as error:
                raise ValueError("from a key") from error

        failure = launch(train).failure

        assert "KeyError: 'key'" in str(failure)
        assert "The above exception was the direct cause" in str(failure)
        assert str(failure).splitlines()[-1] == "ValueError: from a key"

    def test_a_message_of_many_lines_and_bytes_that_are_no_text(self) -> None:
        def train() -> None:
            raise ValueError("first\nsecond \udcff end")

        failure = launch(train).failure

        assert failure.cause.message == "first\nsecond \\udcff end"
        assert str(failure).splitlines()[-2:] == ["ValueError: first", "second \\udcff end"]

    def test_a_message_of_megabytes(self) -> None:
        def train() -> None:
            raise ValueError("x" * 20_000_000)

        failure = launch(train).failure

        assert failure.exc_type == "ValueError"
        assert f"line {line_of(train, 1)}, in train" in str(failure)
        assert len(str(failure)) < 100_000
        assert "characters left out" in failure.cause.message


def test_what_a_rank_cannot_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "soon_gone.py").write_text("def f():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import soon_gone  # type: ignore[import-not-found]

    (tmp_path / "soon_gone.py").unlink()
    launched = launch(soon_gone.f)
    del sys.modules["soon_gone"]

    failure = launched.failure
    assert failure.ranks == (0, 1)
    assert failure.exc_type == "accel_nb.errors.PayloadError"
    assert "f cannot be loaded in the rank: ModuleNotFoundError: No module named 'soon_gone'" in str(failure)
    assert "accel_nb/launch" not in failure.traceback_text


def test_a_local_module_that_fails_on_import_shows_its_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "breaks_later.py"
    file.write_text("def f():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import breaks_later  # type: ignore[import-not-found]

    file.write_text("value = 1\nraise RuntimeError('at import')\n")
    launched = launch(breaks_later.f)
    del sys.modules["breaks_later"]

    assert "RuntimeError: at import" in str(launched.failure)
    assert f'File "{file}", line 2, in <module>' in str(launched.failure)


def test_a_value_that_cannot_come_back_names_the_rank_and_the_value() -> None:
    def train() -> object:
        import threading

        return {"weights": [1, 2], "lock": threading.Lock()} if os.environ["RANK"] == "1" else 3

    failure = launch(train).failure

    assert failure.rank == 1
    assert failure.exc_type == "accel_nb.errors.NotPicklable"
    assert "lock" in failure.cause.message


def test_on_failure_return_gives_the_values_and_the_failures() -> None:
    def train() -> int:
        if os.environ["RANK"] == "1":
            raise ValueError("boom")
        return 5

    result = launch(train, on_failure="return").run.result()

    assert list(result) == [5, None]
    assert [(failure.rank, failure.type_name) for failure in result.failures] == [(1, "ValueError")]
    assert repr(result).endswith("failed)")


def test_o16_logs_and_the_record_exist_for_every_outcome_and_the_path_is_told() -> None:
    def outcome(how: str) -> None:
        print("from rank", os.environ["RANK"])
        if how == "error":
            raise ValueError("boom")
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)

    for how in ("return", "error", "killed"):
        launched = launch(outcome, how)
        log_dir = launched.run.log_dir
        for rank in (0, 1):
            assert (log_dir / f"rank_{rank}.log").read_text().splitlines()[0] == f"from rank {rank}"
            assert launched.run.logs(rank).startswith(f"from rank {rank}")
        assert (log_dir / "run.jsonl").stat().st_size > 0
        if how != "return":
            assert f"Log: {log_dir}/rank_{launched.failure.rank}.log" in str(launched.failure).splitlines()
    with pytest.raises(KeyError, match="This run has ranks 0 to 1, not 2"):
        launched.run.logs(2)
