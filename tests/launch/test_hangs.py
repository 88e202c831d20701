"""Ranks that wait in vain: told with the lines of those they wait for, ended when they can never go on."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import TypeVar

import pytest

from accel_nb.launch.run import Run
from accel_nb.protocol.events import Notice, Stalled, StallEnded, StepTimes, Straggler
from accel_nb.protocol.plan import Timeouts
from accel_nb.protocol.wire import event_from_line
from tests.launch import hang_code
from tests.launch.census import until_up, wait_until
from tests.launch.launching import Launched, launch, start

pytestmark = pytest.mark.faults

SOON = Timeouts(stalled_s=1.0)
CODE = Path(hang_code.__file__)
Kind = TypeVar("Kind")


def line_of(text: str) -> int:
    """Of the only line of the ranks' code that contains `text`."""
    (number,) = (number for number, line in enumerate(CODE.read_text().splitlines(), 1) if text in line)
    return number


def recorded(run: Run, kind: type[Kind]) -> list[Kind]:
    """Events of that kind in the run's file."""
    events = map(event_from_line, (run.log_dir / "run.jsonl").read_bytes().splitlines())
    return [event for event in events if isinstance(event, kind)]


def told(launched: Launched, pattern: str) -> list[str]:
    """Our own sentences that match."""
    lines = [line.removeprefix("accel_nb: ") for line in launched.text.splitlines() if line.startswith("accel_nb: ")]
    return [line for line in lines if re.search(pattern, line)]


def without_seconds(text: str) -> str:
    """Machines that run much beside the tests tell later."""
    return re.sub(r"for \d+ s", "for _ s", text)


def test_k02_w22_who_waits_where_and_where_the_other_is() -> None:
    launched = launch(hang_code.gathers_on_rank_0_while_1_computes, 2.5, timeouts=SOON)

    assert launched.values == [None, None]
    waits, stuck = line_of("# on rank 0"), line_of("# stuck")
    first, *_ = told(launched, "waits")
    assert without_seconds(first) == (
        f"rank 0 waits in gather (hang_code.py, line {waits}) for _ s; rank 1 is at hang_code.py, line {stuck} "
        "(`all(time.monotonic() < end for _ in itertools.repeat(None))  # stuck`)"
    )
    assert told(launched, r"^the ranks go on: rank 0 waited for \d+ s$")
    stalled, *_ = recorded(launched.run, Stalled)
    assert stalled.text == first
    where = {one.rank: one for one in stalled.ranks}
    assert (where[0].state, where[0].operation) == ("waits", "accel_nb.utils.gather")
    assert where[0].number == where[1].number + 1
    assert (where[1].state, where[1].source) == ("runs", CODE.read_text().splitlines()[stuck - 1].strip())
    assert f'hang_code.py", line {stuck}' in where[1].stack
    assert len(recorded(launched.run, StallEnded)) == 1
    assert launched.run.state.stalled is None


def test_k02_a_rank_that_has_returned_ends_the_run_at_once() -> None:
    started = time.monotonic()

    launched = launch(hang_code.gathers_on_rank_0_only)

    assert time.monotonic() - started < 30, "no time-out was waited for"
    assert launched.failure.rank == 0
    assert re.search(r"rank 1 has returned", str(launched.failure))
    assert "hang_code.py" in launched.failure.cause.location


def test_k02_a_dead_end_is_found_where_no_exception_reaches() -> None:
    launched = launch(hang_code.waits_natively_for_a_rank_that_returned)

    cause = launched.failure.cause
    assert (cause.rank, cause.kind, cause.location) == (0, "dead_end", "Cell In[3], line 7")
    assert str(launched.failure).startswith(
        "waits_natively_for_a_rank_that_returned: rank 0 of 2 (cpu) waits for ever in gather (Cell In[3], line 7): "
        "rank 1 has returned. Every rank has to call"
    )
    assert "in _deaf" in str(launched.failure), "its stack"
    assert told(launched, "^rank 0 waits for ever in gather")
    assert launched.run.state.ranks[1].status == "finished"


def test_k02_operations_that_differ_are_a_dead_end() -> None:
    launched = launch(hang_code.waits_natively_in_operations_that_differ)

    failure = launched.failure
    assert (failure.ranks, failure.cause.kind) == ((0, 1), "dead_end")
    assert "rank 0 in gather([0] float32) (Cell In[3], line 7), rank 1 in gather([1] float32)" in failure.cause.message


@pytest.mark.parametrize("after_s", [0.0, 2.5])
def test_d16_uneven_loops_of_a_gloo_ddp(after_s: float) -> None:
    """Whether the rank that has finished its loop returns at once, or is busy for a while before."""
    launched = launch(hang_code.trains, (8, 7), kwargs={"after_s": after_s}, timeouts=SOON)

    line = line_of(".backward()")
    cause = launched.failure.cause
    assert (cause.rank, cause.kind) == (0, "dead_end")
    assert cause.message.startswith(
        f"waited for a rank that had ended (hang_code.py, line {line}): rank 1 has returned after 7 optimizer steps, "
        "rank 0 is in step 8. "
    )
    assert "with accelerator.join_uneven_inputs([model], even_batches=False)" in cause.message
    assert "RuntimeError" in str(launched.failure), "what gloo said is below it"
    sleeps = line_of("time.sleep(after_s)")
    expected = (
        f"rank 0 waits in backward (hang_code.py, line {line}) for _ s; rank 1 is at hang_code.py, line {sleeps} "
    )
    first = [without_seconds(text) for text in told(launched, "waits in backward")][:1]
    assert [text.startswith(expected) for text in first] == ([True] if after_s else [])


def test_k02_another_thread_that_waits_is_told_with_its_line() -> None:
    launched = launch(hang_code.another_thread_waits, 3.5, timeouts=SOON)

    assert launched.values == [None, None]
    joins, waits, beside = map(line_of, ("# of the other thread", "# in the other thread", "# beside it"))
    first, *_ = told(launched, "another thread")
    assert first == (
        f"rank 0 is at hang_code.py, line {joins} (`thread.join()  # of the other thread`), another thread is in "
        f"torch.distributed.all_reduce (hang_code.py, line {waits}); rank 1 is at hang_code.py, line {beside} "
        "(`time.sleep(seconds)  # beside it`)"
    )


def test_k02_a_hook_that_keeps_a_backward_is_told_with_its_line() -> None:
    launched = launch(hang_code.loops_in_a_hook, 3.5, timeouts=SOON)

    assert launched.values == [None, None]
    backward, hook = line_of("# calls the hook"), line_of("# in the hook")
    first, *_ = told(launched, "in which it is at")
    assert without_seconds(first) == (
        f"rank 0 waits in backward (hang_code.py, line {backward}) for _ s; rank 1 waits in backward (hang_code.py, "
        f"line {backward}) for _ s, in which it is at hang_code.py, line {hook} (`all(time.monotonic() < end for _ in "
        "itertools.repeat(None))  # in the hook`)"
    )


def test_k02_a_wait_in_a_group_says_whose_it_is() -> None:
    launched = launch(hang_code.waits_in_a_group, 3.5, timeouts=SOON)

    first, *_ = told(launched, "waits in")
    assert first.startswith(
        "rank 0 waits in torch.distributed.all_reduce in the group of ranks 0-1 (hang_code.py, line "
        f"{line_of('# in the group')}) for "
    )


def test_k02_a_wait_for_a_message_says_whose() -> None:
    launched = launch(hang_code.waits_for_a_message, 3.5, timeouts=SOON)

    first, *_ = told(launched, "waits in")
    line = line_of("# the message")
    assert first.startswith(f"rank 0 waits in torch.distributed.recv from rank 1 (hang_code.py, line {line}) for ")


def test_what_keeps_a_rank_that_has_returned_is_told_with_its_line(runs: list[Run], tmp_path: Path) -> None:
    go_on = tmp_path / "go_on"
    run = start(hang_code.an_exit_handler_waits, str(go_on))
    runs.append(run)
    line = line_of("# on the way out")

    wait_until(lambda: len(lingering(run)) == 2, 60, lambda: str(run.state))

    go_on.touch()
    assert run.wait(60)
    assert list(run.result()) == ["done"] * 2
    assert sorted(lingering(run)) == [
        f"rank {rank} has returned, but its process goes on: its exit handler is at hang_code.py, line {line} "
        "(`time.sleep(0.05)  # on the way out`)."
        for rank in range(2)
    ]


def lingering(run: Run) -> list[str]:
    return [event.text for event in recorded(run, Notice) if "its process goes on" in event.text]


def test_k13_all_ranks_in_their_first_operation() -> None:
    launched = launch(hang_code.all_wait_in_their_first_operation, 2.5, timeouts=SOON)

    first, *_ = told(launched, "^ranks")
    assert without_seconds(first).startswith(
        "ranks 0-1 wait in gather (Cell In[3], line 7) for _ s. All ranks are in the first operation of their process "
        "group, so none of them is missing: rank 0 on cpu, rank 1 on cpu. "
    )
    assert "GLOO_SOCKET_IFNAME" in first


def test_k14_a_rank_that_does_not_answer_is_told_with_its_state(runs: list[Run]) -> None:
    run = start(hang_code.one_is_stopped, timeouts=SOON)
    runs.append(run)

    wait_until(lambda: run.state.stalled is not None, 30, lambda: str(run))

    assert run.state.stalled is not None
    assert without_seconds(run.state.stalled.text) == (
        "rank 0 waits in gather (Cell In[3], line 7) for _ s; rank 1 does not say where it is, its process does not "
        "answer, state T (stopped)"
    )


def test_k04_a_long_preparation_is_told_and_ends_nothing() -> None:
    launched = launch(hang_code.prepares_first, 3.5, timeouts=SOON)

    assert launched.values == ["prepared", "prepared"]
    waits, prepares = line_of("with state.main_process_first():"), line_of("# prepares")
    first, *_ = told(launched, "waits")
    assert without_seconds(first) == (
        f"rank 1 waits in main_process_first (hang_code.py, line {waits}) for _ s; rank 0 is at hang_code.py, line "
        f"{prepares} (`time.sleep(seconds)  # prepares`)"
    )


@pytest.mark.parametrize(("num_workers", "method"), [(0, None), (2, "fork"), (1, "spawn"), (1, "forkserver")])
def test_k02_a_sample_that_hangs(num_workers: int, method: str | None, runs: list[Run]) -> None:
    """In the rank itself, and in workers of every kind."""
    run = start(hang_code.reads, num_workers, method, 90.0, timeouts=SOON)
    runs.append(run)

    line = line_of("# the sample that hangs")
    sample = rf"hang_code\.py, line {line} \(`time\.sleep\(stuck_s\)  # the sample that hangs`\)"
    where = rf"rank \d .*, its worker \d+ is at {sample}" if num_workers else sample

    def is_told() -> bool:
        return run.state.stalled is not None and bool(re.search(where, run.state.stalled.text))

    # Workers that start slowly are waited for, too, and told.
    wait_until(is_told, 80, lambda: str(run.state.stalled))
    assert any(re.search(where, event.text) for event in recorded(run, Stalled))


def test_k14_w22_stacks_of_a_rank_that_holds_the_interpreter_and_of_workers(runs: list[Run]) -> None:
    run = until_up(start(hang_code.holds_the_interpreter))
    runs.append(run)
    time.sleep(0.3)
    started = time.monotonic()

    stacks = run.stacks()

    assert time.monotonic() - started < 3
    assert "in holds_the_interpreter" in stacks[0]
    assert "in holds_the_interpreter" in stacks[1]


def test_k14_programs_that_a_rank_starts_are_not_killed_by_the_question_for_stacks(runs: list[Run]) -> None:
    """Until it has become the program, a child looks like the rank: with its files and its handlers."""
    run = start(hang_code.starts_programs, 5.0)
    runs.append(run)
    until_up(run)

    while not run.state.ended:
        with contextlib.suppress(TimeoutError):
            run.stacks()

    assert run.wait(10)
    assert list(run.result()) == [{0}, {0}]


def test_k14_a_rank_that_has_become_another_program_is_not_killed_by_the_question(runs: list[Run]) -> None:
    run = start(hang_code.becomes_another_program, 10.0)
    runs.append(run)
    until_up(run)
    time.sleep(0.5)

    assert run.stacks() == {0: "", 1: ""}
    assert run.wait(30)
    assert [state.signal for state in run.state.ranks.values()] == [None, None]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_k14_stacks_of_workers(method: str, runs: list[Run]) -> None:
    run = start(hang_code.reads, 2, method, 60.0)
    runs.append(run)
    where = f'hang_code.py", line {line_of("# the sample that hangs")} in __getitem__'
    end = time.monotonic() + 40
    stacks: dict[int, str] = {}
    while not any(where in text for text in stacks.values()):
        assert time.monotonic() < end, (stacks, run.state)
        assert run.state.status != "failed", run.state.failures
        time.sleep(0.2)
        started = time.monotonic()
        stacks = run.stacks()
        assert time.monotonic() - started < 3

    text = next(text for text in stacks.values() if where in text)
    assert re.search(r"\n\nProcess \d+, started by this rank:\n", text)
    assert "in _worker_loop" in text


def test_step_times_and_a_straggler_by_computation() -> None:
    launched = launch(hang_code.steps, 60, (0.02, 0.12), (0.01, 0.01))

    (straggler,) = recorded(launched.run, Straggler)
    assert (straggler.rank, straggler.by) == (1, "computation")
    assert 2 < straggler.factor < 8
    assert told(launched, r"^rank 1 \(cpu\) holds the others up by 0\.\d\d s in each step: its own part takes 0\.1\d s")
    assert launched.run.state.ranks[1].straggler == straggler
    newest = launched.run.state.ranks[0].step_times
    assert newest is not None
    assert newest.own_s < 0.1 < newest.step_s
    assert {event.rank for event in recorded(launched.run, StepTimes)} == {0, 1}


def test_a_straggler_by_input() -> None:
    launched = launch(hang_code.steps, 60, (0.02, 0.02), (0.1, 0.0))

    (straggler,) = recorded(launched.run, Straggler)
    assert (straggler.rank, straggler.by) == (0, "input")


def test_ranks_that_keep_pace_are_not_told() -> None:
    launched = launch(hang_code.steps, 50, (0.1, 0.11), (0.01, 0.0))

    assert recorded(launched.run, Straggler) == []


def test_watching_leaves_the_keeper_at_rest() -> None:
    """Three seconds in which every rank waits: no more wake-ups than for the lines of ranks, next to no CPU."""
    launched = launch(hang_code.keepers_use, 3.0)

    for cpu_s, wake_ups in launched.values:
        assert cpu_s < 0.2
        assert wake_ups < 40
