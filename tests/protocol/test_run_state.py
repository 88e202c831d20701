"""The fold: what is known after each event."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from accel_nb.protocol.events import (
    BatchSizeTried,
    CollectiveMismatch,
    DryRunReport,
    EventsDropped,
    HostMemoryLow,
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
    RunHeader,
    RunStarted,
    SettingsLogged,
    Stalled,
    StallEnded,
    StepTimes,
    StopRequested,
    Straggler,
    Whereabouts,
)
from accel_nb.protocol.failure import RankFailure
from accel_nb.protocol.plan import LaunchPlan, RankPlan
from accel_nb.protocol.run_state import (
    BATCH_SIZES_TRIED,
    ENDED_BARS,
    LOG_TAIL_LINES,
    MAX_CURVES,
    MAX_POINTS,
    USAGES_KEPT,
    RunState,
    advance,
    advance_all,
)
from tests.fixtures.every_kind import EVERY_KIND

PLAN = LaunchPlan(
    run_id="r",
    function_name="train",
    engine="local",
    device_kind="cpu",
    process_group="gloo",
    ranks=(RankPlan(rank=0, local_rank=0), RankPlan(rank=1, local_rank=1)),
)
STARTED = RunStarted(plan=PLAN, log_dir="logs")


def failed(rank: int) -> RankFailed:
    return RankFailed(rank=rank, failure=RankFailure(rank=rank, kind="raised", type_name="ValueError"))


def after(*events: RunEvent) -> RunState:
    return advance_all(RunState(), (STARTED, *events))


def test_a_started_run_knows_its_plan_and_ranks() -> None:
    state = after()

    assert (state.status, state.plan, state.log_dir) == ("starting", PLAN, "logs")
    assert sorted(state.ranks) == [0, 1]


def test_the_first_rank_that_starts_makes_it_running() -> None:
    state = after(RankStarted(rank=1, pid=7))

    assert state.status == "running"
    assert (state.ranks[1].status, state.ranks[1].pid, state.ranks[0].status) == ("running", 7, "starting")


def test_all_ranks_finished_is_finished() -> None:
    state = after(RankFinished(rank=0, value_bytes=3), RankFinished(rank=1), RunEnded(duration_s=2.0, leftovers=1))

    assert (state.status, state.duration_s, state.leftovers, state.ended) == ("finished", 2.0, 1, True)
    assert state.ranks[0].value_bytes == 3


def test_a_failure_that_stops_the_others_is_failed() -> None:
    state = after(failed(1), StopRequested(by="failure"), failed(0), RunEnded())

    assert state.status == "failed"
    assert [failure.rank for failure in state.failures] == [0, 1]


def test_a_stop_by_the_user_is_stopped_even_when_ranks_fail_of_it() -> None:
    assert after(StopRequested(by="interrupt"), failed(0), failed(1), RunEnded()).status == "stopped"


def test_a_user_stop_after_a_failure_stays_failed() -> None:
    assert after(failed(1), StopRequested(by="failure"), StopRequested(by="handle"), RunEnded()).status == "failed"


def test_a_stop_that_comes_too_late_leaves_the_run_finished() -> None:
    state = after(RankFinished(rank=0), RankFinished(rank=1), StopRequested(by="interrupt"), RunEnded())

    assert state.status == "finished"


def test_a_restart_forgets_outcomes_and_keeps_the_scroll_back() -> None:
    state = after(LogLines(rank=0, text="first try"), failed(1), StopRequested(by="failure"), Restarting(attempt=1))

    assert (state.status, state.attempt, state.failures, state.stopped_by) == ("starting", 1, (), "")
    assert state.ranks[0].log_tail == ("first try",)


def test_lines_are_kept_up_to_the_scroll_back() -> None:
    text = "\n".join(map(str, range(LOG_TAIL_LINES + 5)))

    tail = after(LogLines(rank=0, text=text)).ranks[0].log_tail

    assert (len(tail), tail[0], tail[-1]) == (LOG_TAIL_LINES, "5", str(LOG_TAIL_LINES + 4))


def test_progress_dropped_lines_notices_and_exits_are_remembered() -> None:
    row = ProgressRow(rank=0, bar=2, text="50%", n=1, total=2)
    exited = RankExited(rank=1, exit_code=None, signal="SIGKILL")

    state = after(row, EventsDropped(rank=0, lines=3), EventsDropped(rank=0, lines=4), Notice(text="moved"), exited)

    assert state.ranks[0].progress == {2: row}
    assert state.ranks[0].dropped_lines == 7
    assert state.notices == ("moved",)
    assert (state.ranks[1].gone, state.ranks[1].signal) == (True, "SIGKILL")


def test_of_the_ended_bars_the_newest_stay() -> None:
    rows = [ProgressRow(rank=0, bar=bar, text="", done=bar > 0) for bar in range(ENDED_BARS + 6)]

    kept = after(*rows).ranks[0].progress

    assert list(kept) == [0, *range(6, ENDED_BARS + 6)]


def test_an_event_seen_before_changes_nothing() -> None:
    state = advance(RunState(), RunStarted(plan=PLAN, sequence=5))

    assert advance(state, Notice(text="old", sequence=5)) is state
    assert advance(state, Notice(text="new", sequence=6)).notices == ("new",)


def test_an_event_of_the_kernels_own_has_no_number_and_counts() -> None:
    state = advance(RunState(), RunStarted(plan=PLAN, sequence=5))

    assert advance(state, Notice(text="ours")).notices == ("ours",)
    assert advance(state, Notice(text="ours")).sequence == 5


def test_logged_numbers_become_curves_and_texts_stay_the_newest() -> None:
    state = after(
        MetricsLogged(rank=0, values={"loss": 2.0, "lr": 0.1}, step=10, texts={"phase": "warm-up"}),
        MetricsLogged(rank=0, values={"loss": None}, step=20, texts={"phase": "main"}),
    )

    assert state.curves["loss"].points == ((10, 2.0), (20, None))
    assert (state.curves["loss"].last, state.curves["lr"].last) == ((20, None), (10, 0.1))
    assert state.texts == {"phase": "main"}


def test_without_a_step_each_name_counts_its_own_values() -> None:
    state = after(MetricsLogged(values={"a": 1.0}), MetricsLogged(values={"a": 2.0, "b": 3.0}))

    assert (state.curves["a"].points, state.curves["b"].points) == (((0, 1.0), (1, 2.0)), ((0, 3.0),))


def test_a_long_curve_is_thinned_evenly_and_keeps_its_first_and_newest_value() -> None:
    curve = after(*(MetricsLogged(values={"loss": float(step)}, step=step) for step in range(5000))).curves["loss"]

    steps = [step for step, _ in curve.points]
    assert MAX_POINTS / 2 <= len(steps) <= MAX_POINTS
    assert steps == list(range(0, 5000, curve.stride))
    assert (curve.num_values, curve.last) == (5000, (4999, 4999.0))


def test_names_without_end_do_not_grow_the_state() -> None:
    events = [
        MetricsLogged(values={f"{i}": 1.0}, texts={f"{i}": ""}) if i % 2 else
        SettingsLogged(project="p", settings={f"{i}": ""})
        for i in range(3 * MAX_CURVES)
    ]  # fmt: skip

    state = after(*events)

    assert [len(state.curves), len(state.texts), len(state.settings)] == [MAX_CURVES] * 3


def test_m03_batch_sizes_tried_are_kept_by_rank_the_newest() -> None:
    tries = [
        BatchSizeTried(rank=1, function="train", batch_size=size, fits=False, duration_s=0.1)
        for size in range(BATCH_SIZES_TRIED + 5)
    ]

    state = after(*tries)

    assert state.ranks[1].batch_sizes == tuple(tries[5:])
    assert state.ranks[0].batch_sizes == ()


def test_a_dry_runs_report_is_kept_by_rank() -> None:
    report = DryRunReport(rank=1, stepped=True, batch_size=8)

    state = after(report)

    assert (state.ranks[0].dry_run, state.ranks[1].dry_run) == (None, report)


def test_a_restart_begins_new_curves() -> None:
    logged = MetricsLogged(values={"loss": 1.0}, texts={"a": "b"})

    state = after(logged, SettingsLogged(project="p", settings={"lr": "1"}), Restarting(attempt=1))

    assert (state.curves, state.texts, state.settings) == ({}, {}, {})


def test_the_newest_mismatch_is_kept_until_a_restart() -> None:
    mismatches = [
        CollectiveMismatch(rank=0, operations=("accel_nb.utils.gather",) * 2, given=(f"[{size}] int64", "[1] int64"))
        for size in (2, 3)
    ]

    assert after(*mismatches).mismatch == mismatches[1]
    assert after(*mismatches, Restarting(attempt=1)).mismatch is None


STALLED = Stalled(text="rank 0 waits", waits_s=30.0, ranks=(Whereabouts(rank=0, state="waits"),))


def test_w22_a_stall_is_known_until_it_has_ended() -> None:
    assert after(STALLED).stalled == STALLED
    assert after(STALLED, StallEnded(text="goes on", waited_s=40.0)).stalled is None
    assert after(STALLED, Restarting(attempt=1)).stalled is None


def test_w22_a_stall_is_kept_as_evidence_unless_the_run_ended_well() -> None:
    good = after(STALLED, RankFinished(rank=0), RankFinished(rank=1), RunEnded())
    stopped = after(STALLED, StopRequested(by="interrupt"), RunEnded())

    assert (good.stalled, stopped.stalled) == (None, STALLED)


def test_the_pace_of_ranks_is_known() -> None:
    times = [StepTimes(rank=1, num_steps=steps, step_s=0.5, own_s=0.3, input_s=0.1) for steps in (4, 8)]
    straggler = Straggler(rank=1, text="slow", factor=2.0, by="input", own_s=0.3, others_s=0.15)

    state = after(*times, straggler)

    assert (state.ranks[1].step_times, state.ranks[1].straggler) == (times[1], straggler)
    assert (state.ranks[0].step_times, state.ranks[0].straggler) == (None, None)


def test_the_newest_warning_of_host_memory_is_known() -> None:
    warnings = [
        HostMemoryLow(text="nearly full", used_bytes=used, limit_bytes=100, largest_rank=1, rank_bytes=40)
        for used in (90, 95)
    ]

    assert after(*warnings).host_memory == warnings[1]


def test_s10_the_newest_header_counts_and_a_restart_forgets_it() -> None:
    first, second = RunHeader(rank=0, num_ranks=2), RunHeader(rank=0, num_ranks=2, batch_size=4)

    assert after().header is None
    assert after(first, second).header == second
    assert after(first, Restarting(attempt=1)).header is None


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (RunHeader(num_ranks=1), "1 rank"),
        (
            RunHeader(num_ranks=1, batch_size=1024, batches_per_update=1, learning_rates=(0.1,)),
            "1 rank x batch size 1,024 = 1,024 samples per update, learning rate 0.1",
        ),
        (
            RunHeader(
                num_ranks=2, batch_size=16, batches_per_update=4, updates_per_epoch=1200, precision="bf16",
                learning_rates=(0.001, 2e-05), seed=7,
            ),
            "2 ranks x batch size 16 x 4 batches = 128 samples per update, 1,200 updates per epoch, "  # noqa: ISC004
            "learning rate 0.001 and 2e-05, bf16, seed 7",
        ),
        (RunHeader(num_ranks=3, batch_size=5, precision="fp16"), "3 ranks x batch size 5, fp16"),
    ],
)  # fmt: skip
def test_s10_a_header_says_what_is_known(header: RunHeader, sentence: str) -> None:
    assert header.sentence == sentence


def test_u11_the_newest_usage_its_course_and_the_peaks_are_known() -> None:
    samples = [RankUsage(rank=1, memory_bytes=100 - number, cpus=number / 10) for number in range(USAGES_KEPT + 5)]

    rank = after(*samples).ranks[1]

    assert rank.usage == samples[-1]
    assert (len(rank.busy), rank.busy[0], rank.busy[-1]) == (USAGES_KEPT, 0.5, samples[-1].cpus)
    assert (rank.peak_memory_bytes, rank.peak_device_bytes) == (100, 0)


def test_w06_of_a_device_its_utilization_counts_and_what_the_rank_holds_of_it() -> None:
    device = RankUsage(
        rank=0, memory_bytes=5, cpus=2.0, device_memory_bytes=80, device_used_bytes=60, device_utilization=0.25
    )

    unknown = after(device).ranks[0]
    known = after(replace(device, device_own_bytes=7)).ranks[0]

    assert (unknown.busy, unknown.peak_device_bytes) == ((0.25,), 60)
    assert known.peak_device_bytes == 7


@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_many_events_at_once_give_the_same_state_and_change_none_before(batch: int) -> None:
    events = [event for event in EVERY_KIND for _ in range(2)]
    one_by_one, at_once = RunState(), RunState()
    for begin in range(0, len(events), batch):
        before = at_once
        seen = msgspec.msgpack.encode(before)
        at_once = advance_all(at_once, events[begin : begin + batch])
        assert msgspec.msgpack.encode(before) == seen

    for event in events:
        one_by_one = advance(one_by_one, event)

    assert at_once == one_by_one
