"""The plain text of a run: who said it, once, in order, and never more than a front end can take."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from accel_nb.launch.views.flow_limit import BURST_BYTES, LINE_CHARS
from accel_nb.launch.views.line_groups import HOLD_S
from accel_nb.launch.views.view import TextView
from accel_nb.protocol.events import (
    CellEnded,
    Display,
    EventsDropped,
    HostMemoryLow,
    LogLines,
    Notice,
    ProgressRow,
    RankFailed,
    Restarting,
    RunEnded,
    RunEvent,
    RunStarted,
    Stalled,
    StallEnded,
    StepTimes,
    StopRequested,
    Straggler,
)
from accel_nb.protocol.failure import RankFailure
from accel_nb.protocol.plan import LaunchPlan, RankPlan
from accel_nb.protocol.run_state import RunState, advance_all


class Terminal:
    """A text view on a clock of its own, and what it wrote when."""

    def __init__(self, num_ranks: int = 2, template: str | None = None, notable: Sequence[str] = ()) -> None:
        self.now = 100.0
        self.writes: list[tuple[float, str]] = []
        self.state = RunState()
        self.view = TextView(lambda text: self.writes.append((self.now, text)), clock=lambda: self.now)
        plan = LaunchPlan(
            run_id="run",
            function_name="train",
            engine="local",
            device_kind="cpu",
            process_group="gloo",
            ranks=tuple(RankPlan(rank=rank, local_rank=rank % 4) for rank in range(num_ranks)),
            log_line_prefix_template=template,
            max_restarts=2,
            reasons=("Settings: all defaults.", *notable),
            notable=tuple(notable),
        )
        self.show(RunStarted(plan=plan, log_dir="/logs"))
        self.tick(1.0)
        self.banner = self.lines
        self.writes.clear()

    def show(self, *events: RunEvent) -> None:
        self.state = advance_all(self.state, events)
        self.view.update(events, self.state)

    def tick(self, seconds: float, step_s: float = 0.1) -> None:
        for _ in range(round(seconds / step_s)):
            self.now += step_s
            self.view.update((), self.state)

    def close(self) -> list[str]:
        self.view.close(self.state)
        return self.lines

    @property
    def lines(self) -> list[str]:
        return "".join(text for _, text in self.writes).splitlines()


def lines(rank: int, *text: str) -> LogLines:
    return LogLines(rank=rank, text="\n".join(text))


def bar(rank: int, n: int, *, number: int = 0, done: bool = False, text: str | None = None) -> ProgressRow:
    drawn = f"{n}/9" if text is None else text
    return ProgressRow(rank=rank, bar=number, n=n, total=9, text=drawn, done=done)


class TestBanner:
    def test_it_is_one_line_when_nothing_was_changed_for_the_user(self) -> None:
        assert Terminal().banner == [
            "accel_nb: train: 2 ranks on cpu (asked: default), gloo, 1 thread each, precision no"
        ]

    def test_what_was_changed_for_the_user_follows(self) -> None:
        assert Terminal(notable=["Hidden from the ranks: X."]).banner[1:] == ["accel_nb: Hidden from the ranks: X."]


class TestPrefixes:
    def test_o09_lines_say_which_rank_wrote_them(self) -> None:
        terminal = Terminal()

        terminal.show(lines(0, "a"), lines(1, "b"))

        assert terminal.close() == ["[r0] a", "[r1] b"]

    def test_one_rank_has_no_prefix(self) -> None:
        terminal = Terminal(num_ranks=1)

        terminal.show(lines(0, "a", "", "b"))

        assert terminal.lines == ["a", "", "b"], "and its lines are not held back"

    def test_the_users_template_is_filled_as_torchrun_does(self) -> None:
        terminal = Terminal(num_ranks=6, template="<${role_name} ${rank}/${local_rank} ${other}>:")

        terminal.show(lines(5, "a"))

        assert terminal.close() == ["<default 5/1 ${other}>:a"]

    def test_a_template_also_counts_for_one_rank_and_keeps_ranks_apart(self) -> None:
        assert _shown(Terminal(1, "${rank}|"), lines(0, "a")) == ["0|a"]
        assert _shown(Terminal(2, "${rank}|"), lines(0, "a"), lines(1, "a")) == ["0|a", "1|a"]


def _shown(terminal: Terminal, *events: RunEvent) -> list[str]:
    terminal.show(*events)
    return terminal.close()


class TestLogLevels:
    TOLD = (
        "accel_nb: log lines below WARNING are shown of rank 0 only; those of the others are in /logs/rank_*.log. "
        "os.environ['ACCEL_NB_ALL_LINES'] = '1' shows them from the next launch on."
    )

    def test_o09_routine_of_rank_0_and_warnings_of_all_are_shown(self) -> None:
        terminal = Terminal(num_ranks=3)

        terminal.show(*(lines(rank, f"INFO:root:loss {rank}", f"WARNING:root:slow {rank}") for rank in range(3)))

        assert terminal.close() == [
            "[r0] INFO:root:loss 0", "[r0] WARNING:root:slow 0", self.TOLD, "[r1] WARNING:root:slow 1",
            "[r2] WARNING:root:slow 2",
        ]  # fmt: skip

    def test_o09_a_line_that_rank_0_shares_is_shown_of_all(self) -> None:
        terminal = Terminal(num_ranks=8)

        terminal.show(*(lines(rank, "INFO:root:ready") for rank in range(8)))

        assert terminal.close() == ["[r0-r7] INFO:root:ready"]

    def test_o09_it_is_said_once(self) -> None:
        terminal = Terminal()

        for number in range(100):
            terminal.show(lines(1, f"INFO:root:step {number}"))
            terminal.tick(0.2)

        assert terminal.close() == [self.TOLD]

    def test_o09_all_ranks_are_one_option(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ACCEL_NB_ALL_LINES", "1")
        terminal = Terminal()

        terminal.show(lines(1, "INFO:root:step 1"))

        assert terminal.close() == ["[r1] INFO:root:step 1"]

    def test_o09_a_template_changes_nothing_about_it(self) -> None:
        assert _shown(Terminal(2, "${rank}|"), lines(1, "DEBUG:root:x", "y")) == [self.TOLD, "1|y"]

    def test_nothing_of_a_single_rank_is_left_out(self) -> None:
        assert _shown(Terminal(1), lines(0, "DEBUG:root:x")) == ["DEBUG:root:x"]


class TestEqualLines:
    def test_o09_the_same_line_of_all_ranks_is_one_and_at_once(self) -> None:
        terminal = Terminal(num_ranks=8)

        terminal.show(*(lines(rank, "loading", "ready") for rank in range(8)))

        assert terminal.lines == ["[r0-r7] loading", "[r0-r7] ready"]

    def test_some_ranks_are_named(self) -> None:
        terminal = Terminal(num_ranks=8)

        assert _shown(terminal, *(lines(rank, "a") for rank in (5, 0, 3, 2))) == ["[r0,r2-r3,r5] a"]

    def test_o09_ranks_may_be_late_by_less_than_the_hold(self) -> None:
        terminal = Terminal(num_ranks=3)
        terminal.show(lines(0, "a"))
        terminal.tick(0.5)
        terminal.show(lines(1, "a"))
        terminal.tick(HOLD_S - 0.5 + 0.1)
        terminal.show(lines(2, "a"))

        assert terminal.close() == ["[r0-r1] a", "[r2] a"]

    def test_o01_nothing_is_held_back_longer(self) -> None:
        terminal = Terminal()
        shown_after = terminal.now + HOLD_S

        terminal.show(lines(0, "a"))
        terminal.tick(2.0)

        assert len(terminal.writes) == 1
        assert shown_after <= terminal.writes[0][0] < shown_after + 0.2 < terminal.now

    def test_the_order_of_each_rank_is_kept(self) -> None:
        terminal = Terminal()

        terminal.show(lines(0, "a", "b", "c"), lines(1, "c", "b", "a"))

        shown = terminal.close()
        for rank, order in ((0, "abc"), (1, "cba")):
            assert "".join(line[-1] for line in shown if f"r{rank}" in line) == order
        assert shown.count("[r0-r1] c") == 1

    def test_o09_lines_of_one_rank_between_equal_lines_do_not_keep_them_apart(self) -> None:
        terminal = Terminal(num_ranks=3)

        terminal.show(*(lines(rank, "start", f"I am {rank}", "ready", f"{rank} goes", "end") for rank in range(3)))

        assert terminal.close() == [
            "[r0-r2] start",
            "[r0] I am 0",
            "[r1] I am 1",
            "[r2] I am 2",
            "[r0-r2] ready",
            "[r0] 0 goes",
            "[r1] 1 goes",
            "[r2] 2 goes",
            "[r0-r2] end",
        ]

    def test_whatever_is_collapsed_the_order_of_each_rank_is_kept(self) -> None:
        words = random.Random(7)
        for num_ranks in (2, 3, 8):
            terminal = Terminal(num_ranks)
            written: dict[int, list[str]] = {rank: [] for rank in range(num_ranks)}
            for _ in range(400):
                rank = words.randrange(num_ranks)
                text = words.choice(["same", "a", "b", f"own {words.randrange(99)}"])
                written[rank].append(text)
                terminal.show(lines(rank, text))
                terminal.now += words.choice([0.0, 0.0, 0.01, 0.3])
            shown: dict[int, list[str]] = {rank: [] for rank in range(num_ranks)}
            for line in terminal.close():
                names, _, text = line[1:].partition("] ")
                for part in names.replace("r", "").split(","):
                    first, _, last = part.partition("-")
                    for rank in range(int(first), int(last or first) + 1):
                        shown[rank].append(text)

            assert shown == written

    def test_a_line_that_one_rank_writes_twice_stays_two(self) -> None:
        terminal = Terminal()

        assert _shown(terminal, lines(0, "a", "a"), lines(1, "a")) == ["[r0-r1] a", "[r0] a"]


class TestBars:
    def test_o06_only_the_last_state_is_shown_as_one_line(self) -> None:
        terminal = Terminal()

        terminal.show(bar(0, 1), bar(0, 5), bar(0, 9, done=True), lines(0, "after"))

        assert terminal.close() == ["[r0] 9/9", "[r0] after"]

    def test_bars_of_a_run_that_ended_early_are_shown_once_in_the_end(self) -> None:
        terminal = Terminal()
        terminal.show(bar(0, 5), bar(1, 9, done=True))
        terminal.tick(1.0)

        terminal.close()

        assert terminal.close() == ["[r1] 9/9", "[r0] 5/9"]

    def test_an_erased_bar_leaves_no_line(self) -> None:
        assert _shown(Terminal(), bar(0, 9), bar(0, 9, done=True, text="")) == []

    def test_the_bars_of_each_attempt_are_shown(self) -> None:
        terminal = Terminal(num_ranks=1)

        terminal.show(bar(0, 4, done=True), Restarting(attempt=1), bar(0, 9, done=True))

        assert terminal.close() == ["4/9", "accel_nb: starting all ranks again, attempt 2 of 3", "9/9"]


class TestEvents:
    def test_u12_displays_of_rank_0_are_text_and_those_of_others_are_in_their_logs(self) -> None:
        displays = [
            Display(rank=0, data={"text/plain": "Figure\n1 axes", "image/png": "x"}),
            Display(rank=0, data={"text/plain": "again"}, update=True),
            Display(rank=1, data={"text/plain": "of rank 1"}),
        ]

        assert _shown(Terminal(), *displays) == ["[r0] Figure", "[r0] 1 axes"]

    def test_w05_the_first_failure_in_a_kept_cell_is_told_and_no_interrupt(self) -> None:
        wrong = RankFailure(rank=1, kind="raised", type_name="ValueError", message="wrong")
        stopped = RankFailure(rank=0, kind="stopped", type_name="KeyboardInterrupt")

        told = _shown(
            Terminal(),
            CellEnded(rank=0, cell=1, failure=stopped),
            CellEnded(rank=1, cell=1, failure=wrong),
            CellEnded(rank=0, cell=2),
        )

        assert told == ["accel_nb: rank 1 failed: ValueError: wrong"]

    def test_notices_are_shown(self) -> None:
        assert _shown(Terminal(), Notice(text="something")) == ["accel_nb: something"]

    def test_w22_stalls_stragglers_and_full_memory_are_shown(self) -> None:
        told: tuple[RunEvent, ...] = (
            Stalled(text="rank 0 waits", waits_s=30.0, ranks=()),
            StallEnded(text="the ranks go on", waited_s=40.0),
            Straggler(rank=1, text="rank 1 is slow", factor=2.0, by="input", own_s=0.2, others_s=0.1),
            HostMemoryLow(text="nearly full", used_bytes=9, limit_bytes=10, largest_rank=0, rank_bytes=5),
            StepTimes(rank=0, num_steps=3, step_s=0.5, own_s=0.1, input_s=0.0),
        )

        assert _shown(Terminal(), *told) == [
            "accel_nb: rank 0 waits",
            "accel_nb: the ranks go on",
            "accel_nb: rank 1 is slow",
            "accel_nb: nearly full",
        ]

    def test_k02_a_dead_end_is_told_without_a_verb_of_ours(self) -> None:
        failure = RankFailure(rank=0, kind="dead_end", message="waits for ever in gather: rank 1 has returned.")

        shown = _shown(Terminal(), RankFailed(rank=0, failure=failure))

        assert shown == ["accel_nb: rank 0 waits for ever in gather: rank 1 has returned."]

    def test_what_was_written_before_a_sentence_of_ours_comes_before_it(self) -> None:
        assert _shown(Terminal(), lines(0, "a"), Notice(text="n"), lines(0, "b")) == ["[r0] a", "accel_nb: n", "[r0] b"]

    def test_o13_missing_lines_are_told_with_the_file_that_has_them(self) -> None:
        terminal = Terminal()

        terminal.show(EventsDropped(rank=1, lines=4312), lines(1, "a"))

        assert terminal.close() == ["[r1] … 4,312 lines not shown: /logs/rank_1.log", "[r1] a"]

    def test_missing_lines_are_told_also_when_nothing_follows(self) -> None:
        terminal = Terminal(num_ranks=1)
        terminal.show(EventsDropped(rank=0, lines=3))
        terminal.tick(1.0)

        assert terminal.lines == ["… 3 lines not shown: /logs/rank_0.log"]

    @pytest.mark.parametrize(
        ("by", "why"), [("interrupt", "interrupt"), ("handle", "stop() was called")], ids=["interrupt", "handle"]
    )
    def test_y09_after_a_stop_by_the_user_ranks_are_silent(self, by: str, why: str) -> None:
        terminal = Terminal()
        terminal.show(lines(0, "before"))
        terminal.show(StopRequested(by=by), StopRequested(by=by), *(lines(r, "Traceback", "noise") for r in range(2)))
        terminal.show(EventsDropped(rank=0, lines=3), RunEnded(leftovers=4))

        assert terminal.close() == ["[r0] before", f"accel_nb: stopping the ranks ({why})"]

    def test_e07_after_a_failure_what_ranks_write_is_shown(self) -> None:
        terminal = Terminal()
        failure = RankFailure(rank=1, kind="raised", type_name="ValueError", message="boom\nmore")
        other = RankFailure(rank=0, kind="raised", type_name="RuntimeError", message="closed", consequence=True)
        terminal.show(lines(1, "last words"), RankFailed(rank=1, failure=failure))
        terminal.show(StopRequested(by="failure"), lines(0, "bye"), RankFailed(rank=0, failure=other))

        assert terminal.close() == ["[r1] last words", "accel_nb: rank 1 failed: ValueError: boom", "[r0] bye"]

    def test_the_last_state_of_bars_is_shown_after_a_stop_but_not_after_an_interrupt(self) -> None:
        """An interrupt raises an exception that tells the last step of each rank."""
        events = [bar(0, 4), bar(0, 5, done=True)]

        assert _shown(Terminal(1), StopRequested(by="handle"), *events)[1:] == ["5/9"]
        assert _shown(Terminal(1), StopRequested(by="interrupt"), *events)[1:] == []

    def test_processes_that_were_left_behind_are_told(self) -> None:
        assert _shown(Terminal(), RunEnded(leftovers=2)) == [
            "accel_nb: 2 processes that the ranks had left behind were ended"
        ]


class TestLimits:
    def flood(self, terminal: Terminal, seconds: float, lines_per_tick: int) -> int:
        """All ranks write numbered lines, 100 updates a second. Gives the number of lines of each rank."""
        num_lines = 0
        for _ in range(round(seconds * 100)):
            terminal.now += 0.01
            text = [f"{num_lines + i:09} " + "x" * 60 for i in range(lines_per_tick)]
            terminal.show(*(lines(rank, *(f"{rank}{line}" for line in text)) for rank in terminal.state.ranks))
            num_lines += lines_per_tick
        return num_lines

    def test_o13_at_most_20_writes_and_200_kb_in_any_second(self) -> None:
        terminal = Terminal(num_ranks=8)

        self.flood(terminal, 4.0, 100)

        for window in windows(terminal.writes):
            assert len(window) <= 20
            assert sum(len(text.encode()) for _, text in window) <= 200_000

    def test_o13_the_newest_lines_are_kept_and_all_others_counted(self) -> None:
        terminal = Terminal(num_ranks=2)
        num_lines = self.flood(terminal, 4.0, 100)
        terminal.tick(2.0)

        shown = terminal.close()

        for rank in range(2):
            own = [line for line in shown if line.startswith(f"[r{rank}] {rank}")]
            missing = [line for line in shown if line.startswith(f"[r{rank}] …")]
            assert own[-1].split()[1] == f"{rank}{num_lines - 1:09}"
            assert own == sorted(own)
            assert len(own) + sum(int(line.split()[2].replace(",", "")) for line in missing) == num_lines
            assert len(missing) <= 8, "told once a second"

    def test_a_burst_of_200_kb_is_shown_in_full(self) -> None:
        terminal = Terminal(num_ranks=1)
        text = [f"{i:06} " + "x" * 92 for i in range(1950)]

        terminal.show(lines(0, *text))
        terminal.tick(1.5)

        assert terminal.lines == text
        assert len(terminal.writes[0][1]) <= BURST_BYTES

    def test_our_own_sentences_are_never_left_out(self) -> None:
        terminal = Terminal(num_ranks=1)
        self.flood(terminal, 2.0, 100)
        terminal.show(Notice(text="in between"))
        self.flood(terminal, 2.0, 100)

        assert "accel_nb: in between" in terminal.close()

    def test_the_end_of_a_very_long_line_is_left_out(self) -> None:
        shown = _shown(Terminal(), lines(1, "x" * 10_000))

        assert shown == ["[r1] " + "x" * LINE_CHARS + "… 6,000 more characters: /logs/rank_1.log"]


def windows(writes: Sequence[tuple[float, str]]) -> Iterator[list[tuple[float, str]]]:
    for start, _ in writes:
        yield [write for write in writes if start <= write[0] < start + 1.0]
