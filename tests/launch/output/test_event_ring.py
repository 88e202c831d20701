"""The queue towards the kernel: bounded, in order, and honest about what is missing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from accel_nb.launch.output.event_ring import EventRing
from accel_nb.protocol.events import (
    Display,
    EventsDropped,
    LogLines,
    MetricsLogged,
    Notice,
    ProgressRow,
    RankExited,
    RankFailed,
    RankFinished,
    RankStarted,
    RankUsage,
    Restarting,
    RunEnded,
    RunEvent,
    Stalled,
    StepTimes,
    StopRequested,
)
from accel_nb.protocol.failure import RankFailure
from accel_nb.protocol.run_state import RunState, advance_all

EVERYTHING = 1 << 30


def lines(rank: int, *text: str) -> LogLines:
    return LogLines(rank=rank, text="\n".join(text))


def row(n: int, bar: int = 0, rank: int = 0) -> ProgressRow:
    return ProgressRow(rank=rank, bar=bar, text=f"{n}/9", n=n, total=9)


def unnumbered(events: list[RunEvent]) -> list[RunEvent]:
    return [replace(event, sequence=0) for event in events]


def test_events_are_numbered_from_one_in_the_order_given() -> None:
    ring = EventRing()

    added = [ring.add(lines(0, "a")), ring.add(Notice(text="b"))]

    assert [event.sequence for event in added] == [1, 2]
    assert ring.take(EVERYTHING) == added
    assert len(ring) == 0


def test_a_later_attempt_goes_on_counting() -> None:
    assert EventRing(first_sequence=41).add(lines(0, "a")).sequence == 41


def test_only_the_sequence_is_set() -> None:
    event = LogLines(rank=1, text="a", time_s=5.5)

    assert EventRing().add(event) == replace(event, sequence=1)


def test_a_batch_holds_at_most_the_bytes_asked_for_and_at_least_one_event() -> None:
    ring = EventRing()
    for _ in range(5):
        ring.add(lines(0, "x" * 1000))

    assert [len(ring.take(2500)), len(ring.take(10)), len(ring.take(EVERYTHING)), len(ring.take(10))] == [2, 1, 2, 0]


def test_o13_the_oldest_lines_leave_and_are_counted_by_rank_where_they_were() -> None:
    ring = EventRing(log_bytes=20)
    ring.add(lines(0, "0123", "567"))
    ring.add(Notice(text="between"))
    ring.add(lines(1, "0123456789"))
    ring.add(lines(0, "abcdefghij"))
    ring.add(lines(0, "klm"))

    assert unnumbered(ring.take(EVERYTHING)) == [
        EventsDropped(rank=0, lines=2),
        Notice(text="between"),
        EventsDropped(rank=1, lines=1),
        lines(0, "abcdefghij"),
        lines(0, "klm"),
    ]


def test_gaps_of_one_rank_become_one_right_before_its_next_lines() -> None:
    ring = EventRing(log_bytes=10)
    for text in ("aaaaaaaa", "bbbbbbbb", "cccccccc"):
        ring.add(lines(0, text))
        ring.add(Notice(text="n"))
    ring.add(lines(0, "d"))

    taken = ring.take(EVERYTHING)

    assert unnumbered(taken) == [
        Notice(text="n"),
        EventsDropped(rank=0, lines=2),
        Notice(text="n"),
        lines(0, "cccccccc"),
        Notice(text="n"),
        lines(0, "d"),
    ]
    assert [event.sequence for event in taken] == sorted(event.sequence for event in taken)


def test_a_gap_that_was_taken_is_not_told_again() -> None:
    ring = EventRing(log_bytes=4)
    ring.add(lines(0, "abc"))
    ring.add(lines(0, "def"))
    assert ring.take(1) == [EventsDropped(rank=0, lines=1, sequence=1)]

    ring.add(lines(0, "ghi"))

    assert unnumbered(ring.take(EVERYTHING)) == [EventsDropped(rank=0, lines=1), lines(0, "ghi")]


def test_lines_longer_than_the_ring_are_told_as_missing() -> None:
    ring = EventRing(log_bytes=10)
    ring.add(lines(0, "x" * 11))

    assert unnumbered(ring.take(EVERYTHING)) == [EventsDropped(rank=0, lines=1)]


def test_memory_is_bounded_while_nobody_takes() -> None:
    ring = EventRing(log_bytes=10_000)
    for i in range(10_000):
        ring.add(lines(i % 4, f"{i:0100}"))
        ring.add(row(i, bar=i % 3))

    taken = ring.take(EVERYTHING)

    assert sum(len(event.text) for event in taken if isinstance(event, LogLines)) <= 10_000
    assert sum(isinstance(event, EventsDropped) for event in taken) == 4
    assert sum(isinstance(event, ProgressRow) for event in taken) <= 6
    lost = sum(event.lines for event in taken if isinstance(event, EventsDropped))
    assert lost + sum(isinstance(event, LogLines) for event in taken) == 10_000


def test_only_a_first_and_the_newest_state_of_a_bar_wait() -> None:
    ring = EventRing()
    for n in range(10):
        ring.add(row(n))
        ring.add(row(n, bar=1))
        ring.add(row(n, rank=1))

    taken = ring.take(EVERYTHING)

    counts = [(event.rank, event.bar, event.n) for event in taken if isinstance(event, ProgressRow)]
    assert counts == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 0, 9), (0, 1, 9), (1, 0, 9)]


def test_only_a_first_and_the_newest_step_times_of_a_rank_wait() -> None:
    ring = EventRing()
    for steps in range(1, 10):
        ring.add(StepTimes(rank=0, num_steps=steps, step_s=0.5, own_s=0.1, input_s=0.0))
        ring.add(row(steps))
    assert not ring.urgent

    taken = ring.take(EVERYTHING)

    assert [event.num_steps for event in taken if isinstance(event, StepTimes)] == [1, 9]
    assert [event.n for event in taken if isinstance(event, ProgressRow)] == [1, 9]
    assert len(ring) == 0


def test_a_bar_that_never_rests_is_seen_although_the_queue_never_empties() -> None:
    ring = EventRing(log_bytes=1000)
    seen: list[int | None] = []
    for n in range(100):
        ring.add(row(n))
        for _ in range(4):
            ring.add(lines(0, "x" * 100))
        seen += [event.n for event in ring.take(250) if isinstance(event, ProgressRow)]

    assert len(seen) > 10
    assert seen == sorted(seen, key=lambda n: n or 0)


def test_numbers_only_grow_whatever_leaves() -> None:
    ring = EventRing(log_bytes=500)
    taken: list[RunEvent] = []
    for i in range(300):
        ring.add(lines(i % 3, "x" * (i % 50)))
        ring.add(row(i, bar=i % 2, rank=i % 3))
        if i % 7 == 0:
            ring.add(Notice(text=str(i)))
        if i % 5 == 0:
            taken += ring.take(150)
    taken += ring.take(EVERYTHING)

    sequences = [event.sequence for event in taken]
    assert sequences == sorted(set(sequences))
    assert [event.text for event in taken if isinstance(event, Notice)] == [str(i) for i in range(300) if i % 7 == 0]


def test_the_fold_sees_every_event_taken() -> None:
    ring = EventRing(log_bytes=100)
    for i in range(50):
        ring.add(lines(0, f"line {i:03}"))
        ring.add(row(i))

    state = advance_all(RunState(), ring.take(EVERYTHING))

    rank = state.ranks[0]
    assert rank.dropped_lines + len(rank.log_tail) == 50
    assert rank.log_tail[-1] == "line 049"
    assert rank.progress[0].n == 49


@pytest.mark.parametrize(
    "event",
    [
        Notice(text="n"),
        RankStarted(rank=0),
        RankFinished(rank=0),
        RankFailed(rank=0, failure=RankFailure(rank=0, kind="raised")),
        RankExited(rank=0),
        StopRequested(by="handle"),
        Restarting(attempt=1),
        Stalled(text="rank 0 waits", waits_s=30.0, ranks=()),
        RunEnded(),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_changes_the_run_is_urgent_and_never_dropped(event: RunEvent) -> None:
    ring = EventRing(log_bytes=10)
    for i in range(5):
        ring.add(lines(0, f"{i:09}"))
        ring.add(row(i))
    before = ring.urgent

    ring.add(event)
    for i in range(5):
        ring.add(lines(0, f"{i:09}"))

    assert (before, ring.urgent) == (False, True)
    assert event in unnumbered(ring.take(EVERYTHING))
    assert not ring.urgent


def loss(step: int) -> MetricsLogged:
    return MetricsLogged(rank=0, values={"loss": 0.5}, step=step)


def test_metrics_are_thinned_while_nobody_takes_and_rare_ones_stay() -> None:
    ring = EventRing(num_metrics=100)
    ring.add(MetricsLogged(rank=0, values={"accuracy": 0.9}, step=1))
    for step in range(5000):
        ring.add(loss(step))

    taken = ring.take(EVERYTHING)

    assert len(taken) <= 101
    assert isinstance(taken[0], MetricsLogged)
    assert "accuracy" in taken[0].values
    steps = [event.step for event in taken if isinstance(event, MetricsLogged) and "loss" in event.values]
    assert steps == sorted(steps, key=lambda step: step or 0)
    assert steps[-1] == 4999


def test_metrics_of_ever_new_names_are_bounded_too() -> None:
    ring = EventRing(num_metrics=100)
    for i in range(5000):
        ring.add(MetricsLogged(rank=0, values={f"m{i}": 0.5}))

    assert len(ring) <= 101


def test_metrics_wait_for_the_drawing_rate() -> None:
    ring = EventRing()

    ring.add(loss(0))

    assert not ring.urgent
    assert unnumbered(ring.take(EVERYTHING)) == [loss(0)]
    assert not ring.urgent


def test_u12_of_displays_that_nobody_fetches_the_text_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel_nb.launch.output.event_ring.MAX_DISPLAY_BYTES", 250)
    ring = EventRing()
    shown = Display(rank=0, data={"text/plain": "Figure", "image/png": "x" * 100})

    for _ in range(3):
        ring.add(shown)
    taken = ring.take(EVERYTHING)
    ring.add(shown)

    kinds = [set(event.data) for event in taken if isinstance(event, Display)]
    assert kinds == [{"text/plain", "image/png"}] * 2 + [{"text/plain"}]
    [after] = ring.take(EVERYTHING)
    assert isinstance(after, Display)
    assert "image/png" in after.data, "there is room again"
    assert isinstance(taken[2], Display)
    assert taken[2].data["text/plain"] == "Figure\n(not shown otherwise: too many wait)"


def test_newer_usage_of_a_rank_replaces_what_the_kernel_has_not_taken_yet() -> None:
    ring = EventRing()
    for memory_bytes in range(1, 6):
        ring.add(RankUsage(rank=0, memory_bytes=memory_bytes, cpus=1.0))
        ring.add(StepTimes(rank=0, num_steps=memory_bytes, step_s=0.1, own_s=0.1, input_s=0.0))

    taken = [event for event in ring.take(EVERYTHING) if isinstance(event, RankUsage)]

    assert [usage.memory_bytes for usage in taken] == [1, 5]
    assert not ring.urgent
