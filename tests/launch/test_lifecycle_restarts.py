"""`max_restarts`: all ranks start again, as torchrun does it, until one attempt is good or there are no more."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from accel_nb import RunFailed, notebook_launcher
from accel_nb.launch.planning.ports import bind_loopback

from .census import wait_until
from .launching import launch, start
from .lifecycle_code import dies_first, fails, fails_first, goes_on_when, one_fails

pytestmark = pytest.mark.faults


def test_a_failed_rank_succeeds_in_the_second_attempt() -> None:
    launched = launch(fails_first, 1, max_restarts=3)

    assert launched.values == [("1", "3", "3.0"), ("1", "3", "3.0")]
    assert launched.run.state.attempt == 1
    assert launched.run.state.failures == ()


def test_a_killed_rank_is_restarted_with_the_others() -> None:
    assert launch(dies_first, 2, max_restarts=2).values == ["2", "2"]


def test_restarts_run_out() -> None:
    failure = launch(fails, "always", max_restarts=2).failure

    assert failure.attempts == 3
    assert "in the last of 3 attempts" in str(failure)
    assert "ValueError: always" in str(failure)


def test_every_attempt_is_in_the_same_logs_and_in_the_view() -> None:
    launched = launch(fails_first, 2, max_restarts=2)

    for rank in range(2):
        assert [line for line in launched.run.logs(rank).splitlines() if line.startswith("attempt")] == [
            "attempt 0",
            "attempt 1",
            "attempt 2",
        ]
    assert launched.text.count("attempt 1") >= 1
    assert "starting all ranks again, attempt 3 of 3" in launched.text


def test_without_restarts_there_is_one_attempt() -> None:
    failure = launch(fails_first, 1).failure

    assert failure.attempts == 1
    assert "attempts" not in str(failure)


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["spawn", "fork"])
def test_restarts_of_other_start_methods(start_method: str) -> None:
    launched = launch(fails_first, 1, max_restarts=1, start_method=start_method)

    assert launched.values == [("1", "1", "3.0"), ("1", "1", "3.0")]


def free_port() -> int:
    with bind_loopback(0) as listener:
        return int(listener.getsockname()[1])


def test_restarts_on_a_fixed_port() -> None:
    """The store of the attempt before must not take the connections of the next."""
    for _ in range(3):
        assert launch(fails_first, 3, max_restarts=3, use_port=free_port()).values[0] == ("3", "3", "7.0")


def test_a_stop_between_two_attempts_is_not_lost() -> None:
    """Sent at any moment of a run that does little but restart."""
    for step in range(8):
        run = start(fails, "always", max_restarts=1000)
        wait_until(lambda run=run: run.state.attempt >= 1, 60, lambda run=run: run.status)  # type: ignore[misc]
        time.sleep(step * 0.05)

        run.stop()

        assert run.wait(5), f"{run.status}, attempt {run.state.attempt}"
        assert run.status == "stopped"


def test_a_restart_keeps_nothing_of_the_attempt_before(tmp_path: Path) -> None:
    """Rank 0 returned 5 in the first attempt; the second is stopped by the failure of rank 1."""
    run = start(one_fails, max_restarts=1)
    run.draw()

    with pytest.raises(RunFailed, match="attempts"):
        run.result(0)
    assert not list(tmp_path.iterdir())


def test_on_failure_return_gives_what_there_is() -> None:
    result = notebook_launcher(one_fails, num_processes=2, device="cpu", on_failure="return")

    assert list(result) == [5, None]
    assert [failure.rank for failure in result.failures] == [1]
    assert result.failures[0].message == "no"
    assert "failed" in repr(result)


def test_on_failure_return_after_a_good_run_has_no_failures() -> None:
    result = notebook_launcher(fails_first, (0,), num_processes=2, device="cpu", on_failure="return")

    assert result.failures == ()
    assert result.main == ("0", "0", "1.0")


def test_a_restart_does_not_wait_for_the_kernel(tmp_path: Path) -> None:
    """A view that is busy for seconds holds nothing up: the events wait for it."""
    go = tmp_path / "go"
    entered = threading.Event()

    def write(_: str) -> None:
        entered.set()
        wait_until(go.exists, 60, lambda: "no file")

    run = start(goes_on_when, str(go), write=write)
    drawing = threading.Thread(target=run.draw)
    drawing.start()
    assert entered.wait(60)
    wait_until(lambda: run.state.status == "running", 60, lambda: run.status)

    go.touch()

    assert list(run.result(60)) == ["1.0", "1.0"]
    drawing.join(60)
