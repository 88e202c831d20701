"""The exception a failed run raises: readable, bounded, text only."""

from __future__ import annotations

import pickle

import pytest

from accel_nb.launch.run_failed import MAX_LINES, RunFailed, RunInterrupted, stand_in
from accel_nb.protocol.failure import RankFailure
from accel_nb.protocol.plan import LaunchPlan, RankPlan

TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  Cell In[7], line 12, in train\n    raise ValueError("boom")\nValueError: boom'
)


def plan(num_ranks: int) -> LaunchPlan:
    return LaunchPlan(
        run_id="r",
        function_name="train",
        engine="local",
        device_kind="cpu",
        process_group="gloo",
        ranks=tuple(RankPlan(rank=rank, local_rank=rank) for rank in range(num_ranks)),
    )


def raised(rank: int, **changes: object) -> RankFailure:
    fields = {
        "rank": rank,
        "kind": "raised",
        "type_name": "ValueError",
        "message": "boom",
        "traceback": TRACEBACK,
        "location": "Cell In[7], line 12",
        "time_s": float(rank),
    }
    return RankFailure(**(fields | changes))  # type: ignore[arg-type]


def test_e01_the_last_lines_are_the_ranks_own_traceback() -> None:
    error = RunFailed([raised(1)], plan(2), "/logs")

    assert str(error).splitlines() == [
        "train: rank 1 of 2 (cpu) failed at Cell In[7], line 12.",
        "Log: /logs/rank_1.log",
        "",
        *TRACEBACK.splitlines(),
    ]
    assert (error.rank, error.exc_type, error.traceback_text, error.ranks) == (1, "ValueError", TRACEBACK, (1,))


def test_e05_consequences_are_one_line() -> None:
    closed = raised(0, type_name="RuntimeError", message="Connection closed by peer", consequence=True)

    text = str(RunFailed([closed, raised(1), raised(2, kind="stopped", message="")], plan(3), ""))

    assert "As a consequence: ranks 0, 2 ended." in text
    assert text.endswith("ValueError: boom")


def test_e05_the_cause_is_not_among_its_own_consequences() -> None:
    closed = [raised(rank, message=f"gloo: Connection closed by peer {rank}", consequence=True) for rank in (0, 1)]

    lines = str(RunFailed(closed, plan(2), "")).splitlines()

    assert lines[0].startswith("train: rank 0 of 2")
    assert lines[1] == "As a consequence: rank 1 ended."


def test_e06_ranks_that_fail_as_the_cause_does_are_no_consequences_of_it() -> None:
    text = str(RunFailed([raised(rank, consequence=True) for rank in (0, 1)], plan(2), ""))

    assert "Same error on ranks 0-1." in text
    assert "consequence" not in text


def test_e06_the_same_error_is_shown_once() -> None:
    error = RunFailed([raised(rank) for rank in range(8)], plan(8), "")

    assert str(error).count("ValueError: boom") == 1
    assert "Same error on ranks 0-7." in str(error)
    assert error.ranks == tuple(range(8))


def test_e06_a_different_error_gets_its_own_line() -> None:
    other = [raised(rank, type_name="KeyError", message="'x'\nmore", location="Cell In[7], line 3") for rank in (2, 3)]

    text = str(RunFailed([raised(1), *other], plan(4), ""))

    assert text.count("Also ranks 2-3: KeyError: 'x'") == 1


def test_e06_the_same_error_at_another_line_is_not_repeated() -> None:
    other = [raised(rank, location="Cell In[7], line 3") for rank in (2, 3)]

    text = str(RunFailed([raised(1), *other], plan(4), ""))

    assert "Same error on ranks 2-3 at Cell In[7], line 3." in text.splitlines()
    assert text.count("ValueError: boom") == 1


@pytest.mark.parametrize("location", ["Cell In[7], line 12", "Cell In[7], line 3"])
def test_e06_an_error_that_lists_all_ranks_is_the_same_on_each(location: str) -> None:
    message = "the ranks differ:\n  rank 0: [1]\n  rank 1: [2]"
    failures = [raised(0, message=message), raised(1, message=message, location=location)]

    text = str(RunFailed(failures, plan(2), ""))

    assert "Same error on rank" in text
    assert "Also" not in text


def test_e06_errors_that_name_their_own_rank_are_the_same() -> None:
    failures = [raised(rank, message=f"no gradient for rank {rank}: 2 3, rank 10") for rank in (0, 1)]

    assert "Same error on ranks 0-1." in str(RunFailed(failures, plan(2), ""))
    assert "Same error" not in str(RunFailed([failures[0], raised(1, message="for rank 0: 2 3, rank 10")], plan(2), ""))


def test_e01_a_long_traceback_is_cut_in_the_middle() -> None:
    frames = "\n".join(f"  Cell In[7], line {number}, in f" for number in range(300))

    lines = str(RunFailed([raised(0, traceback=f"Traceback\n{frames}\nValueError: boom")], plan(1), "/l")).splitlines()

    assert len(lines) <= MAX_LINES
    assert lines[-1] == "ValueError: boom"
    assert any("lines, see the log" in line for line in lines)


def test_e02_a_death_shows_its_stack_and_last_lines() -> None:
    died = RankFailure(
        rank=1,
        kind="died",
        message="crashed with SIGSEGV.",
        last_lines=("epoch 1", "epoch 2"),
        stack="Fatal error\nf()",
    )

    text = str(RunFailed([died], plan(2), ""))

    assert text.startswith("train: rank 1 of 2 (cpu) died: crashed with SIGSEGV.")
    assert text.index("Fatal error") < text.index("  epoch 2")


def test_k02_a_dead_end_shows_its_cause_and_its_stack() -> None:
    dead = RankFailure(
        rank=0, kind="dead_end", message="waits for ever in gather (Cell In[3], line 7): rank 1 has returned.",
        location="Cell In[3], line 7", stack="Current thread\n  Cell In[3], line 7, in f",
    )  # fmt: skip
    stopped = RankFailure(rank=1, kind="stopped", consequence=True)

    error = RunFailed([stopped, dead], plan(2), "")

    assert str(error).splitlines()[0] == (
        "train: rank 0 of 2 (cpu) waits for ever in gather (Cell In[3], line 7): rank 1 has returned."
    )
    assert "Its Python stack at that moment:\nCurrent thread\n  Cell In[3], line 7, in f" in str(error)
    assert "As a consequence: rank 1 ended." in str(error)
    assert repr(stand_in(error.cause)).startswith("DeadEnd(")


def test_d16_a_dead_end_that_raised_shows_its_traceback() -> None:
    dead = RankFailure(
        rank=0, kind="dead_end", message="waited for a rank that had ended: rank 1 has returned.",
        type_name="RuntimeError", traceback="Traceback\nRuntimeError: Connection closed by peer",
    )  # fmt: skip

    error = RunFailed([dead], plan(2), "")

    assert str(error).startswith("train: rank 0 of 2 (cpu) waited for a rank that had ended: rank 1 has returned.")
    assert str(error).endswith("RuntimeError: Connection closed by peer")
    assert error.exc_type == "RuntimeError"


def test_y11_an_exit_status_is_named() -> None:
    text = str(RunFailed([raised(0, type_name="SystemExit", message="3", exit_code=3)], plan(1), ""))

    assert "ended at Cell In[7], line 12 with exit status 3." in text


def test_the_last_of_several_attempts_is_named() -> None:
    assert "in the last of 3 attempts" in str(RunFailed([raised(0)], plan(1), "", attempts=3))


def test_ipython_is_given_the_text_instead_of_the_kernels_frames() -> None:
    error = RunFailed([raised(1)], plan(2), "")

    shown = error._render_traceback_()

    assert shown[0].startswith("RunFailed: train: rank 1 of 2")
    assert shown[-1] == "ValueError: boom"
    assert RunInterrupted("train was interrupted")._render_traceback_() == ["KeyboardInterrupt: train was interrupted"]


def test_it_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(RunFailed([raised(1)], plan(2), "/logs", attempts=2)))

    assert (error.rank, error.attempts, error.log_dir) == (1, 2, "/logs")


def test_the_stand_in_is_named_like_the_original_and_holds_text() -> None:
    error = stand_in(raised(0, type_name="torch.cuda.OutOfMemoryError", message="no room"))

    assert (type(error).__name__, str(error)) == ("OutOfMemoryError", "no room")
